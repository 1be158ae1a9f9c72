//! CDI spec files: which are valid, which device takes precedence, and how they change a spec.

use std::collections::BTreeMap;
use std::io;

use switchyard_core::spec::MissingSource;

use super::*;
use crate::host_fs::{DeviceInfo, HostNode, HostPropagation};
use crate::oci;

mod accepted;

/// Files by path, and one device.
pub(super) struct Files(BTreeMap<PathBuf, String>);

impl HostFs for Files {
    fn source(&self, path: &Path, _: MissingSource) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }

    fn propagation(&self, _: &Path) -> io::Result<HostPropagation> {
        Ok(HostPropagation::Private)
    }

    fn node(&self, path: &Path) -> io::Result<HostNode> {
        match path.to_str() {
            Some("/dev/real") => Ok(HostNode::Device(DeviceInfo {
                block: true,
                major: 8,
                minor: 1,
                mode: 0o100_640,
                uid: 0,
                gid: 6,
            })),
            Some("/dev") => Ok(HostNode::Directory(Vec::new())),
            Some(_) | None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn all_devices(&self) -> io::Result<Vec<(PathBuf, DeviceInfo)>> {
        Ok(Vec::new())
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let text = self.0.get(path).ok_or(io::ErrorKind::NotFound)?;
        if text.len() as u64 > limit {
            Err(io::ErrorKind::FileTooLarge.into())
        } else {
            Ok(text.clone().into())
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let found: Vec<_> = self
            .0
            .keys()
            .filter(|path| path.parent() == Some(dir))
            .cloned()
            .collect();
        if found.is_empty() {
            Err(io::ErrorKind::NotFound.into())
        } else {
            Ok(found)
        }
    }
}

pub(super) fn files(list: &[(&str, &str)]) -> Files {
    Files(
        list.iter()
            .map(|(path, text)| (PathBuf::from(path), (*text).to_owned()))
            .collect(),
    )
}

fn resolved(list: &[(&str, &str)], names: &[&str]) -> Result<Edits> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    resolve(
        &names,
        &["/etc/cdi".into(), "/var/run/cdi".into()],
        &files(list),
    )
}

/// A file with one device that sets a variable.
fn one(version: &str, device: &str, value: &str) -> String {
    format!(
        r#"{{"cdiVersion":"{version}","kind":"v.example/class","devices":[{{"name":"{device}",
            "containerEdits":{{"env":["WHICH={value}"]}}}}],"containerEdits":{{"env":["ALL={value}"]}}}}"#
    )
}

#[test]
fn cdi_device_with_network_devices_is_rejected_by_name() {
    let plain = r#"{"name":"plain","containerEdits":{"env":["A=b"]}}"#;
    let moved = r#""netDevices":[{"hostInterfaceName":"vf7","name":"net1"}]"#;
    let file = |devices: &str, edits: &str| {
        format!(
            r#"{{"cdiVersion":"1.1.0","kind":"v.example/nic","devices":[{devices}],"containerEdits":{{{edits}}}}}"#
        )
    };
    let own = file(
        &format!(r#"{plain},{{"name":"vf","containerEdits":{{{moved}}}}}"#),
        "",
    );
    let list = [("/etc/cdi/v.json", own.as_str())];
    resolved(&list, &["v.example/nic=plain"]).expect("it has none");
    let of_all = file(plain, moved);
    for (text, name) in [(&own, "v.example/nic=vf"), (&of_all, "v.example/nic=plain")] {
        let error = resolved(&[("/etc/cdi/v.json", text.as_str())], &[name]).unwrap_err();
        assert_eq!(error.kind(), switchyard_core::ErrorKind::Unimplemented);
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("cdi_devices: {name} is not supported: "))
                && text.contains("vf7"),
            "{text}"
        );
    }
}

#[test]
fn later_cdi_directory_wins_and_file_edits_apply_once_first() {
    let fixed = one("0.6.0", "a", "etc");
    let passing = one("0.6.0", "a", "run");
    let other = one("0.6.0", "b", "b");
    let list = [
        ("/etc/cdi/v.json", fixed.as_str()),
        ("/var/run/cdi/v.json", &passing),
    ];
    let edits = resolved(&list, &["v.example/class=a", "v.example/class=a"]).unwrap();
    assert_eq!(edits.env, ["ALL=run", "WHICH=run", "WHICH=run"]);
    let list = [
        ("/etc/cdi/v.json", fixed.as_str()),
        ("/etc/cdi/w.json", &other),
    ];
    let edits = resolved(&list, &["v.example/class=b", "v.example/class=a"]).unwrap();
    assert_eq!(edits.env, ["ALL=b", "WHICH=b", "ALL=etc", "WHICH=etc"]);
}

