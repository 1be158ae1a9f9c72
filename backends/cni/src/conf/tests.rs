//! Reading configuration files and directories.

use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<NetworkList, Error> {
    NetworkList::parse(Path::new("x.conflist"), text.as_bytes())
}

#[track_caller]
fn refused(text: &str, part: &str) {
    let error = parse(text).expect_err(text);
    assert!(report(&error).contains(part), "{}", report(&error));
}

fn single(name: &str) -> String {
    format!(r#"{{"cniVersion":"0.4.0","name":"{name}","type":"bridge"}}"#)
}

#[test]
fn conflist_keeps_keys_and_order() {
    let text = r#"{"cniVersion":"1.0.0","name":"a.b-c_1","disableCheck":"True","plugins":[
        {"zeta":1,"type":"bridge","alpha":{"y":[18446744073709551615],"b":2}},{"type":"portmap","capabilities":{"portMappings":true}}]}"#;
    let list = parse(text).unwrap();
    assert_eq!(
        (list.name.as_str(), list.cni_version, list.disable_check),
        ("a.b-c_1", SpecVersion::V1_0_0, true)
    );
    assert_eq!(
        list.plugins.iter().map(type_of).collect::<Vec<_>>(),
        ["bridge", "portmap"]
    );
    assert_eq!(
        list.plugins[0].keys().collect::<Vec<_>>(),
        ["zeta", "type", "alpha"]
    );
    assert_eq!(
        list.plugins[0]["alpha"].to_string(),
        r#"{"y":[18446744073709551615],"b":2}"#
    );
    assert_eq!(list.raw, text.as_bytes());
}

#[test]
fn conflist_round_trips() {
    let list = parse(
        r#"{"cniVersion":"0.3.1","name":"n","plugins":[{"type":"a","x":[1,{"b":null,"a":0.5}]}]}"#,
    )
    .unwrap();
    let again = parse(&list.to_document().to_string()).unwrap();
    assert_eq!(
        (again.name, again.cni_version, again.plugins),
        (list.name, list.cni_version, list.plugins)
    );
}

