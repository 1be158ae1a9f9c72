//! Containers.

use switchyard_core::device::node;

use super::*;

/// A container with something in nearly every field.
fn rich() -> cri::ContainerConfig {
    let mut config = app();
    config.command = strings(&["nginx"]);
    config.args = strings(&["-g", "daemon off;"]);
    config.working_dir = "/srv".into();
    config.envs = vec![cri::KeyValue { key: "A".into(), value: vec![0xff, b'='] }];
    config.labels = map(&[("io.kubernetes.container.name", "app")]);
    config.log_path = "app/1.log".into();
    config.stdin = true;
    config.tty = true;
    config.mounts = vec![cri::Mount {
        container_path: "/etc/../data/".into(),
        host_path: "/mnt/x".into(),
        readonly: true,
        propagation: 1,
        selinux_relabel: true,
        ..Default::default()
    }];
    config.devices = vec![cri::Device {
        container_path: "/dev/a".into(),
        host_path: "/dev/b".into(),
        permissions: "rw".into(),
    }];
    config.stop_signal = cri::Signal::Sigint.into();
    let linux = config.linux.as_mut().expect("it is set");
    linux.resources = Some(cri::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        cpu_shares: 512,
        memory_limit_in_bytes: 1 << 20,
        memory_swap_limit_in_bytes: 1 << 20,
        oom_score_adj: 985,
        cpuset_cpus: "0-1,3".into(),
        cpuset_mems: String::new(),
        hugepage_limits: vec![cri::HugepageLimit { page_size: "2MB".into(), limit: 0 }],
        unified: map(&[("memory.high", "100")]),
    });
    linux.security_context = Some(cri::LinuxContainerSecurityContext {
        capabilities: Some(cri::Capability {
            add_capabilities: strings(&["NET_ADMIN"]),
            drop_capabilities: strings(&["ALL"]),
            add_ambient_capabilities: Vec::new(),
        }),
        run_as_user: Some(cri::Int64Value { value: 1000 }),
        run_as_group: Some(cri::Int64Value { value: 2000 }),
        supplemental_groups: vec![3000],
        supplemental_groups_policy: 1,
        readonly_rootfs: true,
        no_new_privs: true,
        masked_paths: strings(&["/proc/kcore"]),
        readonly_paths: strings(&["/proc/sys"]),
        seccomp: Some(cri::SecurityProfile::default()),
        seccomp_profile_path: "unconfined".into(),
        apparmor: Some(cri::SecurityProfile { profile_type: 2, localhost_ref: "localhost/mine".into() }),
        selinux_options: Some(cri::SeLinuxOption { level: "s0:c1".into(), ..Default::default() }),
        ..Default::default()
    });
    config
}

