//! The rules of mounts.

use std::collections::BTreeMap;

use switchyard_core::spec::{IdMap, IdRange, UserNamespace};
use switchyard_runtime_spec::SandboxUsers;
use switchyard_runtime_spec::infra::{self, InfraInput};

use super::*;

#[test]
fn mounts_are_sorted_by_depth_and_replace_the_default_ones() {
    let mut case = Case::plain();
    case.task.mounts = vec![
        bind("/x/y/z", "/a"),
        bind("/x", "/b"),
        bind("/dev/shm", "/c"),
        bind("/etc//hosts/", "/d"),
    ];
    let spec = case.build().unwrap().spec;
    let list = destinations(&spec);
    let place = |path: &str| list.iter().position(|other| *other == path).unwrap();
    assert!(
        place("/x") < place("/x/y/z") && place("/dev") < place("/dev/shm"),
        "{list:?}"
    );
    for path in ["/dev/shm", "/etc/hosts"] {
        assert_eq!(
            list.iter().filter(|other| **other == path).count(),
            1,
            "{list:?}"
        );
    }
    assert_eq!(spec["mounts"][place("/etc/hosts")]["source"], "/d");
}

#[test]
fn mount_at_dev_replaces_everything_below() {
    let mut case = Case::plain();
    case.task.mounts = vec![bind("/dev", "/dev")];
    let spec = case.build().unwrap().spec;
    assert!(
        destinations(&spec)
            .iter()
            .all(|path| !path.starts_with("/dev/")),
        "{:?}",
        destinations(&spec)
    );
}

#[test]
fn shm_follows_the_ipc_namespace() {
    let shm = |case: &Case| {
        let spec = case.build().unwrap().spec;
        let place = destinations(&spec)
            .iter()
            .position(|path| *path == "/dev/shm")
            .unwrap();
        (
            spec["mounts"][place]["type"].clone(),
            spec["mounts"][place]["source"].clone(),
        )
    };
    let mut case = Case::plain();
    assert_eq!(
        shm(&case),
        ("bind".into(), "/run/switchyard/sandbox/shm".into())
    );
    case.sandbox.shm = None;
    assert_eq!(shm(&case), ("tmpfs".into(), "shm".into()));
    case.sandbox.ipc = Namespace::Host;
    assert_eq!(shm(&case), ("bind".into(), "/dev/shm".into()));
}