#[test]
fn invalid_conflists_are_rejected_with_a_reason() {
    refused("", "JSON");
    refused("[]", "JSON");
    refused(r#"{"name":"n","plugins":[{"type":"a"}]}"#, "cniVersion");
    refused(
        r#"{"cniVersion":1,"name":"n","plugins":[{"type":"a"}]}"#,
        "cniVersion",
    );
    refused(
        r#"{"cniVersion":"0.2.0","name":"n","plugins":[{"type":"a"}]}"#,
        "0.2.0",
    );
    refused(
        r#"{"cniVersion":"2.0.0","name":"n","plugins":[{"type":"a"}]}"#,
        "2.0.0",
    );
    refused(r#"{"cniVersion":"1.0.0","plugins":[{"type":"a"}]}"#, "name");
    for name in ["", "-a", "a b", "a/b", "../x", "ä"] {
        refused(
            &format!(r#"{{"cniVersion":"1.0.0","name":"{name}","plugins":[{{"type":"a"}}]}}"#),
            "name",
        );
    }
    refused(r#"{"cniVersion":"1.0.0","name":"n"}"#, "no plugins");
    refused(
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[]}"#,
        "no plugins",
    );
    refused(
        r#"{"cniVersion":"1.0.0","name":"n","plugins":{}}"#,
        "plugins",
    );
    refused(
        r#"{"cniVersion":"1.0.0","name":"n","plugins":["a"]}"#,
        "plugins",
    );
    refused(
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{}]}"#,
        "type",
    );
    for kind in ["", ".", "..", "a/b", "/bin/sh", "a\\\\b", "a\\u0000"] {
        refused(
            &format!(r#"{{"cniVersion":"1.0.0","name":"n","plugins":[{{"type":"{kind}"}}]}}"#),
            "type",
        );
    }
    refused(
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a","capabilities":["x"]}]}"#,
        "capabilities",
    );
    refused(
        r#"{"cniVersion":"1.0.0","name":"n","disableCheck":"no","plugins":[{"type":"a"}]}"#,
        "disableCheck",
    );
}

#[test]
fn newest_common_cni_version_is_used() {
    let text = r#"{"cniVersion":"0.4.0","cniVersions":["0.3.1","1.1.0","9.0.0"],"name":"n","plugins":[{"type":"a"}]}"#;
    assert_eq!(parse(text).unwrap().cni_version, SpecVersion::V1_1_0);
}

#[test]
fn first_valid_file_by_name_is_the_network() {
    let temp = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| fs::write(temp.path().join(name), text).unwrap();
    put("05-notes.txt", "not a network");
    put("10-broken.conflist", "{");
    put(
        "15-list.conf",
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"}]}"#,
    );
    put("20-one.json", &single("one"));
    put(
        "30-two.conflist",
        r#"{"cniVersion":"1.0.0","name":"two","plugins":[{"type":"a"}]}"#,
    );
    fs::create_dir(temp.path().join("00-dir.conf")).unwrap();

    let loaded = NetworkList::load(temp.path()).unwrap();
    assert_eq!(loaded.list.name, "one");
    assert_eq!(loaded.list.source, temp.path().join("20-one.json"));
    assert_eq!(loaded.list.plugins.len(), 1);
    let skipped: Vec<_> = loaded
        .skipped
        .iter()
        .map(|s| s.path.file_name().unwrap().to_str().unwrap())
        .collect();
    assert_eq!(skipped, ["10-broken.conflist", "15-list.conf"]);
    assert!(
        loaded.skipped[1].reason.contains(".conflist"),
        "{}",
        loaded.skipped[1].reason
    );
}

#[test]
fn directory_named_after_the_network_adds_plugins() {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir(temp.path().join("net")).unwrap();
    fs::write(temp.path().join("net/20.conf"), r#"{"type":"late"}"#).unwrap();
    fs::write(temp.path().join("net/10.conf"), r#"{"type":"early"}"#).unwrap();
    let mut list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "main"}]});
    let file = temp.path().join("a.conflist");
    fs::write(&file, list.to_string()).unwrap();
    let kinds = || {
        let loaded = NetworkList::load(temp.path()).unwrap();
        loaded
            .list
            .plugins
            .iter()
            .map(|p| type_of(p).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds(), ["main", "early", "late"]);
    list["loadOnlyInlinedPlugins"] = json!(true);
    fs::write(&file, list.to_string()).unwrap();
    assert_eq!(kinds(), ["main"]);
}

#[test]
fn missing_empty_or_invalid_directory_is_not_configured() {
    let temp = tempfile::tempdir().unwrap();
    for dir in [temp.path().join("missing"), temp.path().to_owned()] {
        assert!(NetworkList::load(&dir).unwrap_err().is_not_configured());
    }
    fs::write(temp.path().join("a.conflist"), "{}").unwrap();
    let error = NetworkList::load(temp.path()).unwrap_err();
    assert!(
        error.is_not_configured() && error.to_string().contains("a.conflist"),
        "{error}"
    );
    // A file instead of a directory is a mistake, not a network that is installed later.
    let error = NetworkList::load(&temp.path().join("a.conflist")).unwrap_err();
    assert!(matches!(error, Error::ConfDir { .. }), "{error}");
}

#[test]
fn configuration_change_is_seen_without_restart() {
    let temp = tempfile::tempdir().unwrap();
    let dir = ConfDir::new(temp.path().join("net.d"));
    assert!(dir.load().unwrap_err().is_not_configured());
    fs::create_dir(dir.dir()).unwrap();
    for name in ["one", "two", "six"] {
        // The same length each time, within one clock tick.
        fs::write(dir.dir().join("a.conf"), single(name)).unwrap();
        assert_eq!(dir.load().unwrap().list.name, name);
    }
    fs::write(dir.dir().join("0.conf"), single("first")).unwrap();
    assert_eq!(dir.load().unwrap().list.name, "first");
    fs::remove_file(dir.dir().join("0.conf")).unwrap();
    assert_eq!(dir.load().unwrap().list.name, "six");
}

#[test]
fn unchanged_directory_is_served_from_cache() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("a.conf"), single("one")).unwrap();
    let trusting = ConfDir {
        settling: Duration::ZERO,
        ..ConfDir::new(temp.path())
    };
    let first = trusting.load().unwrap().list;
    assert!(Arc::ptr_eq(&first, &trusting.load().unwrap().list));
    fs::write(temp.path().join("b.conf"), single("two")).unwrap();
    assert!(!Arc::ptr_eq(&first, &trusting.load().unwrap().list));

    let careful = ConfDir::new(temp.path());
    let first = careful.load().unwrap().list;
    assert!(
        !Arc::ptr_eq(&first, &careful.load().unwrap().list),
        "fresh files are not to be trusted yet"
    );
}