/// The expected task.
fn rich_task(config: &cri::ContainerConfig) -> TaskSpec {
    let request = crate::record::ContainerRecord { config: Some(config.clone()), ..Default::default() };
    let id = SandboxId::from_bytes(SANDBOX).to_string();
    TaskSpec {
        meta: Meta {
            owner: Owner::Kubernetes,
            name: format!("app_1_{id}"),
            labels: config.labels.clone(),
            created_at: now(),
            record: crate::record::encode(&request),
        },
        image: "sha256:abc".into(),
        command: strings(&["nginx"]),
        args: strings(&["-g", "daemon off;"]),
        cwd: Some("/srv".into()),
        env: vec![EnvVar { name: "A".into(), value: vec![0xff, b'='] }],
        unset_env: Vec::new(),
        user: UserSpec {
            user: Some(UserRef::Uid(1000)),
            gid: Some(2000),
            supplemental: vec![3000],
            named: Vec::new(),
            policy: GroupPolicy::Strict,
        },
        mounts: vec![Mount {
            destination: "/data".into(),
            source: MountSource::Host { path: "/mnt/x".into(), missing: MissingSource::CreateDir },
            readonly: true,
            recursive_readonly: false,
            propagation: Propagation::HostToTask,
            id_mapped: false,
            selinux_relabel: true,
            options: Vec::new(),
        }],
        devices: vec![DeviceNode { container_path: "/dev/a".into(), ..node("/dev/b".into(), "rw") }],
        cdi_devices: Vec::new(),
        leases: Vec::new(),
        compute: ComputeClaim::default(),
        security: Security {
            privileged: false,
            capabilities: CapabilityChanges {
                add: strings(&["NET_ADMIN"]),
                drop: strings(&["ALL"]),
                add_ambient: Vec::new(),
            },
            readonly_rootfs: true,
            no_new_privileges: true,
            seccomp: SeccompProfile::RuntimeDefault,
            apparmor: Some(AppArmorProfile::Localhost("mine".into())),
            selinux: Some(SelinuxLabel { level: "s0:c1".into(), ..SelinuxLabel::default() }),
            masked_paths: vec!["/proc/kcore".into()],
            readonly_paths: vec!["/proc/sys".into()],
        },
        rlimits: Vec::new(),
        throttles: Vec::new(),
        io_weights: Vec::new(),
        net_priority: None,
        disk_limits: Vec::new(),
        resources: rich_limits(),
        cgroup: None,
        pid: PidMode::Private,
        cgroup_namespace: None,
        init: false,
        stdio: Stdio {
            stdin: Stdin::Open,
            tty: true,
            output: Output::Log("/var/log/pods/shop_web_u-1/app/1.log".into()),
        },
        stop_signal: Signal::parse("INT"),
        annotations: map(&[
            ("io.kubernetes.cri.container-type", "container"),
            ("io.kubernetes.cri.sandbox-id", &id),
            ("io.kubernetes.cri.container-name", "app"),
            ("io.kubernetes.cri.image-name", "nginx:1"),
            ("io.kubernetes.cri.sandbox-name", "web"),
            ("io.kubernetes.cri.sandbox-namespace", "shop"),
            ("io.kubernetes.cri.sandbox-uid", "u-1"),
        ]),
    }
}

/// The expected limits.
fn rich_limits() -> Resources {
    Resources {
        cpu_shares: Some(CpuShares::clamped(512)),
        cpu_quota_us: CpuQuota::new(50_000).ok(),
        cpu_period_us: CpuPeriod::new(100_000).ok(),
        cpuset_cpus: CpuList::new("0-1,3").ok(),
        cpuset_mems: None,
        memory_limit_bytes: MemoryLimit::new(1 << 20).ok(),
        memory_swap_limit_bytes: MemoryLimit::new(1 << 20).ok(),
        memory_reservation_bytes: None,
        memory_swappiness: None,
        pids_limit: None,
        hugepages: vec![HugepageLimit { page_size: HugepageSize::new("2MB").unwrap(), limit_bytes: 0 }],
        oom_score_adj: OomScoreAdj::new(985).ok(),
        unified: [(CgroupFile::new("memory.high").unwrap(), "100".to_owned())].into(),
    }
}

#[test]
fn container_config_translates_to_a_task() {
    let expected = rich_task(&rich());
    assert_eq!(container_of(rich()).expect("it is well formed"), expected);
}

#[test]
fn container_with_only_an_image_gets_the_defaults() {
    let mut config = app();
    config.linux = None;
    let spec = container_of(config).expect("it is well formed");
    assert_eq!(
        spec.resources,
        Resources { oom_score_adj: Some(OomScoreAdj::default()), ..Resources::default() }
    );
    assert_eq!(spec.security, Security::default());
    assert_eq!(spec.user, UserSpec::default());
    assert_eq!(spec.stdio, Stdio { output: Output::Live, ..Stdio::default() });
    assert_eq!(spec.stop_signal, None);
}

#[test]
fn pid_namespace_defaults_to_the_pods() {
    use cri::NamespaceMode as Mode;
    let pid = |of_pod: Option<Mode>, own: Option<Mode>| {
        let options = |mode: Mode| cri::NamespaceOption {
            pid: mode.into(),
            target_id: "there".into(),
            ..Default::default()
        };
        let mut sandbox = pod();
        pod_context(&mut sandbox).namespace_options = of_pod.map(options);
        let mut config = app();
        context(&mut config).namespace_options = own.map(options);
        container_in(&sandbox, config, &Config::default()).expect("it is well formed").pid
    };
    assert_eq!(pid(None, None), PidMode::Sandbox);
    assert_eq!(pid(Some(Mode::Pod), Some(Mode::Pod)), PidMode::Sandbox);
    assert_eq!(pid(Some(Mode::Container), Some(Mode::Pod)), PidMode::Private);
    assert_eq!(pid(Some(Mode::Node), None), PidMode::Host);
    assert_eq!(pid(Some(Mode::Pod), Some(Mode::Container)), PidMode::Private);
    assert_eq!(pid(Some(Mode::Pod), Some(Mode::Node)), PidMode::Host);
    assert_eq!(pid(None, Some(Mode::Target)), PidMode::Target(TaskId::from_bytes([9; 32])));
}

