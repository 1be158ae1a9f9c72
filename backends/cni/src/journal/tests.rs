//! The format of journal files.

use proptest::prelude::*;

use super::*;

/// A daemon of another version has made the attachment. The file is not changed: a later format adds another.
#[test]
fn journal_of_this_format_is_read_and_written_alike() {
    let text = include_str!("golden-2.json");
    let path = Path::new("/golden-2.json");
    let saved = Saved::parse(path, text.as_bytes()).unwrap().unwrap();
    let intent: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(serde_json::to_value(&saved.intent).unwrap(), intent);
    let attachment = saved.attachment();
    assert_eq!(
        (attachment.container_id.as_str(), attachment.ifname.as_str()),
        ("c0ffee", "eth0")
    );
    let network = saved.list(path).unwrap();
    assert_eq!((network.name.as_str(), network.plugins.len()), ("net", 1));
    let made = saved.result(path).unwrap().unwrap();
    assert_eq!(made.raw["ips"][0]["address"], "10.0.0.2/24");
    assert_eq!(
        serde_json::to_value(Intent::new(&network, &attachment, None)).unwrap(),
        intent
    );
}

/// Version 1 was one document. A plugin may not have run to its end.
#[test]
fn journal_of_the_former_format_says_the_same() {
    let path = Path::new("/golden-1.json");
    let former = include_str!("golden-1.json");
    let saved = Saved::parse(path, former.as_bytes()).unwrap().unwrap();
    let present = include_str!("golden-2.json");
    let expected = Saved::parse(path, present.as_bytes()).unwrap();
    assert_eq!(Some(saved), expected);
    let adding = former.replace("\"added\"", "\"adding\"");
    let mut adding: Value = serde_json::from_str(&adding).unwrap();
    adding["result"] = Value::Null;
    let saved = Saved::parse(path, adding.to_string().as_bytes())
        .unwrap()
        .unwrap();
    assert_eq!(saved.result(path).unwrap(), None);
    assert_eq!(saved.attachment().container_id, "c0ffee");
}

#[test]
fn driver_is_named_beside_the_network_and_undone_by_no_plugin() {
    let path = Path::new("/cni.json");
    let golden = Saved::parse(path, include_str!("golden-2.json").as_bytes());
    let golden = golden.unwrap().unwrap();
    let (network, attachment) = (golden.list(path).unwrap(), golden.attachment());
    let long = "n".repeat(DRIVER_MAX + 1);
    for (driver, expected) in [
        (Value::Null, Some("")),
        ("native".into(), Some("native")),
        ("".into(), Some("")),
        (7.into(), Some("")),
        (long.as_str().into(), Some(&long[..DRIVER_MAX])),
    ] {
        let mut intent = serde_json::to_value(Intent::new(&network, &attachment, None)).unwrap();
        intent["network"][DRIVER] = driver;
        let saved = Saved::parse(path, intent.to_string().as_bytes());
        let saved = saved.unwrap().unwrap();
        assert_eq!(saved.driver(), expected);
        let refused = saved.check_made_by_plugins(path).unwrap_err().to_string();
        let named = format!("is of the driver {:?}", expected.unwrap());
        assert!(refused.contains(&named), "{refused}");
        // What it says of network and attachment is what versions without drivers read of it.
        let (same_network, same_attachment) = saved.checked(path).unwrap();
        assert_eq!(same_network.to_document(), network.to_document());
        assert_eq!(same_attachment, attachment);
    }
    assert_eq!(golden.driver(), None);
    golden.check_made_by_plugins(path).unwrap();
    let driver = Driver {
        name: "native",
        is_pinned: false,
    };
    let written = Intent::new(&network, &attachment, Some(driver));
    assert_eq!(written.network[DRIVER], "native");
}

/// Also of a later version, which this one does not read.
#[test]
fn journal_of_any_version_says_by_what_its_attachment_was_made() {
    let begin = r#"{"version":3,"network":{"name":"switchyard0","plugins":[]"#;
    let with = |more: &str| format!("{begin}{more}}},\"attachment\":{{}}}}");
    for (journal, expected) in [
        (with(""), Some(None)),
        (
            with(r#","switchyard.driver":"native""#),
            Some(Some("native")),
        ),
        (
            with(r#", "switchyard.driver" : "native" "#),
            Some(Some("native")),
        ),
        (with(r#","switchyard.driver":"later""#), Some(Some("later"))),
        (with(r#","switchyard.driver":1"#), Some(Some(""))),
        (with(r#","switchyard.driver":null"#), Some(Some(""))),
        (
            r#"{"note":"\"switchyard.driver\":\"native\""}"#.into(),
            Some(None),
        ),
        ("[7]".to_owned(), Some(None)),
        (
            with(r#","switchyard.driver":"native""#) + "{\"ips\":[]}{\"ips",
            Some(Some("native")),
        ),
        (String::new(), Some(None)),
        (begin.to_owned(), Some(None)),
        ("nonsense".to_owned(), None),
    ] {
        let found = driver_of_journal(journal.as_bytes()).ok();
        let found = found.as_ref().map(Option::as_deref);
        assert_eq!(found, expected, "{journal}");
    }
}

#[test]
fn container_sends_with_any_address_unless_it_is_said_to_be_pinned() {
    let path = Path::new("/cni.json");
    let golden = Saved::parse(path, include_str!("golden-2.json").as_bytes());
    let golden = golden.unwrap().unwrap();
    let (network, attachment) = (golden.list(path).unwrap(), golden.attachment());
    assert!(!golden.is_pinned(), "plugins have attached it");
    let read = |intent: &Value| {
        let saved = Saved::parse(path, intent.to_string().as_bytes());
        let saved = saved.unwrap().unwrap();
        // What it says of network and attachment is what versions without pins read of it.
        let (same_network, same_attachment) = saved.checked(path).unwrap();
        assert_eq!(same_network.to_document(), network.to_document());
        assert_eq!(same_attachment, attachment);
        (saved.driver() == Some("native"), saved.is_pinned())
    };
    for is_pinned in [true, false] {
        let name = "native";
        let driver = Driver { name, is_pinned };
        let intent = Intent::new(&network, &attachment, Some(driver));
        let mut intent = serde_json::to_value(intent).unwrap();
        assert_eq!(read(&intent), (true, is_pinned));
        // As a later version may say it, or nobody.
        for (said, expected) in [
            (Value::Bool(true), true),
            (Value::Bool(false), false),
            (Value::Null, true),
            ("arp".into(), true),
            (serde_json::json!({ "macs": [] }), true),
        ] {
            intent["network"][PINNED] = said;
            assert_eq!(read(&intent), (true, expected), "{intent}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_parse_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("x");
        fs::write(&path, bytes).unwrap();
        let _ = Saved::read(&path);
    }
}
