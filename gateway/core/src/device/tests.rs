//! Tests of the identifiers of devices and groups.

use super::*;
use crate::error::ErrorKind;

fn group(name: &str, paths: &[&str]) -> DeviceGroup {
    let device = |path: &&str| Device {
        aliases: vec![(*path).to_owned()],
        ..Device::new(
            path.trim_start_matches("/dev/"),
            node(PathBuf::from(*path), "rw"),
        )
    };
    DeviceGroup {
        devices: paths.iter().map(device).collect(),
        variable: format!("{}_DEVICES", name.to_uppercase()),
        shared: vec![node("/dev/acmectl".into(), "rwm")],
        ..DeviceGroup::new("acme", "tpu", name)
    }
}

fn ids(ids: &[&str]) -> Vec<SlotId> {
    ids.iter().map(|id| id.parse().unwrap()).collect()
}

#[test]
fn a_reservation_is_the_same_each_time_and_has_everything_once() {
    let inventory = Inventory::of([
        group("one", &["/dev/a0", "/dev/a1"]),
        group("two", &["/dev/b0"]),
    ]);
    let asked = ids(&["b0", "a1::3", "/dev/a0", "a1"]);
    let given = inventory.reserve(&asked).unwrap();
    assert_eq!(inventory.reserve(&asked).unwrap(), given);
    let expected = [
        ("ONE_DEVICES", "/dev/a0,/dev/a1"),
        ("TWO_DEVICES", "/dev/b0"),
    ];
    assert_eq!(
        given.env,
        expected
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    );
    let nodes: Vec<_> = given
        .nodes
        .iter()
        .map(|node| node.host_path.to_str().unwrap())
        .collect();
    assert_eq!(nodes, ["/dev/a0", "/dev/a1", "/dev/acmectl", "/dev/b0"]);
}

#[test]
fn what_is_not_there_or_not_well_is_refused() {
    let mut own = group("one", &["/dev/a0"]);
    let inventory = Inventory::of([own.clone()]);
    let refused =
        |inventory: &Inventory, asked: &[&str]| inventory.reserve(&ids(asked)).unwrap_err().kind();
    assert_eq!(refused(&inventory, &[]), ErrorKind::InvalidArgument);
    assert_eq!(refused(&inventory, &["a0", "a9"]), ErrorKind::NotFound);
    own.devices[0].health = Health::Unhealthy("it burns".to_owned());
    assert_eq!(
        refused(&Inventory::of([own]), &["a0"]),
        ErrorKind::FailedPrecondition
    );
}

#[test]
fn a_fact_is_what_its_text_says() {
    let check = |text: &str, expected: Fact| assert_eq!(Fact::parse(text), expected, "{text}");
    check("16 GiB", Fact::Whole(16, "GiB".to_owned()));
    check("1.5 GHz", Fact::Number(1.5, "GHz".to_owned()));
    check("900 GB/s", Fact::Whole(900, "GB/s".to_owned()));
    check("7", Fact::Whole(7, String::new()));
    check("true", Fact::Flag(true));
    for text in ["16 furlongs", "7 W/s", "v2", "", "NaN", "inf GiB"] {
        check(text, Fact::Text(text.to_owned()));
    }
}