#[test]
fn no_log_without_directory_or_path() {
    let mut sandbox = pod();
    sandbox.log_directory.clear();
    let mut config = app();
    config.log_path = "a.log".into();
    let spec = container_in(&sandbox, config, &Config::default()).expect("it is well formed");
    assert_eq!(spec.stdio.output, Output::Live);
}

#[test]
fn new_seccomp_field_overrides_the_old_one_and_default_applies() {
    let profile = |new: Option<(i32, &str)>, old: &str, settings: &Config| {
        let mut config = app();
        let context = context(&mut config);
        context.seccomp = new.map(|(profile_type, localhost_ref)| cri::SecurityProfile {
            profile_type,
            localhost_ref: localhost_ref.into(),
        });
        context.seccomp_profile_path = old.into();
        container_in(&pod(), config, settings).expect("it is well formed").security.seccomp
    };
    let config = Config::default();
    assert_eq!(profile(None, "", &config), SeccompProfile::Unconfined);
    let strict = Config { unset_seccomp: UnsetSeccomp::RuntimeDefault, ..Config::default() };
    assert_eq!(profile(None, "", &strict), SeccompProfile::RuntimeDefault);
    assert_eq!(profile(None, "unconfined", &strict), SeccompProfile::Unconfined);
    assert_eq!(profile(None, "docker/default", &config), SeccompProfile::RuntimeDefault);
    assert_eq!(profile(None, "localhost//a/b.json", &config), SeccompProfile::Localhost("/a/b.json".into()));
    assert_eq!(profile(Some((1, "")), "runtime/default", &config), SeccompProfile::Unconfined);
    assert_eq!(profile(Some((2, "/p.json")), "", &config), SeccompProfile::Localhost("/p.json".into()));
}

#[test]
fn malformed_container_is_rejected_by_field() {
    use ErrorKind::InvalidArgument as Invalid;
    let env = |key: &str, value: &[u8]| vec![cri::KeyValue { key: key.into(), value: value.to_vec() }];
    refuses(|c| c.metadata = None, Invalid, "config.metadata: it is missing");
    refuses(|c| c.metadata.as_mut().unwrap().name.clear(), Invalid, "config.metadata.name: it is empty");
    refuses(|c| c.image = None, Invalid, "config.image: it is missing");
    refuses(|c| c.image.as_mut().unwrap().image.clear(), Invalid, "config.image.image: it is empty");
    refuses(|c| c.command = strings(&["a", "b\0"]), Invalid, "config.command[1]: it contains a NUL byte");
    refuses(|c| c.working_dir = "srv".into(), Invalid, "config.working_dir: \"srv\" is not an absolute path");
    refuses(|c| c.envs = env("", b""), Invalid, "config.envs[0].key: \"\" is not a variable's name");
    refuses(|c| c.envs = env("a=b", b""), Invalid, "config.envs[0].key: \"a=b\" is not a variable's name");
    refuses(|c| c.envs = env("a", b"\0"), Invalid, "config.envs[0].value: it contains a NUL byte");
    refuses(
        |c| c.log_path = "/x.log".into(),
        Invalid,
        "config.log_path: \"/x.log\" must be relative to the sandbox's log directory",
    );
    refuses(|c| c.log_path = "../x.log".into(), Invalid, "config.log_path: \"../x.log\" contains \"..\"");
    refuses(|c| c.log_path = "x/".into(), Invalid, "config.log_path: \"x/\" names no file");
    refuses(|c| c.stop_signal = 99, Invalid, "config.stop_signal: 99 is not one of its values");
    refuses(
        |c| c.cdi_devices = vec![cri::CdiDevice { name: " ".into() }],
        Invalid,
        "config.CDI_devices[0]: it names no device",
    );
    refuses(
        |c| c.annotations = map(&[("cdi.k8s.io/x", "a/b=c,")]),
        Invalid,
        "config.annotations[\"cdi.k8s.io/x\"]: it names no device",
    );
}

