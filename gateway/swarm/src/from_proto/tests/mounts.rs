//! Mounts.

use swarm::mount::{BindOptions, TmpfsOptions, Type, VolumeOptions};
use switchyard_core::spec::{MissingSource, Mount, MountSource, Propagation};

use super::*;

fn mount(kind: Type, source: &str, target: &str) -> swarm::Mount {
    swarm::Mount {
        r#type: kind.into(),
        source: source.into(),
        target: target.into(),
        ..Default::default()
    }
}

fn with(mounts: Vec<swarm::Mount>) -> swarm::ContainerSpec {
    swarm::ContainerSpec {
        mounts,
        ..container()
    }
}

#[track_caller]
fn one(wire: swarm::Mount) -> Mount {
    planned(with(vec![wire])).task.mounts.remove(0)
}

#[test]
fn bind_has_its_options() {
    let made = one(mount(
        Type::Bind,
        "/srv/{{.Service.Name}}",
        "/data/{{.Task.Slot}}/",
    ));
    assert_eq!(
        made.source,
        MountSource::Host {
            path: "/srv/web".into(),
            missing: MissingSource::Fail
        }
    );
    assert_eq!(
        (made.destination.to_str(), made.readonly),
        (Some("/data/3"), false)
    );
    let options = BindOptions {
        propagation: 2,
        createmountpoint: true,
        nonrecursive: true,
        ..Default::default()
    };
    let made = one(swarm::Mount {
        bind_options: Some(options),
        ..mount(Type::Bind, "/srv", "/data")
    });
    assert_eq!(
        made.source,
        MountSource::Host {
            path: "/srv".into(),
            missing: MissingSource::CreateDir
        }
    );
    assert_eq!(
        (made.propagation, made.options),
        (Propagation::Bidirectional, strings(&["bind"]))
    );
    invalid(
        with(vec![mount(Type::Bind, "srv", "/data")]),
        "container.mounts[0].source: \"srv\" is not an absolute path",
    );
    invalid(
        with(vec![mount(Type::Bind, "/srv", "data")]),
        "container.mounts[0].target: invalid mount target, must be an absolute path: \"data\"",
    );
    invalid(
        with(vec![mount(Type::Bind, "/srv", "/..")]),
        "container.mounts[0].target: invalid mount target, must not be '/'",
    );
    invalid(
        with(vec![
            mount(Type::Bind, "/a", "/x"),
            mount(Type::Bind, "/b", "/x/"),
        ]),
        "container.mounts[1]: Duplicate mount point: /x",
    );
}

#[test]
fn read_only_mount_is_recursive_where_the_node_can() {
    let able = PlanContext {
        recursive_readonly_mounts: true,
        ..node()
    };
    let recursive = |facts: &PlanContext, options: BindOptions| {
        let wire = swarm::Mount {
            readonly: true,
            bind_options: Some(options),
            ..mount(Type::Bind, "/a", "/b")
        };
        plan(&task(1, with(vec![wire])), facts, &Dependencies::default())
            .unwrap()
            .task
            .mounts[0]
            .recursive_readonly
    };
    assert!(recursive(&able, BindOptions::default()));
    assert!(!recursive(&node(), BindOptions::default()));
    assert!(!recursive(
        &able,
        BindOptions {
            readonlynonrecursive: true,
            ..Default::default()
        }
    ));
    assert!(!recursive(
        &able,
        BindOptions {
            propagation: 4,
            ..Default::default()
        }
    ));
    assert!(recursive(
        &node(),
        BindOptions {
            readonlyforcerecursive: true,
            ..Default::default()
        }
    ));
    let options = BindOptions {
        readonlyforcerecursive: true,
        ..Default::default()
    };
    invalid(
        with(vec![swarm::Mount {
            bind_options: Some(options),
            ..mount(Type::Bind, "/a", "/b")
        }]),
        "container.mounts[0].bind_options.readonlyforcerecursive: it needs a recursive mount that is read-only",
    );
}