#[test]
fn mount_overrides_an_image_volume() {
    let mut case = Case::plain();
    let volume = |path: &str| ImageVolume {
        destination: PathBuf::from(path),
        source: ResolvedSource::unstaged(PathBuf::from("/volumes/1")),
    };
    case.volumes = vec![volume("/data"), volume("/cache")];
    case.task.mounts = vec![bind("/data", "/mine")];
    let spec = case.build().unwrap().spec;
    let source = |path: &str| {
        let place = destinations(&spec)
            .iter()
            .position(|other| *other == path)
            .unwrap();
        spec["mounts"][place]["source"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        (source("/data").as_str(), source("/cache").as_str()),
        ("/mine", "/volumes/1")
    );
}

#[test]
fn invalid_mounts_are_rejected_by_name() {
    let with = |option: &str| Mount {
        options: words(&[option]),
        ..bind("/a", "/b")
    };
    let propagated = |propagation, source: &str| Mount {
        propagation,
        ..bind("/a", source)
    };
    for mount in [
        bind("relative", "/b"),
        bind("/", "/b"),
        bind("/a/../b", "/b"),
        bind("/a", "b"),
        bind("/a", "/missing"),
        with("ro"),
        with("a,b"),
        with("size=1m"),
        with("rshared"),
        with(""),
        propagated(Propagation::HostToTask, "/private"),
        propagated(Propagation::Bidirectional, "/private"),
        propagated(Propagation::Bidirectional, "/slave"),
        Mount {
            recursive_readonly: true,
            ..bind("/a", "/b")
        },
        Mount {
            recursive_readonly: true,
            readonly: true,
            ..propagated(Propagation::HostToTask, "/shared")
        },
        Mount {
            source: MountSource::Tmpfs {
                size_bytes: 0,
                mode: 0o17777,
            },
            ..bind("/a", "/b")
        },
    ] {
        let mut case = Case::plain();
        case.task.mounts = vec![mount.clone()];
        assert!(
            case.refused().starts_with("mounts: "),
            "{mount:?}: {}",
            case.refused()
        );
    }
}

#[test]
fn last_mount_at_a_path_is_the_one_that_is_made() {
    let tmpfs = |destination: &str| {
        let source = MountSource::Tmpfs {
            size_bytes: 0,
            mode: 0o1777,
        };
        Mount::new(destination, source)
    };
    for (asked, at, source) in [
        (vec![bind("/d", "/b"), bind("/d", "/c")], "/d", "/c"),
        (vec![bind("/d", "/b"), bind("/d/", "/c")], "/d", "/c"),
        (vec![bind("//d/.", "/b"), bind("/d", "/c")], "/d", "/c"),
        (vec![bind("/d", "/b"), tmpfs("/d")], "/d", "tmpfs"),
        (
            vec![tmpfs("/d"), bind("/d", "/b"), bind("/x", "/y")],
            "/d",
            "/b",
        ),
        // What is below it is in the later one.
        (
            vec![bind("/d", "/b"), bind("/d/e", "/f"), bind("/d", "/c")],
            "/d/e",
            "/f",
        ),
        (
            vec![bind("/etc/hosts", "/b"), bind("/etc/hosts", "/c")],
            "/etc/hosts",
            "/c",
        ),
    ] {
        let mut case = Case::plain();
        case.task.mounts = asked.clone();
        let spec = case.build().unwrap().spec;
        let list = destinations(&spec);
        let places: Vec<_> = (0..list.len()).filter(|place| list[*place] == at).collect();
        assert_eq!(places.len(), 1, "{asked:?}: {list:?}");
        assert_eq!(spec["mounts"][places[0]]["source"], source, "{asked:?}");
    }
}

/// The mounts at `/sys` from the first one to the last, which is the one that is seen: the type of each, and whether it
/// is writable.
fn at_sys(spec: &Value) -> Vec<(&str, bool)> {
    let mounts = spec["mounts"].as_array().unwrap().iter();
    mounts
        .filter(|mount| mount["destination"] == "/sys")
        .map(|mount| {
            let options = mount["options"].as_array().unwrap();
            let readonly = options
                .iter()
                .any(|option| option == "ro" || option == "rro");
            (mount["type"].as_str().unwrap(), !readonly)
        })
        .collect()
}

const READONLY: &[(&str, bool)] = &[("sysfs", false)];
const WRITABLE: &[(&str, bool)] = &[("sysfs", true)];
const COVERED: &[(&str, bool)] = &[("sysfs", true), ("tmpfs", true), ("sysfs", false)];

#[test]
fn sysfs_is_mounted_writable_first_wherever_privileged_tasks_may_run() {
    let host = || Namespace::Host;
    let own = || Namespace::Path(PathBuf::from("/run/switchyard/ns/net"));
    let bound: &[(&str, bool)] = &[("bind", true)];
    for (network, sandbox, shared, task, mounts, expected) in [
        (own(), false, false, false, vec![], READONLY),
        (own(), true, false, false, vec![], COVERED),
        (own(), true, false, true, vec![], WRITABLE),
        // Another sandbox in the network namespace may have privileged tasks.
        (own(), false, true, false, vec![], COVERED),
        (own(), true, true, true, vec![], WRITABLE),
        (host(), false, false, false, vec![], READONLY),
        (host(), true, false, false, vec![], READONLY),
        (host(), true, false, true, vec![], WRITABLE),
        // The task's own mount stays as it asked for it.
        (own(), true, false, false, vec![bind("/sys", "/b")], bound),
        (
            own(),
            true,
            false,
            false,
            vec![bind("/sys/fs", "/b")],
            COVERED,
        ),
    ] {
        let mut case = Case::plain();
        case.sandbox.network = network;
        case.sandbox.privileged = sandbox;
        case.sandbox.network_shared = shared;
        case.task.security.privileged = task;
        case.task.mounts = mounts;
        let what = format!("{sandbox} {shared} {task} {:?}", case.task.mounts);
        let spec = case.build().unwrap().spec;
        assert_eq!(at_sys(&spec), expected, "{what}");
        let list = destinations(&spec);
        let last = list.iter().rposition(|other| *other == "/sys");
        let cgroup = list.iter().position(|other| *other == "/sys/fs/cgroup");
        assert!(last < cgroup, "{what}: {list:?}");
    }
}

#[test]
fn sysfs_of_the_host_is_bound_where_a_user_namespace_has_no_rights_to_mount_one() {
    let ids = IdMap::new(vec![IdRange {
        inside: 0,
        host: 100_000,
        length: 65_536,
    }])
    .unwrap();
    for (network, users, recursive, kind, access) in [
        (Namespace::Host, false, true, "sysfs", "ro"),
        (Namespace::Host, true, true, "bind", "rro"),
        (Namespace::Host, true, false, "bind", "ro"),
        (Namespace::Path("/ns/net".into()), true, true, "sysfs", "ro"),
    ] {
        let mut case = Case::plain();
        case.sandbox.network = network;
        case.recursive_readonly = recursive;
        case.sandbox.users = users.then(|| SandboxUsers {
            path: "/ns/user".into(),
            map: UserNamespace {
                uids: ids.clone(),
                gids: ids.clone(),
            },
        });
        let spec = case.build().unwrap().spec;
        assert_eq!(at_sys(&spec), [(kind, false)]);
        let list = destinations(&spec);
        let place = list.iter().position(|other| *other == "/sys").unwrap();
        let options = spec["mounts"][place]["options"].as_array().unwrap();
        assert!(options.contains(&access.into()), "{options:?}");
    }
}

#[test]
fn infra_process_does_not_make_sysfs_read_only_for_privileged_tasks() {
    for (privileged, expected) in [(false, READONLY), (true, COVERED)] {
        let mut case = Case::plain();
        case.sandbox.privileged = privileged;
        let built = infra::build(&InfraInput {
            command: words(&["/pause"]),
            user: &case.user,
            sandbox: &case.sandbox,
            host: &case.host,
            cgroups_path: "/kubepods/pod1/sandbox",
            annotations: BTreeMap::new(),
        });
        assert_eq!(at_sys(&built.unwrap().spec), expected, "{privileged}");
    }
}

#[test]
fn missing_recursive_read_only_support_is_reported_first() {
    let mut case = Case::plain();
    case.recursive_readonly = false;
    case.task.mounts = vec![Mount {
        readonly: true,
        recursive_readonly: true,
        ..bind("/a", "/b")
    }];
    let error = case.build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unimplemented);
    assert_eq!(
        error.reason(),
        Some(Reason::RecursiveReadonlyMount),
        "{error:?}"
    );
}

