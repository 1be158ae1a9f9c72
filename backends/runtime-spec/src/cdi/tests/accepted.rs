//! Forms that vendors write otherwise than the documentation of CDI shows them, and that the reference implementation accepts.

use super::*;
use crate::resolved::{ResolvedSource, Staging};

/// The device that a YAML file with one device of this name and these edits has.
#[track_caller]
fn parsed(name: &str, edits: &str) -> (String, Edits) {
    let text = format!(
        "cdiVersion: 0.7.0\nkind: v.example/class\ndevices:\n- name: {name}\n  containerEdits: {edits}\n"
    );
    let file = SpecFile::parse(text.as_bytes(), true);
    let file = file.unwrap_or_else(|why| panic!("{text}: {why}"));
    let devices: Vec<_> = file.devices.into_iter().collect();
    let [device] = <[_; 1]>::try_from(devices).expect("it has one device");
    device
}

#[test]
fn values_mean_what_they_mean_to_the_reference_implementation() {
    let node = |fields: &str| format!("{{deviceNodes: [{{path: /dev/x, {fields}}}]}}");
    let mode = node("fileMode: 432");
    let plain = node("minor: 3");
    let hook = |fields: &str| format!("{{hooks: [{{hookName: poststop, path: /h, {fields}}}]}}");
    let env = "{env: [A=b]}".to_owned();
    for (odd, as_plain) in [
        (node("fileMode: 0660"), &mode),
        (node("fileMode: 0o660"), &mode),
        (node("fileMode: 0x1b0"), &mode),
        (node("fileMode: 0b110110000"), &mode),
        (node("fileMode: 4_32"), &mode),
        (node("fileMode: 432.0"), &mode),
        (node("fileMode: !!int \"0660\""), &mode),
        (node("minor: 3, type: \"\""), &plain),
        (node("minor: 3, hostPath: \"\", permissions: ''"), &plain),
        (node("minor: 3, major: 0"), &plain),
        (node("minor: 3, uid: null, fileMode: ~, type: Null"), &plain),
        (
            "{env: [A=b], mounts: null, hooks: ~, intelRdt: NULL}".to_owned(),
            &env,
        ),
        (
            "{env: [A=b], deviceNodes: null, netDevices: null, additionalGids: null}".to_owned(),
            &env,
        ),
        (
            hook("args: [1, true, 1.50, 010], timeout: 010"),
            &hook("args: ['1', 'true', '1.5', '8'], timeout: 8"),
        ),
        (
            hook("args: null, env: null, timeout: null"),
            &hook("args: []"),
        ),
        (hook("args: [!!str 7]"), &hook("args: ['7']")),
        (
            "{mounts: [{hostPath: /a, containerPath: /b, type: \"\", options: null}]}".to_owned(),
            &"{mounts: [{hostPath: /a, containerPath: /b}]}".to_owned(),
        ),
        ("{<<: [{env: [A=b]}]}".to_owned(), &env),
        (
            "{intelRdt: {closID: 7, memBwSchema: \"\", schemata: null}}".to_owned(),
            &"{intelRdt: {closID: '7'}}".to_owned(),
        ),
    ] {
        assert_eq!(parsed("a", &odd), parsed("a", as_plain), "{odd}");
    }
    for (name, expected) in [
        ("0", "0"),
        ("007", "7"),
        ("0x1F", "31"),
        ("1_0", "10"),
        ("1.5", "1.5"),
        ("089", "89"),
        ("yes", "true"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("'007'", "007"),
    ] {
        assert_eq!(parsed(name, &env).0, expected, "{name}");
    }
}

#[test]
fn a_file_is_read_in_each_encoding_and_as_yaml_whatever_its_name_says() {
    let json = one("0.6.0", "a", "1");
    let expected = SpecFile::parse(json.as_bytes(), false);
    assert!(expected.is_ok(), "{expected:?}");
    let marked = |text: &str| [b"\xef\xbb\xbf".as_slice(), text.as_bytes()].concat();
    let wide = |of: fn(u16) -> [u8; 2]| -> Vec<u8> {
        let text = format!("\u{feff}{json}");
        text.encode_utf16().flat_map(of).collect()
    };
    let commented = format!("# made by a tool\n{}", json.replace("]}", "],}"));
    for bytes in [
        marked(&json),
        wide(u16::to_le_bytes),
        wide(u16::to_be_bytes),
        commented.into_bytes(),
    ] {
        for is_yaml in [false, true] {
            assert_eq!(SpecFile::parse(&bytes, is_yaml), expected, "{bytes:?}");
        }
    }
    let cut = wide(u16::to_le_bytes);
    assert!(SpecFile::parse(&cut[..cut.len() - 1], true).is_err());
}

#[test]
fn a_bad_file_is_named_to_those_who_ask_for_its_kind() {
    let good = one("0.6.0", "a", "1");
    for (name, bad, kind) in [
        (
            "b.json",
            r#"{"cdiVersion":"0.6.0","kind":"b.example/x","strange":1}"#,
            Some("b.example/x"),
        ),
        (
            "b.yaml",
            "cdiVersion: 0.6.0\nkind: b.example/x\nstrange: 1\n",
            Some("b.example/x"),
        ),
        (
            "b.json",
            r#"{ "kind" : "b.example/x", "devices": ["#,
            Some("b.example/x"),
        ),
        (
            "b.yaml",
            "kind: 'b.example/x'\n\tdevices: [",
            Some("b.example/x"),
        ),
        ("b.json", "{", None),
        ("b.json", r#"{"mankind": "b.example/x"}"#, None),
    ] {
        assert_eq!(likely_kind(bad.as_bytes()).as_deref(), kind, "{bad}");
        let path = format!("/etc/cdi/{name}");
        let list = [(path.as_str(), bad), ("/etc/cdi/v.json", &good)];
        let listing = super::list(&["/etc/cdi".into()], &files(&list));
        let kinds: Vec<_> = listing
            .bad
            .iter()
            .map(|file| file.kind.as_deref())
            .collect();
        assert_eq!(kinds, [kind], "{bad}");
        for (asked, is_named) in [
            ("v.example/class=z", kind.is_none()),
            ("b.example/x=z", true),
        ] {
            let report = resolved(&list, &[asked]).unwrap_err().report();
            assert_eq!(report.contains(&path), is_named, "{asked}: {report}");
        }
    }
}

/// Returns what a container gets of these edits, with a staging directory if it has a user namespace.
fn applied(
    edits: &str,
    stage: Option<&str>,
) -> Result<(oci::Linux, Vec<oci::Mount>, Vec<ResolvedSource>)> {
    let (_, edits) = parsed("a", edits);
    let mut process = oci::Process {
        terminal: false,
        user: oci::User {
            uid: 0,
            gid: 0,
            additional_gids: Vec::new(),
        },
        args: Vec::new(),
        env: Vec::new(),
        cwd: "/".to_owned(),
        capabilities: oci::Capabilities::default(),
        rlimits: Vec::new(),
        no_new_privileges: false,
        apparmor_profile: None,
        oom_score_adj: None,
        selinux_label: None,
    };
    let mut mounts = Vec::new();
    let mut linux = oci::Linux::default();
    let mut hooks = oci::Hooks::new();
    let target = Target {
        stage: stage.map(Path::new),
        process: &mut process,
        mounts: &mut mounts,
        linux: &mut linux,
        hooks: &mut hooks,
    };
    let staged = apply(&edits, target, &files(&[]))?;
    Ok((linux, mounts, staged))
}

#[test]
fn a_node_has_the_mode_of_the_host_unless_the_file_gives_one() {
    // On the host /dev/real is the block device 8:1 with mode 0640; /dev/gone is not there.
    for (fields, expected) in [
        ("path: /dev/real", Ok(("b", 8, 1, 0o640))),
        (
            "path: /dev/real, type: b, major: 7, minor: 2",
            Ok(("b", 7, 2, 0o640)),
        ),
        (
            "path: /dev/x, hostPath: /dev/real, type: c, major: 7",
            Ok(("c", 7, 0, 0o640)),
        ),
        (
            "path: /dev/real, type: b, major: 7, fileMode: 0600",
            Ok(("b", 7, 0, 0o600)),
        ),
        (
            "path: /dev/gone, type: c, major: 7, minor: 2",
            Ok(("c", 7, 2, 0o666)),
        ),
        ("path: /dev/gone, type: p", Ok(("p", 0, 0, 0o666))),
        ("path: /dev/real, major: 7", Ok(("b", 7, 0, 0o640))),
        ("path: /dev/real, minor: 9", Ok(("b", 8, 1, 0o640))),
        (
            "path: /dev/real, type: c",
            Err("has type c in its CDI file, and /dev/real is of type b"),
        ),
        ("path: /dev/gone, type: c", Err("/dev/gone cannot be used")),
        ("path: /dev/gone, major: 7", Err("/dev/gone cannot be used")),
    ] {
        let found = applied(&format!("{{deviceNodes: [{{{fields}}}]}}"), None);
        match (found, expected) {
            (Ok((linux, ..)), Ok(expected)) => {
                let node = &linux.devices[0];
                let node = (node.kind.as_str(), node.major, node.minor, node.file_mode);
                assert_eq!(node, expected, "{fields}");
            }
            (Err(error), Err(why)) => assert!(error.report().contains(why), "{}", error.report()),
            (found, expected) => panic!("{fields}: {found:?} instead of {expected:?}"),
        }
    }
}

#[test]
fn bind_mounts_have_mapped_ids_in_a_user_namespace() {
    for (fields, staged, options) in [
        ("", true, &["rbind"][..]),
        ("options: [ro, bind]", true, &["ro", "bind"]),
        ("options: [rbind, ridmap]", true, &["rbind"]),
        ("options: [bind, idmap, nosuid]", true, &["bind", "nosuid"]),
        ("type: bind", true, &["rbind"]),
        ("type: none, options: [bind]", true, &["bind"]),
        ("type: tmpfs, options: [size=1m]", false, &["size=1m"]),
    ] {
        let edits = format!("{{mounts: [{{hostPath: /lib/v, containerPath: /v, {fields}}}]}}");
        let (_, mounts, sources) = applied(&edits, Some("/stage")).unwrap();
        let source = if staged { "/stage/cdi-0" } else { "/lib/v" };
        assert_eq!(mounts[0].source, source, "{fields}");
        assert_eq!(mounts[0].options, options, "{fields}");
        let expected = staged.then(|| ResolvedSource {
            path: source.into(),
            staging: Staging::IdMapped {
                name: "cdi-0".to_owned(),
                path: "/lib/v".into(),
            },
        });
        assert_eq!(sources, Vec::from_iter(expected), "{fields}");
        let (_, mounts, sources) = applied(&edits, None).unwrap();
        assert_eq!(
            (mounts[0].source.as_str(), sources.len()),
            ("/lib/v", 0),
            "{fields}"
        );
    }
    let two = "{mounts: [{hostPath: /a, containerPath: /v}, {hostPath: /b, containerPath: /v}, {hostPath: /c, containerPath: /w}]}";
    let (_, mounts, sources) = applied(two, Some("/stage")).unwrap();
    let mounts: Vec<_> = mounts
        .iter()
        .map(|mount| (mount.destination.as_str(), mount.source.as_str()))
        .collect();
    assert_eq!(mounts, [("/v", "/stage/cdi-0"), ("/w", "/stage/cdi-1")]);
    let sources: Vec<_> = sources.iter().map(ResolvedSource::host_path).collect();
    assert_eq!(sources, [Path::new("/b"), Path::new("/c")]);
}
