//! Tests of mounts and devices.

use super::*;

/// The mounts of a plan without the directories that every task has.
pub(super) fn own(plan: Plan) -> Vec<Mount> {
    plan.task.mounts.into_iter().skip(4).collect()
}

pub(super) fn host(path: &str, missing: MissingSource) -> MountSource {
    MountSource::Host {
        path: path.into(),
        missing,
    }
}

#[test]
fn relative_volumes_start_in_the_task_directory() {
    let made = planned([(
        "volumes",
        texts(&[
            "local/./a:/a:ro",
            "../alloc/data:/b",
            "/var/nomad/alloc/f3a1b2c4/x:/c",
        ]),
    )]);
    let fields: Vec<_> = made
        .confined
        .iter()
        .skip(4)
        .map(|within| (within.mount, within.field.clone()))
        .collect();
    assert_eq!(
        fields,
        [4, 5, 6].map(|mount| (mount, format!("volumes[{}]", mount - 4)))
    );
    let mounts = own(made);
    let dir = "/var/nomad/alloc/f3a1b2c4";
    let expected = ["web/local/a", "alloc/data", "x"]
        .map(|path| host(&format!("{dir}/{path}"), MissingSource::CreateDir));
    assert_eq!(
        mounts
            .iter()
            .map(|mount| mount.source.clone())
            .collect::<Vec<_>>(),
        expected
    );
    assert_eq!(
        mounts
            .iter()
            .map(|mount| mount.readonly)
            .collect::<Vec<_>>(),
        [true, false, false]
    );
}

#[test]
fn host_paths_need_operator_permission() {
    for source in [
        "/srv",
        "../../other",
        "/var/nomad/alloc/f3a1b2c4/../x",
        "/var/nomad/alloc/f3a1b2c4",
        "..",
    ] {
        let text = format!("volumes are not enabled; cannot mount host paths: {source:?}");
        invalid(
            "volumes",
            texts(&[&format!("{source}:/x")]),
            &format!("volumes[0]: {text}"),
        );
        let bind = map([
            ("type", "bind".into()),
            ("source", source.into()),
            ("target", "/x".into()),
        ]);
        invalid("mounts", list([bind]), &format!("mounts[0].source: {text}"));
    }
    let mounts = own(planned_for(
        generous(),
        [("volumes", texts(&["/srv/../etc:/x:rslave"]))],
    ));
    assert_eq!(mounts[0].source, host("/etc", MissingSource::CreateDir));
    assert_eq!(mounts[0].propagation, Propagation::HostToTask);
}

#[test]
fn named_volumes_need_operator_permission() {
    let volume = || list([map([("source", "data".into()), ("target", "/x".into())])]);
    let text = "volumes are not enabled; cannot mount volume: \"data\"";
    invalid("mount", volume(), &format!("mount[0].source: {text}"));
    let named = MountSource::Volume {
        name: "data".to_owned(),
        sub_path: PathBuf::new(),
        copied: true,
    };
    assert_eq!(
        own(planned_for(generous(), [("mount", volume())]))[0].source,
        named
    );
    let driver = |driver: &str| {
        task([
            ("volumes", texts(&["data:/x"])),
            ("volume_driver", driver.into()),
        ])
    };
    assert_eq!(
        own(plan(&driver("local"), &session(generous())).unwrap())[0].source,
        named
    );
    // A path is one of the host, whatever the driver is, and as the operator allows it.
    for (driver, source, path) in [
        ("local", "/srv/data", "/srv/data"),
        ("local", "/srv/../etc/x", "/etc/x"),
        ("pxd", "/srv/data", "/srv/data"),
        ("", "/", "/"),
    ] {
        let of_path = task([
            ("volumes", texts(&[&format!("{source}:/x")])),
            ("volume_driver", driver.into()),
        ]);
        assert_eq!(
            own(plan(&of_path, &session(generous())).unwrap())[0].source,
            host(path, MissingSource::CreateDir),
            "{driver} {source}"
        );
        let text =
            format!("volumes[0]: volumes are not enabled; cannot mount host paths: {source:?}");
        refused_task(
            &of_path,
            PluginConfig::default(),
            ErrorKind::InvalidArgument,
            &text,
        );
    }
    let text = "volume_driver: there is no volume driver \"pxd\"";
    refused_task(&driver("pxd"), generous(), ErrorKind::Unimplemented, text);
    let bad = task([(
        "mount",
        list([map([("source", "a/b".into()), ("target", "/x".into())])]),
    )]);
    let text = "mount[0].source: \"a/b\" cannot be the name of a volume";
    refused_task(&bad, generous(), ErrorKind::InvalidArgument, text);
}