proptest! {
    #[test]
    fn any_bytes_parse_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = NetworkList::parse(Path::new("x"), &bytes);
        let _ = NetworkList::parse_single(Path::new("x"), &bytes);
    }

    #[test]
    fn accepted_conflists_have_safe_names(name in "\\PC{0,8}", kind in "\\PC{0,8}|[./a]{1,3}") {
        let text = json!({"cniVersion": "1.0.0", "name": name, "plugins": [{"type": kind}]}).to_string();
        if let Ok(list) = parse(&text) {
            prop_assert!(!list.name.contains('/') && !list.name.starts_with('.'));
            let file = Path::new("/bin").join(type_of(&list.plugins[0]));
            prop_assert_eq!(file.parent(), Some(Path::new("/bin")));
        }
    }
}

#[test]
fn network_is_found_by_its_name() {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let conf = ConfDir::new(dir.path());
    assert!(conf.find("b").unwrap().is_none());
    let list = |name: &str, capability: &str| {
        format!(
            r#"{{"cniVersion":"1.0.0","name":"{name}","plugins":[{{"type":"x","capabilities":{capability}}}]}}"#
        )
    };
    let files = [
        ("00-broken.conflist", "{".to_owned()),
        ("10-a.conf", single("a")),
        ("20-b.conflist", list("b", r#"{"portMappings":true}"#)),
        ("30-b.conflist", list("b", "{}")),
        ("40-c.conflist", list("c", r#"{"portMappings":"yes"}"#)),
        ("50-d.txt", single("d")),
    ];
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let found = conf.find("b").unwrap().unwrap();
    assert!(found.source.ends_with("20-b.conflist") && found.has_capability("portMappings"));
    assert!(
        !conf
            .find("c")
            .unwrap()
            .unwrap()
            .has_capability("portMappings")
    );
    assert!(conf.find("a").unwrap().is_some());
    for absent in ["d", "", "20-b", "../b"] {
        assert!(conf.find(absent).unwrap().is_none(), "{absent}");
    }
}

fn fifo(path: &Path) {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
}

#[test]
fn fifo_and_endless_file_are_skipped_with_a_reason_and_the_good_file_is_used() {
    let temp = tempfile::tempdir().unwrap();
    // Without a writer, an ordinary open of a FIFO waits for ever.
    fifo(&temp.path().join("00-fifo.conflist"));
    std::os::unix::fs::symlink("/dev/zero", temp.path().join("05-endless.conf")).unwrap();
    fs::write(temp.path().join("06-long.json"), " ".repeat((1 << 20) + 1)).unwrap();
    fs::write(temp.path().join("10-good.conf"), single("good")).unwrap();
    let conf = ConfDir {
        settling: Duration::ZERO,
        ..ConfDir::new(temp.path())
    };
    let loaded = conf.load().unwrap();
    assert_eq!(loaded.list.name, "good");
    let reasons: Vec<_> = loaded
        .skipped
        .iter()
        .map(|skipped| skipped.reason.as_str())
        .collect();
    assert_eq!(
        reasons,
        [
            "it cannot be read: it is no regular file but a FIFO",
            "it cannot be read: it is no regular file but a character device",
            "it cannot be read: it is longer than 1048576 bytes",
        ]
    );
    assert_eq!(conf.find("good").unwrap().unwrap().name, "good");
    assert!(
        Arc::ptr_eq(&loaded.list, &conf.load().unwrap().list),
        "the cache is used all the same"
    );
}

#[test]
fn fifo_among_the_plugins_of_a_list_makes_only_that_list_unusable() {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir(temp.path().join("net")).unwrap();
    fifo(&temp.path().join("net/10.conf"));
    let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "main"}]});
    fs::write(temp.path().join("a.conflist"), list.to_string()).unwrap();
    fs::write(temp.path().join("b.conf"), single("other")).unwrap();
    let loaded = NetworkList::load(temp.path()).unwrap();
    assert_eq!(loaded.list.name, "other");
    assert!(
        loaded.skipped[0].reason.contains("a FIFO"),
        "{}",
        loaded.skipped[0].reason
    );
}

