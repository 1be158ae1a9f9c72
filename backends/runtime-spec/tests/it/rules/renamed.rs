//! Devices under other names than the host's, where nobody may make nodes.

use switchyard_core::spec::{IdMap, IdRange, UserNamespace};
use switchyard_runtime_spec::SandboxUsers;

use super::*;

/// A runtime binds nodes there, by their paths inside.
#[test]
fn device_under_another_name_is_bound_in_a_user_namespace() {
    let ids = |first| {
        IdMap::new(vec![IdRange {
            inside: 0,
            host: first,
            length: 65_536,
        }])
        .unwrap()
    };
    let users = || SandboxUsers {
        path: "/ns/user".into(),
        map: UserNamespace {
            uids: ids(100_000),
            gids: ids(100_000),
        },
    };
    let cases = [
        ("/dev/fuse", "/dev/fuse", vec![]),
        ("/dev/fuse", "/dev/other", vec![("/dev/fuse", "/dev/other")]),
        // The name of a device that the node has too.
        ("/dev/fuse", "/dev/sda", vec![("/dev/fuse", "/dev/sda")]),
        ("/dev/snd", "/dev/snd", vec![]),
        (
            "/dev/snd",
            "/dev/audio",
            vec![
                ("/dev/snd/controlC0", "/dev/audio/controlC0"),
                ("/dev/snd/by-path/x", "/dev/audio/by-path/x"),
            ],
        ),
    ];
    for (host, inside, expected) in cases {
        for (of_sandbox, of_node) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut case = Case::plain();
            case.task.devices = vec![DeviceNode {
                host_path: PathBuf::from(host),
                container_path: PathBuf::from(inside),
                permissions: "rw".to_owned(),
            }];
            let nodes = |case: &Case| {
                let spec = case.build().unwrap().spec;
                spec["linux"]["devices"].as_array().map_or(0, Vec::len)
            };
            let all = nodes(&case);
            case.sandbox.users = of_sandbox.then(users);
            case.host.in_user_namespace = of_node;
            let spec = case.build().unwrap().spec;
            let mounts = spec["mounts"].as_array().unwrap().iter();
            let bound: Vec<_> = mounts
                .filter(|mount| {
                    mount["source"]
                        .as_str()
                        .is_some_and(|source| source.starts_with("/dev/"))
                })
                .map(|mount| {
                    assert_eq!(mount["options"], serde_json::json!(["bind"]));
                    (
                        mount["source"].as_str().unwrap(),
                        mount["destination"].as_str().unwrap(),
                    )
                })
                .collect();
            let expected = if of_sandbox || of_node {
                expected.clone()
            } else {
                vec![]
            };
            let what = format!("{host} at {inside}: {of_sandbox} {of_node}");
            assert_eq!(bound, expected, "{what}");
            assert_eq!(nodes(&case), all - expected.len(), "{what}");
            // Whether it may be used is decided by its numbers.
            let rules = spec["linux"]["resources"]["devices"].as_array().unwrap();
            assert!(rules.iter().any(|rule| rule["access"] == "rw"), "{what}");
        }
    }
}

/// A case in which the node is a container, and the device has this path inside.
fn fuse_at(inside: &str) -> Case {
    let mut case = Case::plain();
    case.host.in_user_namespace = true;
    case.task.devices = vec![DeviceNode {
        host_path: PathBuf::from("/dev/fuse"),
        container_path: PathBuf::from(inside),
        permissions: "rw".to_owned(),
    }];
    case
}

#[test]
fn device_in_place_of_one_that_the_runtime_makes_is_refused() {
    for (inside, tty) in [
        ("/dev/null", false),
        ("/dev/zero", false),
        ("/dev/full", false),
        ("/dev/random", false),
        ("/dev/urandom", false),
        ("/dev/tty", false),
        ("/dev/ptmx", false),
        ("/dev/console", true),
    ] {
        let fuse_at = |inside: &str| {
            let mut case = fuse_at(inside);
            case.task.stdio.tty = tty;
            case
        };
        let refused = fuse_at(inside).refused();
        let words = format!("devices: /dev/fuse cannot be {inside} in a user namespace");
        assert!(refused.starts_with(&words), "{refused}");
        let mut case = fuse_at(inside);
        case.host.in_user_namespace = false;
        case.build().unwrap();
    }
    for inside in ["/dev/shm/fuse", "/dev/net/null", "/null", "/dev/console"] {
        let spec = fuse_at(inside).build().unwrap().spec;
        // After the mount that it may be in.
        assert_eq!(destinations(&spec).last(), Some(&inside));
    }
}

/// A runtime makes no devices there, and a mount of one would make a file in the directory of the host.
#[test]
fn device_below_a_mounted_dev_is_left_to_the_runtime() {
    let tmpfs = MountSource::Tmpfs {
        size_bytes: 0,
        mode: 0o755,
    };
    for (mount, is_bound) in [
        (bind("/dev", "/dev"), false),
        (Mount::new("/dev", tmpfs), true),
    ] {
        let mut case = fuse_at("/dev/other");
        case.task.mounts = vec![mount];
        let spec = case.build().unwrap().spec;
        let is_mount = destinations(&spec).contains(&"/dev/other");
        assert_eq!(is_mount, is_bound, "{spec}");
        let nodes = spec["linux"]["devices"].as_array().map_or(0, Vec::len);
        assert_eq!(nodes, usize::from(!is_bound), "{spec}");
    }
}