#[test]
fn unresolvable_cdi_device_is_rejected_with_a_reason() {
    let refused = |list: &[(&str, &str)], name: &str| resolved(list, &[name]).unwrap_err().report();
    let file = one("0.6.0", "a", "1");
    let again = one("0.6.0", "a", "2");
    let twice = [
        ("/etc/cdi/v.json", file.as_str()),
        ("/etc/cdi/w.json", &again),
    ];
    assert!(
        refused(&twice, "v.example/class=a")
            .contains("is in both /etc/cdi/v.json and /etc/cdi/w.json")
    );
    // A bad file makes no devices of other files unavailable, and is named if it may have the missing device.
    let bad = [
        ("/etc/cdi/bad.json", r#"{"cdiVersion":"0.6.0","strange":1}"#),
        ("/etc/cdi/v.json", &file),
    ];
    assert!(resolved(&bad, &["v.example/class=a"]).is_ok());
    let report = refused(&bad, "v.example/class=x");
    assert!(
        report.contains("in no file of /etc/cdi, /var/run/cdi"),
        "{report}"
    );
    assert!(
        report.contains("/etc/cdi/bad.json") && report.contains("strange"),
        "{report}"
    );
    // A file of another kind cannot have the missing device: it is not parsed completely.
    let strange = |kind: &str| format!(r#"{{"cdiVersion":"0.6.0","kind":"{kind}","strange":1}}"#);
    let same = strange("v.example/class");
    let other = strange("v.example/other");
    let report = refused(
        &[("/etc/cdi/a.json", &same), ("/etc/cdi/b.json", &other)],
        "v.example/class=a",
    );
    assert!(
        report.contains("/etc/cdi/a.json: unknown field `strange`"),
        "{report}"
    );
    assert!(!report.contains("b.json"), "{report}");
    for name in [
        "a", "v/c", "v/c=", "1v/c=a", "v/c-=a", "v/c=a b", "v/=a", "=", "v/c=-",
    ] {
        assert!(refused(&[], name).contains("vendor/class=device"), "{name}");
    }
}

#[test]
fn yaml_parses_like_json() {
    let yaml = "cdiVersion: 0.7.0\nkind: v.example/class\ndevices:\n  - name: \"0\"\n    containerEdits:\n      deviceNodes:\n        - path: /dev/x\n          hostPath: /dev/real\n      additionalGids: [44]\ncontainerEdits:\n  hooks:\n    - hookName: createContainer\n      path: /bin/hook\n      args: [hook, update]\n";
    let edits = resolved(&[("/etc/cdi/v.yaml", yaml)], &["v.example/class=0"]).unwrap();
    assert_eq!(
        edits.device_nodes[0].host_path.as_deref(),
        Some("/dev/real")
    );
    assert_eq!(
        (edits.additional_gids, edits.hooks[0].args[1].as_str()),
        (vec![44], "update")
    );
}

#[test]
fn cdi_file_must_be_complete_and_of_its_declared_version() {
    let wrong = |text: &str| SpecFile::parse(text.as_bytes(), false).unwrap_err();
    let with = |version: &str, kind: &str, name: &str, edits: &str| {
        format!(
            r#"{{"cdiVersion":"{version}","kind":"{kind}","devices":[{{"name":"{name}","containerEdits":{edits}}}]}}"#
        )
    };
    for (version, kind, name, edits, why) in [
        ("9.9.9", "v/c", "a", r#"{"env":["A=b"]}"#, "cdiVersion"),
        ("0.6.0", "v", "a", r#"{"env":["A=b"]}"#, "kind"),
        ("0.6.0", "v/c", "a", "{}", "empty containerEdits"),
        ("0.6.0", "v/c", "a", r#"{"env":["A"]}"#, "NAME=value"),
        (
            "0.6.0",
            "v/c",
            "a",
            r#"{"hooks":[{"hookName":"x","path":"/x"}]}"#,
            "hook",
        ),
        (
            "0.6.0",
            "v/c",
            "a",
            r#"{"deviceNodes":[{"path":"x"}]}"#,
            "absolute",
        ),
        (
            "0.6.0",
            "v/c",
            "a",
            r#"{"deviceNodes":[{"path":"/dev/x","type":"c","major":-1,"minor":3}]}"#,
            "/dev/x has a negative number",
        ),
        (
            "0.6.0",
            "v/c",
            "a",
            r#"{"deviceNodes":[{"path":"/dev/x","type":"b","major":8,"minor":-1}]}"#,
            "/dev/x has a negative number",
        ),
        (
            "0.6.0",
            "v/c",
            "a",
            r#"{"additionalGids":[1]}"#,
            "additionalGids needs a later",
        ),
        (
            "0.4.0",
            "v/c",
            "1",
            r#"{"env":["A=b"]}"#,
            "digit needs a later",
        ),
        (
            "0.3.0",
            "v/c",
            "a",
            r#"{"mounts":[{"hostPath":"/a","containerPath":"/b","type":"bind"}]}"#,
            "type",
        ),
    ] {
        let reason = wrong(&with(version, kind, name, edits));
        assert!(reason.contains(why), "{edits}: {reason}");
    }
    assert!(wrong(r#"{"cdiVersion":"0.6.0","kind":"v/c","devices":[]}"#).contains("no devices"));
}

#[test]
fn cdi_edits_replace_entries_of_the_same_name() {
    let json = r#"{"cdiVersion":"1.0.0","kind":"v/c","devices":[{"name":"a","containerEdits":{
        "env":["PATH=/new","B=2"],
        "deviceNodes":[{"path":"/dev/x","hostPath":"/dev/real","permissions":"r"},
            {"path":"/dev/y","type":"c","major":1,"minor":3,"uid":7,"permissions":"none"}],
        "mounts":[{"hostPath":"/lib/v","containerPath":"/usr/lib/v","options":["ro"]}],
        "hooks":[{"hookName":"createRuntime","path":"/bin/h","timeout":3}],
        "intelRdt":{"closID":"gold"},"additionalGids":[0,44,44]}}]}"#;
    let fs = files(&[("/etc/cdi/v.json", json)]);
    let edits = resolve(&["v/c=a".to_owned()], &["/etc/cdi".into()], &fs).unwrap();
    let mut process = oci::Process {
        terminal: false,
        user: oci::User {
            uid: 5,
            gid: 6,
            additional_gids: vec![6],
        },
        args: Vec::new(),
        env: vec!["A=1".to_owned(), "PATH=/old".to_owned()],
        cwd: "/".to_owned(),
        capabilities: oci::Capabilities::default(),
        rlimits: Vec::new(),
        no_new_privileges: false,
        apparmor_profile: None,
        oom_score_adj: None,
        selinux_label: None,
    };
    let mount = |destination: &str| oci::Mount {
        destination: destination.to_owned(),
        kind: "bind".to_owned(),
        source: "/old".to_owned(),
        options: Vec::new(),
    };
    let mut mounts = vec![mount("/usr"), mount("/usr/lib/v"), mount("/usr/lib/v/deep")];
    let mut linux = oci::Linux::default();
    let mut hooks = oci::Hooks::new();
    let target = Target {
        stage: None,
        process: &mut process,
        mounts: &mut mounts,
        linux: &mut linux,
        hooks: &mut hooks,
    };
    apply(&edits, target, &fs).unwrap();
    assert_eq!(process.env, ["A=1", "PATH=/new", "B=2"]);
    assert_eq!(process.user.additional_gids, [6, 44]);
    let x = &linux.devices[0];
    let y = &linux.devices[1];
    assert_eq!(
        (x.kind.as_str(), x.major, x.minor, x.file_mode, x.uid, x.gid),
        ("b", 8, 1, 0o640, 5, 6)
    );
    assert_eq!(
        (y.kind.as_str(), y.major, y.minor, y.file_mode, y.uid, y.gid),
        ("c", 1, 3, 0o666, 7, 6)
    );
    assert_eq!(
        linux.resources.devices.len(),
        1,
        "a node without permissions has no rule"
    );
    assert_eq!(linux.resources.devices[0].access, "r");
    let places: Vec<_> = mounts
        .iter()
        .map(|mount| (mount.destination.as_str(), mount.source.as_str()))
        .collect();
    assert_eq!(
        places,
        [
            ("/usr", "/old"),
            ("/usr/lib/v", "/lib/v"),
            ("/usr/lib/v/deep", "/old")
        ]
    );
    assert_eq!(mounts[1].options, ["rbind", "ro"]);
    assert_eq!(hooks["createRuntime"][0].timeout, Some(3));
    assert_eq!(
        linux.intel_rdt,
        Some(serde_json::json!({ "closID": "gold" }))
    );
}

/// A directory with these files, and the device `v.example/class=a` in the last one, `z.json`.
fn directory(files: impl IntoIterator<Item = String>) -> Files {
    let device = (PathBuf::from("/etc/cdi/z.json"), one("0.6.0", "a", "1"));
    let named = files.into_iter().enumerate();
    let named =
        named.map(|(number, text)| (PathBuf::from(format!("/etc/cdi/{number:04}.json")), text));
    Files(named.chain([device]).collect())
}

fn resolved_in(fs: &Files) -> Result<Edits> {
    resolve(&["v.example/class=a".to_owned()], &["/etc/cdi".into()], fs)
}

#[test]
fn the_files_of_a_directory_are_read_up_to_a_sum_and_the_one_beyond_it_is_named() {
    let long = " ".repeat(4 << 20);
    let mut fs = directory(std::iter::repeat_n(long, 16));
    let error = resolved_in(&fs).unwrap_err().report();
    let unread = "/etc/cdi/z.json: it and the files after it are not read: the directory may have at most 67108864 bytes";
    assert!(
        error.contains(unread) && error.ends_with("and 7 more"),
        "{error}"
    );
    let listing = list(&["/etc/cdi".into()], &fs);
    assert_eq!(listing.devices().count(), 0);
    assert!(listing.bad[0].why.starts_with(unread), "{:?}", listing.bad);
    fs.0.remove(Path::new("/etc/cdi/0000.json"));
    assert_eq!(resolved_in(&fs).unwrap().env, ["ALL=1", "WHICH=1"]);
    assert_eq!(list(&["/etc/cdi".into()], &fs).devices().count(), 1);
    // What was read of files that are too long counts too.
    let longer = " ".repeat((4 << 20) + 1);
    assert!(resolved_in(&directory(std::iter::repeat_n(longer, 16))).is_err());
}

#[test]
fn only_so_many_files_of_a_directory_are_read() {
    let other = r#"{"cdiVersion":"0.6.0","kind":"v.example/other","strange":1}"#.to_owned();
    let error = resolved_in(&directory(vec![other.clone(); MAX_FILES]))
        .unwrap_err()
        .report();
    assert!(
        error.contains("/etc/cdi/z.json: it and the files after it are not read"),
        "{error}"
    );
    assert!(resolved_in(&directory(vec![other; MAX_FILES - 1])).is_ok());
}

#[test]
fn a_listing_has_only_so_many_devices_and_nodes() {
    let nodes = vec![r#"{"path":"/d"}"#; 100_000].join(",");
    let many = format!(
        r#"{{"cdiVersion":"0.6.0","kind":"v.example/many","devices":[{{"name":"a","containerEdits":{{"deviceNodes":[{nodes}]}}}}]}}"#
    );
    let listing = list(&["/etc/cdi".into()], &directory([many]));
    assert_eq!(
        listing.devices().map(|(kind, _)| kind).collect::<Vec<_>>(),
        ["v.example/class"]
    );
    assert!(
        listing.bad[0]
            .why
            .starts_with("/etc/cdi/0000.json: its devices (1) are left out"),
        "{:?}",
        listing.bad
    );
}

#[test]
fn the_reason_why_a_file_is_not_understood_is_short() {
    let bad = format!(
        r#"{{"cdiVersion":"0.6.0","kind":"v.example/b","devices":[{{"name":"b","containerEdits":{{"env":["{}"]}}}}]}}"#,
        "ä".repeat(1 << 20)
    );
    let listing = list(&["/etc/cdi".into()], &directory([bad]));
    assert!(
        listing.bad[0].why.len() < 400 && listing.bad[0].why.contains("env"),
        "{:?}",
        listing.bad
    );
}

#[test]
fn a_device_of_a_later_directory_hides_that_it_is_twice_in_an_earlier_one() {
    let file = one("0.6.0", "a", "1");
    let later = one("0.6.0", "a", "2");
    let list = [
        ("/etc/cdi/v.json", file.as_str()),
        ("/etc/cdi/w.json", &file),
        ("/var/run/cdi/v.json", &later),
    ];
    assert_eq!(
        resolved(&list, &["v.example/class=a"]).unwrap().env,
        ["ALL=2", "WHICH=2"]
    );
    // Another device of the same kind is looked for there all the same.
    let other = one("0.6.0", "b", "3");
    let list = [&list[..], &[("/etc/cdi/x.json", &other)]].concat();
    let names = ["v.example/class=b", "v.example/class=a"];
    assert_eq!(
        resolved(&list, &names).unwrap().env,
        ["ALL=3", "WHICH=3", "ALL=2", "WHICH=2"]
    );
}