#[test]
fn tmpfs_mounts_match_docker() {
    let mount = map([
        ("type", "tmpfs".into()),
        ("target", "/t".into()),
        ("tmpfs_options", map([("size", 4096.into())])),
    ]);
    let mounts = own(planned([
        ("mounts", list([mount])),
        ("tmpfs", texts(&["/u:exec,mode=700", "/v:uid=7,gid=8"])),
    ]));
    let tmpfs = |size_bytes, mode| MountSource::Tmpfs { size_bytes, mode };
    assert_eq!(
        (&mounts[0].source, &mounts[0].options),
        (&tmpfs(4096, 0o1777), &strings(&["noexec"]))
    );
    assert_eq!(
        (&mounts[1].source, &mounts[1].options),
        (&tmpfs(0, 0o700), &Vec::new())
    );
    assert_eq!(
        (&mounts[2].source, &mounts[2].options),
        (&tmpfs(0, 0o1777), &strings(&["noexec", "uid=7", "gid=8"]))
    );
}

#[test]
fn agent_mounts_are_applied_verbatim() {
    let mount = |mode: &str, label: &str| nomad::Mount {
        task_path: "/csi".to_owned(),
        host_path: "/mnt/csi".to_owned(),
        readonly: true,
        propagation_mode: mode.to_owned(),
        selinux_label: label.to_owned(),
        request_name: "vol".to_owned(),
    };
    let with = |mount| nomad::TaskConfig {
        mounts: vec![mount],
        ..task([])
    };
    for (mode, expected) in [
        ("", Propagation::Private),
        ("private", Propagation::Private),
        ("host-to-task", Propagation::HostToTask),
        ("bidirectional", Propagation::Bidirectional),
    ] {
        let made = plan(&with(mount(mode, "z")), &session(PluginConfig::default())).unwrap();
        assert_eq!(
            made.confined.len(),
            4,
            "what the agent names is not looked at"
        );
        let made = own(made).remove(0);
        assert_eq!(
            (made.propagation, made.readonly, made.selinux_relabel),
            (expected, true, Relabel::Shared)
        );
        assert_eq!(made.source, host("/mnt/csi", MissingSource::Fail));
    }
    let refused = |mount, text: &str| {
        refused_task(
            &with(mount),
            PluginConfig::default(),
            ErrorKind::InvalidArgument,
            text,
        );
    };
    let why = "\"both\" is none of private, host-to-task and bidirectional";
    refused(
        mount("both", ""),
        &format!("task.mounts[0].propagation_mode: {why}"),
    );
    refused(
        mount("", "y"),
        "task.mounts[0].selinux_label: \"y\" is neither \"z\" nor \"Z\"",
    );
    let relative = nomad::Mount {
        host_path: "mnt".to_owned(),
        ..mount("", "")
    };
    refused(
        relative,
        "task.mounts[0].host_path: \"mnt\" is not an absolute path",
    );
}

#[test]
fn mount_targets_are_absolute_and_unique() {
    invalid(
        "volumes",
        texts(&["a:b"]),
        "volumes[0]: invalid mount path: \"b\" mount path must be absolute",
    );
    invalid(
        "volumes",
        texts(&["a:/x/.."]),
        "volumes[0]: invalid specification: destination can't be '/'",
    );
    invalid(
        "volumes",
        texts(&["a:/x", "b:/y/../x"]),
        "volumes[1]: Duplicate mount point: /x",
    );
    invalid(
        "volumes",
        texts(&["a:/alloc/logs"]),
        "volumes[0]: Duplicate mount point: /alloc/logs",
    );
    let mount = nomad::Mount {
        task_path: "/local".to_owned(),
        host_path: "/x".to_owned(),
        ..Default::default()
    };
    let task = nomad::TaskConfig {
        mounts: vec![mount],
        ..task([])
    };
    let text = "task.mounts[0]: Duplicate mount point: /local";
    refused_task(
        &task,
        PluginConfig::default(),
        ErrorKind::InvalidArgument,
        text,
    );
    invalid(
        "mount",
        list([map([("type", "tmpfs".into())])]),
        "mount[0].target: invalid mount path: \"\" mount path must be absolute",
    );
    let env = BTreeMap::from([("NOMAD_TASK_DIR".to_owned(), "local".to_owned())]);
    let elsewhere = nomad::TaskConfig {
        env,
        ..super::task([])
    };
    let text = "task.env[\"NOMAD_TASK_DIR\"]: \"local\" is not an absolute path";
    refused_task(
        &elsewhere,
        PluginConfig::default(),
        ErrorKind::InvalidArgument,
        text,
    );
}

