//! Tests of what is read from the cgroups of a process.

use super::*;

#[test]
fn the_groups_of_a_container_are_those_that_bear_its_id_and_not_those_inside() {
    let text =
        "12:memory:/pods/aa/init.scope\n3:cpu,cpuacct:/pods/aa\n1:name=systemd:/pods/bb\n0::/\n";
    let found: HashSet<String> = parse_cgroups(text, "aa")
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(found, HashSet::from(["/pods/aa".to_owned()]));
}