#[test]
fn volume_without_a_name_is_the_tasks_own() {
    let made = planned(with(vec![
        mount(Type::Volume, "", "/a"),
        mount(Type::Volume, "data", "/b"),
    ]));
    let MountSource::Volume { name, .. } = &made.task.mounts[0].source else {
        panic!("{made:?}")
    };
    assert_eq!(
        (name.len(), made.anonymous_volumes.as_slice()),
        (64, [name.clone()].as_slice())
    );
    let named = MountSource::Volume {
        name: "data".into(),
        sub_path: PathBuf::new(),
        copied: true,
    };
    assert_eq!(made.task.mounts[1].source, named);
    let other = planned_task(&task(2, with(vec![mount(Type::Volume, "", "/a")])));
    assert_ne!(other.anonymous_volumes[0], *name);
    invalid(
        with(vec![mount(Type::Volume, "../x", "/a")]),
        "container.mounts[0].source: \"../x\" cannot be the name of a volume",
    );
}

#[test]
fn volume_has_a_sub_path_and_no_other_driver() {
    let options = |options| swarm::Mount {
        volume_options: Some(options),
        ..mount(Type::Volume, "v", "/a")
    };
    let made = one(options(VolumeOptions {
        subpath: "db/./x".into(),
        ..Default::default()
    }));
    assert_eq!(
        made.source,
        MountSource::Volume {
            name: "v".into(),
            sub_path: "db/x".into(),
            copied: true
        }
    );
    for subpath in ["/x", "..", "a/../b"] {
        let wire = options(VolumeOptions {
            subpath: subpath.into(),
            ..Default::default()
        });
        let error = refusal(&task(1, with(vec![wire]))).report();
        assert!(
            error.starts_with("container.mounts[0].volume_options.subpath: "),
            "{error}"
        );
    }
    let nocopy = VolumeOptions {
        nocopy: true,
        ..Default::default()
    };
    let made = one(options(nocopy));
    assert_eq!(
        made.source,
        MountSource::Volume {
            name: "v".into(),
            sub_path: PathBuf::new(),
            copied: false
        }
    );
    let driver = |name: &str, option: Option<&str>| VolumeOptions {
        driver_config: Some(swarm::Driver {
            name: name.into(),
            options: option
                .map(|option| (option.to_owned(), String::new()))
                .into_iter()
                .collect(),
        }),
        ..Default::default()
    };
    one(options(driver("local", None)));
    unsupported(
        with(vec![options(driver("rexray", None))]),
        "container.mounts[0].volume_options.driver_config.name: there is no volume driver \"rexray\"",
    );
    unsupported(
        with(vec![options(driver("local", Some("size")))]),
        "container.mounts[0].volume_options.driver_config.options.size: ",
    );
}

#[test]
fn options_of_a_volume_driver_are_mounted() {
    let volume = |list: &[(&str, &str)], subpath: &str| swarm::Mount {
        volume_options: Some(VolumeOptions {
            driver_config: Some(swarm::Driver {
                name: "local".into(),
                options: list
                    .iter()
                    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                    .collect(),
            }),
            subpath: subpath.into(),
            ..Default::default()
        }),
        ..mount(Type::Volume, "v", "/a")
    };
    let bind = [("type", "none"), ("device", "/srv"), ("o", "bind,ro")];
    let made = one(volume(&bind, ""));
    let source = MountSource::Host {
        path: "/srv".into(),
        missing: MissingSource::Fail,
    };
    assert_eq!(
        (made.source, made.readonly, made.options),
        (source, true, strings(&["bind"]))
    );
    let tmpfs = [
        ("type", "tmpfs"),
        ("device", "x"),
        ("o", "size=1m,mode=700"),
    ];
    let made = one(volume(&tmpfs, ""));
    let source = MountSource::Tmpfs {
        size_bytes: 1 << 20,
        mode: 0o700,
    };
    assert_eq!(
        (made.source, made.readonly, made.options),
        (source, false, Vec::new())
    );
    unsupported(
        with(vec![volume(&bind, "sub")]),
        "container.mounts[0].volume_options.subpath: a file system by options",
    );
    let nfs = [
        ("type", "nfs"),
        ("device", ":/a"),
        ("o", "addr=10.0.0.1,ro,noexec"),
    ];
    let made = one(volume(&nfs, ""));
    let source = MountSource::Nfs {
        export: ":/a".into(),
        server: "10.0.0.1".into(),
        options: Vec::new(),
    };
    assert_eq!(
        (made.source, made.readonly, made.options),
        (source, true, strings(&["noexec"]))
    );
    unsupported(
        with(vec![volume(
            &[("type", "ext4"), ("device", "/dev/sda1")],
            "",
        )]),
        "container.mounts[0].volume_options.driver_config.options.type: \"ext4\" cannot be mounted here",
    );
}