#[test]
fn devices_are_host_paths_or_cdi_names() {
    let device = |entries: Vec<(&str, &str)>| {
        Value::Map(
            entries
                .into_iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        )
    };
    let devices = list([
        device(vec![("host_path", "/dev/fuse")]),
        device(vec![
            ("host_path", "/dev/sda"),
            ("container_path", "/dev/x"),
            ("cgroup_permissions", "r"),
        ]),
        device(vec![("host_path", "vendor.com/gpu=0")]),
    ]);
    let given = nomad::Device {
        task_path: "/dev/x".to_owned(),
        host_path: "/dev/sdb".to_owned(),
        cgroup_permissions: String::new(),
    };
    let made = plan(
        &nomad::TaskConfig {
            devices: vec![given],
            ..task([("devices", devices)])
        },
        &session(PluginConfig::default()),
    );
    let made = made.unwrap().task;
    let node = |host: &str, inside: &str, permissions: &str| DeviceNode {
        host_path: host.into(),
        container_path: inside.into(),
        permissions: permissions.to_owned(),
    };
    assert_eq!(
        made.devices,
        [
            node("/dev/fuse", "/dev/fuse", "rwm"),
            node("/dev/sdb", "/dev/x", "rwm")
        ]
    );
    assert_eq!(made.cdi_devices, ["vendor.com/gpu=0"]);
    for (entries, text) in [
        (
            vec![("host_path", "fuse")],
            "devices[0].host_path: \"fuse\" is not an absolute path",
        ),
        (vec![], "devices[0].host_path: \"\" is not an absolute path"),
        (
            vec![("host_path", "/dev/a"), ("container_path", "/x/..")],
            "devices[0].container_path: no device can be at \"/\"",
        ),
        (
            vec![("host_path", "/dev/a"), ("cgroup_permissions", "rx")],
            "devices[0].cgroup_permissions: \"rx\" is not made of r, w and m",
        ),
    ] {
        invalid("devices", list([device(entries)]), text);
    }
}

#[test]
fn gpus_come_by_cdi_name_or_own_runtime() {
    let with = |gpus: &str, entries: nomad::TaskConfig| nomad::TaskConfig {
        device_env: BTreeMap::from([("NVIDIA_VISIBLE_DEVICES".to_owned(), gpus.to_owned())]),
        ..entries
    };
    let made = |task: &nomad::TaskConfig, config| {
        let plan = plan(task, &session(config)).unwrap();
        (plan.task.cdi_devices, plan.sandbox.handler)
    };
    let names = (
        strings(&["nvidia.com/gpu=GPU-1", "nvidia.com/gpu=GPU-2"]),
        String::new(),
    );
    assert_eq!(
        made(&with("GPU-1,GPU-2", task([])), PluginConfig::default()),
        names
    );
    assert_eq!(
        made(&with("none", task([])), PluginConfig::default()),
        (Vec::new(), String::new())
    );
    let whole = (
        strings(&["nvidia.com/gpu=0", "acme.com/gpu=1"]),
        String::new(),
    );
    assert_eq!(
        made(
            &with("nvidia.com/gpu=0,acme.com/gpu=1", task([])),
            PluginConfig::default()
        ),
        whole
    );
    let by_runtime = || PluginConfig {
        nvidia_runtime: "nvidia".to_owned(),
        ..PluginConfig::default()
    };
    assert_eq!(
        made(&with("GPU-1", task([])), by_runtime()),
        (Vec::new(), "nvidia".to_owned())
    );
    assert_eq!(
        made(&task([]), by_runtime()),
        (Vec::new(), String::new()),
        "it has no GPU"
    );
    let own = with("GPU-1", task([("runtime", "kata".into())]));
    assert_eq!(
        made(&own, PluginConfig::default()),
        (Vec::new(), "kata".to_owned())
    );
}

#[test]
fn root_fs_limit_is_a_project_quota() {
    let limits = planned([("storage_opt", pairs(&[("size", "1G")]))])
        .task
        .disk_limits;
    let expected = DiskLimit {
        places: LimitedPlaces::These(vec!["/".into()]),
        bytes: 1 << 30,
        project: Project::New,
        field: "storage_opt.size".into(),
    };
    assert_eq!(limits, [expected]);
    assert_eq!(
        planned([("shm_size", 4096.into())]).sandbox.shm_size_bytes,
        4096
    );
}

#[test]
fn mounts_and_devices_are_limited_in_number() {
    let many = |count: usize| {
        (0..count)
            .map(|number| format!("/t{number}"))
            .collect::<Vec<_>>()
    };
    let listed = |count: usize| Value::Array(many(count).into_iter().map(Value::from).collect());
    // Every task has four mounts of its own.
    assert_eq!(planned([("tmpfs", listed(1020))]).task.mounts.len(), 1024);
    let text = "tmpfs[1020]: the task has 1024 mounts without it, and may have 1024";
    invalid("tmpfs", listed(400_000), text);
    let devices = Value::Array(
        many(100_000)
            .into_iter()
            .map(|path| map([("host_path", path.into())]))
            .collect(),
    );
    invalid(
        "devices",
        devices,
        "devices[1024]: the task has 1024 devices without it, and may have 1024",
    );
}
