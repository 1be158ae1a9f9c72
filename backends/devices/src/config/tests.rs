//! Valid configurations, and the keys by which invalid ones are refused.

use super::*;

/// A group of these paths.
pub(crate) fn group(name: &str, paths: &[String]) -> Group {
    Group {
        vendor: "acme".to_owned(),
        kind: "tpu".to_owned(),
        name: name.to_owned(),
        resource: String::new(),
        swarm_kind: String::new(),
        paths: paths.iter().map(|path| path.as_str().into()).collect(),
        usb: Vec::new(),
        pci: Vec::new(),
        cdi: Vec::new(),
        shares: 1,
        quota: BTreeMap::new(),
        placement: Placement::default(),
        permissions: default_permissions(),
        shared: Vec::new(),
        mounts: Vec::new(),
        env: String::new(),
        environment: BTreeMap::new(),
        attributes: BTreeMap::new(),
    }
}

fn valid() -> Group {
    group("v2", &["/dev/acme[0-9]*".to_owned()])
}

/// The group of a configuration with these lines in addition to the mandatory ones.
fn read(lines: &str) -> std::result::Result<Group, toml::de::Error> {
    toml::from_str(&format!("vendor = \"acme\"\ntype = \"tpu\"\n{lines}\n"))
}

#[test]
fn what_is_no_group_is_refused_by_its_key() {
    let check = |change: fn(&mut Group), key: &str| {
        let mut one = valid();
        change(&mut one);
        let error = Group::check(&[one]).unwrap_err().to_string();
        assert!(error.starts_with(key), "{error}");
    };
    Group::check(&[valid()]).unwrap();
    check(|group| group.vendor = "a/b".into(), "vendor: ");
    check(|group| group.kind.clear(), "type: ");
    check(|group| group.name = "two words".into(), "name: ");
    check(|group| group.paths.clear(), "paths: ");
    check(|group| group.paths = vec!["/dev/a[".into()], "paths: ");
    check(|group| group.paths = vec!["/dev/**/a".into()], "paths: ");
    check(|group| group.paths = vec!["dev/a".into()], "paths: ");
    check(|group| group.paths = vec!["/dev/../a".into()], "paths: ");
    check(
        |group| group.paths = vec![Entry::Together(Vec::new())],
        "paths: ",
    );
    check(|group| group.shared = vec!["ctl".into()], "shared: ");
    check(|group| group.permissions = "rx".into(), "permissions: ");
    check(|group| group.permissions = "rwmrwm".into(), "permissions: ");
    check(|group| group.env = "A=B".into(), "env: ");
    check(|group| group.resource = "tpu".into(), "resource: ");
    check(|group| group.swarm_kind = "a/b".into(), "swarm_kind: ");
    check(|group| group.shares = 0, "shares: ");
    check(|group| group.shares = 1001, "shares: ");
    check(
        |group| group.quota = BTreeMap::from([("docker".into(), 1)]),
        "quota: ",
    );
    check(|group| group.cdi = vec!["gpu".into()], "cdi: ");
    check(
        |group| group.environment = BTreeMap::from([("A=".into(), String::new())]),
        "environment: ",
    );
    check(
        |group| group.environment = BTreeMap::from([("A".into(), "\0".into())]),
        "environment: ",
    );
}

#[test]
fn names_resources_and_kinds_belong_to_one_group() {
    let error = Group::check(&[valid(), valid()]).unwrap_err().to_string();
    assert!(error.contains("acme/tpu/v2"), "{error}");
    let with = |name: &str, change: fn(&mut Group)| {
        let mut group = group(name, &["/dev/a".to_owned()]);
        change(&mut group);
        group
    };
    let resource: fn(&mut Group) = |group| group.resource = "acme.com/tpu".into();
    let error = Group::check(&[with("a", resource), with("b", resource)])
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("resource: two groups are acme.com/tpu"),
        "{error}"
    );
    let kind: fn(&mut Group) = |group| group.cdi = vec!["acme.com/tpu".into()];
    let error = Group::check(&[with("a", kind), with("b", kind)])
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("cdi: acme.com/tpu is named twice"),
        "{error}"
    );
}

#[test]
fn a_path_is_a_text_or_a_table_and_a_list_of_them_is_one_device() {
    let group = read(
        r#"paths = ["/dev/a*", { path = "/dev/b", optional = true },
            ["/dev/c*", { path = "/dev/ctl", container_path = "/dev/", permissions = "r", limit = 8 }]]"#,
    )
    .unwrap();
    Group::check(std::slice::from_ref(&group)).unwrap();
    let optional = PathMatch {
        optional: true,
        ..PathMatch::from("/dev/b")
    };
    let control = PathMatch {
        container_path: "/dev/".to_owned(),
        permissions: "r".to_owned(),
        limit: 8,
        ..PathMatch::from("/dev/ctl")
    };
    let expected = [
        "/dev/a*".into(),
        Entry::Single(optional),
        Entry::Together(vec!["/dev/c*".into(), control]),
    ];
    assert_eq!(group.paths, expected);
}