#[test]
fn strongest_propagation_applies_to_the_root() {
    let propagation = |list: &[(Propagation, &str, &str)]| {
        let mut case = Case::plain();
        case.task.mounts = list
            .iter()
            .map(|(p, to, from)| Mount {
                propagation: *p,
                ..bind(to, from)
            })
            .collect();
        case.build().unwrap().spec["linux"]["rootfsPropagation"].clone()
    };
    let both = (Propagation::Bidirectional, "/a", "/shared");
    let down = (Propagation::HostToTask, "/b", "/slave");
    assert_eq!(propagation(&[both, down]), "rshared");
    assert_eq!(propagation(&[down, both]), "rshared");
    assert_eq!(propagation(&[down]), "rslave");
    assert_eq!(propagation(&[]), Value::Null);
}

/// The OCI mount of a mount at `/x` that is staged at `/stage/0`.
fn staged(requested: Mount, staging: Staging) -> switchyard_core::Result<Value> {
    let mut case = Case::plain();
    let source = ResolvedSource {
        path: PathBuf::from("/stage/0"),
        staging,
    };
    case.staged = vec![ResolvedMount {
        requested,
        source,
        volume: None,
    }];
    let spec = case.build()?.spec;
    let place = destinations(&spec)
        .iter()
        .position(|other| *other == "/x")
        .unwrap();
    Ok(spec["mounts"][place].clone())
}

#[test]
fn staged_source_is_what_the_runtime_mounts() {
    let name = || "0".to_owned();
    let source = |source| Mount {
        source,
        ..bind("/x", "/unused")
    };
    let image = source(MountSource::Image {
        reference: "i".to_owned(),
        sub_path: PathBuf::new(),
    });
    let below = source(MountSource::Beneath {
        root: "/shared".into(),
        path: "a".into(),
    });
    let of_image = Staging::Image {
        name: name(),
        id: "sha256:1".to_owned(),
        top: None,
    };
    let mapped = |path: &str| Staging::IdMapped {
        name: name(),
        path: path.into(),
    };
    let beneath = |root: &str| Staging::Beneath {
        name: name(),
        root: root.into(),
        path: "a".into(),
        shared: false,
    };
    let both_ways = |mount: &Mount| Mount {
        propagation: Propagation::Bidirectional,
        ..mount.clone()
    };
    for (mount, staging, options) in [
        (image, of_image, ["rbind", "rprivate", "ro"]),
        (
            source(MountSource::Volume {
                name: "v".to_owned(),
                sub_path: PathBuf::new(),
                copied: true,
            }),
            mapped("/v"),
            ["rbind", "rprivate", "rw"],
        ),
        (
            both_ways(&bind("/x", "/link")),
            mapped("/shared/a"),
            ["rbind", "rshared", "rw"],
        ),
        (
            both_ways(&below),
            beneath("/shared"),
            ["rbind", "rshared", "rw"],
        ),
    ] {
        let expected = serde_json::json!({
            "destination": "/x", "type": "bind", "source": "/stage/0", "options": options,
        });
        assert_eq!(
            staged(mount.clone(), staging).unwrap(),
            expected,
            "{mount:?}"
        );
    }
    // The propagation of the host's own path counts, not that of the staging directory.
    let refused = staged(both_ways(&below), beneath("/private")).unwrap_err();
    assert!(
        refused
            .report()
            .contains("/private/a is not on a shared mount"),
        "{}",
        refused.report()
    );
    let refused = staged(
        Mount {
            id_mapped: true,
            ..below
        },
        beneath("/shared"),
    )
    .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unimplemented);
}

#[test]
fn bind_option_disables_recursion() {
    let mut case = Case::plain();
    case.task.mounts = vec![Mount {
        options: words(&["bind", "nosuid"]),
        ..bind("/zzz", "/b")
    }];
    let spec = case.build().unwrap().spec;
    let place = destinations(&spec)
        .iter()
        .position(|other| *other == "/zzz")
        .unwrap();
    assert_eq!(
        spec["mounts"][place]["options"],
        Value::from(words(&["bind", "rprivate", "rw", "nosuid"]))
    );
}