#[test]
fn tmpfs_has_size_mode_and_options() {
    let options = |options| swarm::Mount {
        tmpfs_options: Some(options),
        ..mount(Type::Tmpfs, "", "/t")
    };
    let made = one(mount(Type::Tmpfs, "", "/t"));
    assert_eq!(
        made.source,
        MountSource::Tmpfs {
            size_bytes: 0,
            mode: 0o1777
        }
    );
    assert_eq!(made.options, strings(&["noexec"]));
    let text = r#"[["exec"],["nosuid"]]"#;
    let made = one(options(TmpfsOptions {
        size_bytes: 1 << 20,
        mode: (1 << 20) | 0o700,
        options: text.into(),
    }));
    assert_eq!(
        made.source,
        MountSource::Tmpfs {
            size_bytes: 1 << 20,
            mode: 0o1700
        }
    );
    assert_eq!(made.options, strings(&["nosuid"]));
    let made = one(options(TmpfsOptions {
        options: r#"[["uid","7"],["gid","8"],["mode","700"]]"#.into(),
        ..Default::default()
    }));
    assert_eq!(
        made.source,
        MountSource::Tmpfs {
            size_bytes: 0,
            mode: 0o700
        }
    );
    assert_eq!(made.options, strings(&["noexec", "uid=7", "gid=8"]));
    // Managers of Docker 28 write no options in one of these ways.
    for none in ["", "null", "[]"] {
        let made = one(options(TmpfsOptions {
            size_bytes: 1 << 20,
            options: none.into(),
            ..Default::default()
        }));
        assert_eq!(made.options, strings(&["noexec"]), "{none:?}");
    }
    invalid(
        with(vec![options(TmpfsOptions {
            options: r#"[["uid","root"]]"#.into(),
            ..Default::default()
        })]),
        "container.mounts[0].tmpfs_options.options: [\"uid\", \"root\"] is no option of a tmpfs that can be set here",
    );
    let error = refusal(&task(
        1,
        with(vec![options(TmpfsOptions {
            options: "x".into(),
            ..Default::default()
        })]),
    ));
    assert!(
        error
            .to_string()
            .starts_with("container.mounts[0].tmpfs_options.options: it is no JSON"),
        "{error}"
    );
    invalid(
        with(vec![options(TmpfsOptions {
            size_bytes: -1,
            ..Default::default()
        })]),
        "container.mounts[0].tmpfs_options.size_bytes: -1 is negative",
    );
    invalid(
        with(vec![mount(Type::Tmpfs, "x", "/t")]),
        "container.mounts[0].source: a tmpfs has none",
    );
}

#[test]
fn mounts_of_other_kinds_are_refused_by_name() {
    unsupported(
        with(vec![mount(Type::Npipe, "x", "/t")]),
        "container.mounts[0].type: named pipes",
    );
    unsupported(
        with(vec![mount(Type::Cluster, "x", "/t")]),
        "container.mounts[0].type: volumes of the cluster",
    );
    let unknown = swarm::Mount {
        r#type: 9,
        ..mount(Type::Bind, "/a", "/t")
    };
    unsupported(
        with(vec![unknown]),
        "container.mounts[0].type: 9 is not known",
    );
}