#[test]
fn paths_that_make_no_sense_are_refused() {
    for (paths, why) in [
        (r#"[{ path = "/dev/a", limit = 2 }]"#, "in no list"),
        (r#"[["/dev/a", { path = "/dev/b", limit = 0 }]]"#, "limit 0"),
        (
            r#"[["/dev/a", { path = "/dev/b", permissions = "x" }]]"#,
            "permissions",
        ),
        (
            r#"[["/dev/a", { path = "/dev/b", container_path = "b" }]]"#,
            "absolute",
        ),
        (
            r#"[[{ path = "/dev/a", optional = true }, { path = "/dev/b", optional = true }]]"#,
            "optional",
        ),
    ] {
        let group = read(&format!("paths = {paths}")).unwrap();
        let error = Group::check(&[group]).unwrap_err().to_string();
        assert!(
            error.starts_with("paths: ") && error.contains(why),
            "{paths}: {error}"
        );
    }
    for (paths, why) in [
        (
            r#"[7]"#,
            "a path, a table with a path, or an array of these",
        ),
        (r#"[{ paths = "/dev/a" }]"#, "unknown field `paths`"),
        (
            r#"[["/dev/a", ["/dev/b"]]]"#,
            "a path or a table with a path",
        ),
    ] {
        let error = read(&format!("paths = {paths}")).unwrap_err().to_string();
        assert!(error.contains(why), "{paths}: {error}");
    }
}

#[test]
fn usb_and_pci_devices_are_named_by_hexadecimal_digits() {
    for lines in [
        r#"usb = [{ vendor = "1a86", product = "7523", serial = "" }, { vendor = "0403" }]"#,
        r#"pci = [{ vendor = "10de", class = "03" }, { class = "030000" }, { vendor = "10de", device = "2230" }]"#,
    ] {
        Group::check(&[read(lines).unwrap()]).unwrap();
    }
    for (lines, key) in [
        (r#"usb = [{ vendor = "" }]"#, "usb: "),
        (r#"usb = [{ vendor = "0x1a86" }]"#, "usb: "),
        (r#"usb = [{ vendor = "1a86", product = "75" }]"#, "usb: "),
        (r#"pci = [{ device = "2230" }]"#, "pci: "),
        (r#"pci = [{ vendor = "10de", class = "3" }]"#, "pci: "),
        (r#"pci = [{ vendor = "nvidia" }]"#, "pci: "),
    ] {
        let error = Group::check(&[read(lines).unwrap()])
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(key), "{lines}: {error}");
    }
}

#[test]
fn a_selector_meets_what_it_leaves_open() {
    let usb = UsbMatch {
        vendor: "1A86".into(),
        product: String::new(),
        serial: "7".into(),
    };
    assert!(usb.matches("1a86", "7523", Some("7")));
    assert!(!usb.matches("1a86", "7523", None) && !usb.matches("0403", "7523", Some("7")));
    let pci = PciMatch {
        vendor: "10de".into(),
        device: String::new(),
        class: "0302".into(),
    };
    assert!(pci.matches("10de", "2230", "030200"));
    assert!(!pci.matches("10de", "2230", "030000") && !pci.matches("10de", "2230", "03"));
    assert!(
        !pci.matches("10de", "2230", "0é"),
        "what is no class meets none"
    );
}

#[test]
fn a_mount_is_absolute_and_has_a_place_of_its_own() {
    for (mounts, ok) in [
        (r#"[{ host_path = "/opt/acme", read_only = true }]"#, true),
        (
            r#"[{ host_path = "/opt/acme", container_path = "/a" }, { host_path = "/b", container_path = "/a" }]"#,
            false,
        ),
        (r#"[{ host_path = "opt" }]"#, false),
        (r#"[{ host_path = "/opt", container_path = "/" }]"#, false),
        (
            r#"[{ host_path = "/opt", container_path = "/../x" }]"#,
            false,
        ),
    ] {
        let group = read(&format!("paths = [\"/dev/a\"]\nmounts = {mounts}")).unwrap();
        match Group::check(&[group]) {
            Ok(()) => assert!(ok, "{mounts}"),
            Err(error) => assert!(
                !ok && error.to_string().starts_with("mounts: "),
                "{mounts}: {error}"
            ),
        }
    }
}

#[test]
fn shares_and_quotas_are_read() {
    let lines = "paths = [\"/dev/a\"]\nresource = \"acme.com/tpu\"\nshares = 4\nquota = { kubernetes = 2, nomad = 2 }\n\
                 placement = \"spread\"";
    let group = read(lines).unwrap();
    Group::check(std::slice::from_ref(&group)).unwrap();
    assert_eq!(
        group.quotas(),
        BTreeMap::from([(Owner::Kubernetes, 2), (Owner::Nomad, 2)])
    );
    assert_eq!(
        (group.shares, SlotPlacement::from(group.placement)),
        (4, SlotPlacement::Spread)
    );
    assert!(read("paths = [\"/dev/a\"]\nshares = 70000").is_err());
    assert!(read("paths = [\"/dev/a\"]\nquota = { nomad = -1 }").is_err());
    assert!(read("paths = [\"/dev/a\"]\nplacement = \"best\"").is_err());
}
