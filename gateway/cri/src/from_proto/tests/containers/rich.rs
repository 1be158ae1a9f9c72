//! A container whose every field is set, and the task that it becomes.

use super::*;

/// A container with something in nearly every field.
pub(super) fn rich() -> cri::ContainerConfig {
    let mut config = app();
    config.command = strings(&["nginx"]);
    config.args = strings(&["-g", "daemon off;"]);
    config.working_dir = "/srv".into();
    config.envs = vec![cri::KeyValue {
        key: "A".into(),
        value: vec![0xff, b'='],
    }];
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
        hugepage_limits: vec![cri::HugepageLimit {
            page_size: "2MB".into(),
            limit: 0,
        }],
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
        apparmor: Some(cri::SecurityProfile {
            profile_type: 2,
            localhost_ref: "localhost/mine".into(),
        }),
        selinux_options: Some(cri::SeLinuxOption {
            level: "s0:c1".into(),
            ..Default::default()
        }),
        ..Default::default()
    });
    config
}

/// The expected task.
pub(super) fn rich_task(config: &cri::ContainerConfig) -> TaskSpec {
    let request = crate::record::ContainerRecord {
        config: Some(config.clone()),
        ..Default::default()
    };
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
        env: vec![EnvVar {
            name: "A".into(),
            value: vec![0xff, b'='],
        }],
        unset_env: Vec::new(),
        user: UserSpec {
            user: Some(UserRef::Uid(1000)),
            gid: Some(2000),
            supplemental: vec![3000],
            named: Vec::new(),
            policy: GroupPolicy::Strict,
        },
        mounts: vec![rich_mount()],
        devices: vec![DeviceNode {
            container_path: "/dev/a".into(),
            ..node("/dev/b".into(), "rw")
        }],
        cdi_devices: Vec::new(),
        leases: Vec::new(),
        compute: ComputeClaim::default(),
        security: rich_security(),
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

/// The mount of [`rich_task`].
fn rich_mount() -> Mount {
    Mount {
        destination: "/data".into(),
        source: MountSource::Host {
            path: "/mnt/x".into(),
            missing: MissingSource::CreateDir,
        },
        readonly: true,
        recursive_readonly: false,
        propagation: Propagation::HostToTask,
        id_mapped: false,
        selinux_relabel: Relabel::Private,
        options: Vec::new(),
    }
}

/// The security settings of [`rich_task`].
fn rich_security() -> Security {
    Security {
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
        selinux: Some(SelinuxLabel {
            level: "s0:c1".into(),
            ..SelinuxLabel::default()
        }),
        masked_paths: vec!["/proc/kcore".into()],
        readonly_paths: vec!["/proc/sys".into()],
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
        hugepages: vec![HugepageLimit {
            page_size: HugepageSize::new("2MB").unwrap(),
            limit_bytes: 0,
        }],
        oom_score_adj: OomScoreAdj::new(985).ok(),
        unified: [(CgroupFile::new("memory.high").unwrap(), "100".to_owned())].into(),
    }
}