#[test]
fn directory_with_too_many_entries_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("a.conf"), single("good")).unwrap();
    for number in 0..ENTRIES_MAX {
        fs::write(temp.path().join(format!("x{number}")), "").unwrap();
    }
    let conf = ConfDir::new(temp.path());
    for error in [conf.load().unwrap_err(), conf.find("good").unwrap_err()] {
        assert!(
            error.report().ends_with("it has more than 1000 entries"),
            "{}",
            error.report()
        );
        assert!(
            error.report().contains(temp.path().to_str().unwrap()),
            "{}",
            error.report()
        );
    }
    fs::remove_file(temp.path().join("x0")).unwrap();
    assert_eq!(conf.load().unwrap().list.name, "good");
}

#[test]
fn entries_of_subdirectories_beyond_the_limit_cost_only_the_cache() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("a.conf"), single("good")).unwrap();
    for dir in ["x", "y"] {
        fs::create_dir(temp.path().join(dir)).unwrap();
        for number in 0..=ENTRIES_MAX / 2 {
            fs::write(temp.path().join(dir).join(number.to_string()), "").unwrap();
        }
    }
    let conf = ConfDir {
        settling: Duration::ZERO,
        ..ConfDir::new(temp.path())
    };
    let first = conf.load().unwrap().list;
    assert!(
        !Arc::ptr_eq(&first, &conf.load().unwrap().list),
        "a change there would not be noticed"
    );
    fs::remove_file(temp.path().join("x/0")).unwrap();
    fs::remove_file(temp.path().join("y/0")).unwrap();
    let first = conf.load().unwrap().list;
    assert!(Arc::ptr_eq(&first, &conf.load().unwrap().list));
}

#[test]
fn files_with_too_many_bytes_together_are_refused_by_the_name_of_the_last() {
    let temp = tempfile::tempdir().unwrap();
    // Each as long as a file may be.
    for number in 0..8 {
        fs::write(
            temp.path().join(format!("{number}.conf")),
            " ".repeat(1 << 20),
        )
        .unwrap();
    }
    let conf = ConfDir::new(temp.path());
    fs::write(temp.path().join("9.conf"), single("good")).unwrap();
    for error in [conf.load().unwrap_err(), conf.find("good").unwrap_err()] {
        let Error::ConfDirSum { dir, path, max } = &error else {
            panic!("{error}")
        };
        assert_eq!(
            (dir.as_path(), path.as_path()),
            (temp.path(), &*temp.path().join("9.conf"))
        );
        assert!(error.to_string().contains(&max.to_string()), "{error}");
    }
    fs::remove_file(temp.path().join("0.conf")).unwrap();
    assert_eq!(conf.load().unwrap().list.name, "good");
    assert_eq!(conf.find("good").unwrap().unwrap().name, "good");
}

#[test]
fn reasons_of_unusable_files_are_short_and_few() {
    let temp = tempfile::tempdir().unwrap();
    for number in 0..30 {
        let name = "ä".repeat(10_000);
        fs::write(temp.path().join(format!("{number}.conf")), single(&name)).unwrap();
    }
    let error = NetworkList::load(temp.path()).unwrap_err();
    assert!(error.is_not_configured());
    let text = error.to_string();
    assert!(
        text.len() < 10_000 && text.contains("; and 20 more)"),
        "{text}"
    );
}
