//! Questions of `deploy/quickstart` about what others have on the node: a program that has much to say is heard to its end.

use std::process::Command;

use super::{read, repository};

/// Programs in the place of those of the node, with `$COUNT` of what others have: routes, rules of two plugins, tasks.
const PROGRAMS: &str = r#"
set -euo pipefail
lines() { seq -f "$1" "$COUNT"; }
ip() {
    case $* in
        *' match '*)
            echo 'default via 192.0.2.1 dev eth0'
            lines '10.0.0.0/8 dev eth%g'
            ;;
    esac
}
iptables() {
    echo '-N CNI-HOSTPORT-DNAT'
    lines '-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports %g -j CNI-DN-0'
}
iptables-save() {
    case $* in
        *nat)
            echo ':CNI-HOSTPORT-DNAT - [0:0]'
            echo '-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT'
            ;;
        *filter)
            echo ':CNI-FORWARD - [0:0]'
            echo '-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD'
            lines '-A CNI-FORWARD -s 10.0.0.%g/32 -j ACCEPT'
            ;;
    esac
}
iptables-restore() { grep -c . >/dev/null; echo "removed"; }
program() { lines '{"owner": "nomad", "id": %g}'; }
nomad_here() { lines 'Driver Status = switchyard, %g'; }
docker_here() { lines 'Running %g'; }
die() {
    echo "die"
    exit 1
}
own=/own run=/run/switchyard binary=program network=quickstart task_bridge=quick1
"#;

/// The text of a function of a script that cannot be sourced, since it does its work then.
fn function(script: &str, name: &str) -> String {
    let begin = format!("\n{name}() {{\n");
    let body = script.split_once(&begin).map(|(_, rest)| rest);
    let (body, _) = body
        .and_then(|rest| rest.split_once("\n}\n"))
        .expect("it has this function");
    format!("{begin}{body}\n}}\n")
}

/// Returns the output of a call, and `yes` or `no` for its success, where others have so many.
fn said(call: &str, count: usize) -> String {
    let deploy = repository().join("deploy");
    let free_subnet = function(&read(&deploy.join("quickstart")), "free_subnet");
    let sourced: String = ["nomad", "swarm", "remove"]
        .map(|part| read(&deploy.join(format!("quickstart-{part}.sh"))))
        .concat();
    // Those of the programs come last: some stand for functions of the scripts.
    let script = format!(
        "own=/own; {sourced}\n{PROGRAMS}\n{free_subnet}\nif answer=$({call}); then echo \"$answer yes\"; else echo \"$answer no\"; fi"
    );
    let output = Command::new("bash")
        .args(["-c", &script])
        .env("COUNT", count.to_string())
        .output()
        .expect("every Debian has it");
    assert!(output.status.success(), "{call}: {output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn answers_do_not_depend_on_how_much_a_program_has_to_say() {
    for (call, without, with) in [
        ("free_subnet 88", "10.88.0.0/24 yes", "die no"),
        ("remove_rules own", "removed yes", "yes"),
        ("remove_firewall ''", "removed yes", "yes"),
        ("no_task", "yes", "no"),
        ("driver_is_healthy", "no", "yes"),
        ("service_runs", "no", "yes"),
    ] {
        for (count, expected) in [(0, without), (1, with), (30_000, with)] {
            assert_eq!(said(call, count), expected, "{call}, {count}");
        }
    }
}

/// Another gateway may have a bridge whose name begins as that of the script, or is the same but for what a table cannot be named.
#[test]
fn tables_of_the_script_are_those_of_its_own_bridge() {
    let shown = "ip switchyard\\nip switchyard_swy_quick1_f483650a\\nip6 switchyard_swy_quick1_f483650a\\n\
                 ip switchyard_swy_quick1\\nip switchyard_swy_quick2\\nbridge switchyard_swy_quick1_00000000\\n\
                 ip switchyard_quick1\\n\\nip switchyard_swy_quick1_f483650a";
    let others = "ip switchyard ip switchyard_swy_quick1 ip switchyard_swy_quick2 bridge switchyard_swy_quick1_00000000";
    let own = "ip switchyard_swy_quick1_f483650a ip6 switchyard_swy_quick1_f483650a";
    for (bridge, whom, expected) in [
        ("swy-quick1", "this", own.to_owned()),
        (
            "swy-quick1",
            "others",
            format!("{others} ip switchyard_quick1"),
        ),
        ("quick1", "this", "ip switchyard_quick1".to_owned()),
        ("swy_quick2", "this", "ip switchyard_swy_quick2".to_owned()),
        ("other-0", "this", String::new()),
    ] {
        let call = format!("task_bridge={bridge}; tables_of {whom} $'{shown}'");
        let said = said(&call, 0);
        assert_eq!(said, format!("{expected} yes").trim_start(), "{call}");
    }
}