#[test]
fn malformed_mount_or_device_is_rejected_by_field() {
    use ErrorKind::{InvalidArgument as Invalid, Unimplemented};
    let mount = |change: fn(&mut cri::Mount), kind, message: &str| {
        let change = |config: &mut cri::ContainerConfig| {
            let mut mount =
                cri::Mount { container_path: "/a".into(), host_path: "/b".into(), ..Default::default() };
            change(&mut mount);
            config.mounts = vec![mount];
        };
        refuses(change, kind, message);
    };
    let at = "config.mounts[0]";
    mount(
        |m| m.container_path = "a".into(),
        Invalid,
        &format!("{at}.container_path: \"a\" is not an absolute path"),
    );
    mount(|m| m.host_path.clear(), Invalid, &format!("{at}.host_path: \"\" is not an absolute path"));
    mount(|m| m.propagation = 3, Invalid, &format!("{at}.propagation: 3 is not one of its values"));
    mount(|m| m.recursive_read_only = true, Invalid, &format!("{at}.recursive_read_only: it needs readonly"));
    mount(
        |m| (m.recursive_read_only, m.readonly, m.propagation) = (true, true, 1),
        Invalid,
        &format!("{at}.recursive_read_only: it needs PROPAGATION_PRIVATE"),
    );
    mount(
        |m| (m.recursive_read_only, m.readonly) = (true, true),
        Unimplemented,
        &format!("{at}.recursive_read_only: the handler or the kernel of this node cannot do it"),
    );
    mount(|m| m.image = Some(cri::ImageSpec::default()), Invalid, &format!("{at}.image.image: it is empty"));
    mount(
        |m| m.image_sub_path = "x".into(),
        Invalid,
        &format!("{at}.image_sub_path: it is for image volumes only"),
    );
    mount(
        |m| m.gid_mappings = vec![cri::IdMapping::default()],
        Invalid,
        &format!("{at}.uids: there must be one mapping, not 0"),
    );
    let device = |permissions: &str, message: &str| {
        let device = cri::Device {
            container_path: "/dev/a".into(),
            host_path: "/dev/a".into(),
            permissions: permissions.into(),
        };
        refuses(|config| config.devices = vec![device], Invalid, message);
    };
    device("rwx", "config.devices[0].permissions: \"rwx\" is not made of r, w and m");
    device("", "config.devices[0].permissions: \"\" is not made of r, w and m");
}

#[test]
fn device_lease_annotations_are_consumed() {
    let token = |digit: &str| digit.repeat(32);
    let key = |token: &str| format!("devices.switchyard.io/{token}");
    let leases = |keys: &[String]| {
        let mut config = app();
        config.annotations = keys.iter().map(|key| (key.clone(), "ignored".to_owned())).collect();
        container_of(config)
    };
    let spec =
        leases(&[key(&token("b")), key(&token("1")), "switchyard.io/x".into()]).expect("it is well formed");
    let tokens: Vec<String> = spec.leases.iter().map(|claim| claim.token.to_string()).collect();
    assert_eq!(tokens, [token("1"), token("b")]);
    assert!(spec.leases.iter().all(|claim| claim.slots.is_empty()));
    assert!(!spec.annotations.keys().any(|key| key.starts_with("devices.")), "{:?}", spec.annotations);
    for wrong in [
        "",
        "x",
        "0123",
        &token("A"),
        &token("1")[1..],
        &format!("{}1", token("1")),
        &format!("../{}", token("1")),
    ] {
        let error = leases(&[key(&token("1")), key(wrong)]).expect_err("it is no token");
        let text = format!(
            "config.annotations[{:?}]: it names no lease of devices: expected 32 lower-case hexadecimal digits",
            key(wrong)
        );
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::InvalidArgument, text));
    }
    let many: Vec<String> = (0..100_000).map(|number| key(&format!("{number:032x}"))).collect();
    assert_eq!(leases(&many[..256]).expect("it may have as many").leases.len(), 256);
    let error = leases(&many).expect_err("they are too many");
    assert!(
        error
            .to_string()
            .ends_with("the container has 256 leases of devices without it, and may have no more")
    );
}
