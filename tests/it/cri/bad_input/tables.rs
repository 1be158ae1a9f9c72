//! Fields of pods and containers that are malformed, each with the expected error.

use super::*;

/// The field that the answer names, and the reason.
type Case<T> = (&'static str, fn(&mut T));

fn annotate(pod: &mut PodSandboxConfig, name: &str, value: &str) {
    pod.annotations.insert(name.into(), value.into());
}

pub(super) const PODS: &[Case<PodSandboxConfig>] = &[
    ("config.metadata", |pod| pod.metadata = None),
    ("config.metadata.name", |pod| {
        pod.metadata.get_or_insert_default().name.clear()
    }),
    ("config.metadata.name", |pod| {
        pod.metadata.get_or_insert_default().name = "a/b".into()
    }),
    ("config.metadata.name", |pod| {
        pod.metadata.get_or_insert_default().name = "n".repeat(300)
    }),
    ("config.metadata.namespace", |pod| {
        pod.metadata.get_or_insert_default().namespace = "a;B=c".into()
    }),
    ("config.metadata.uid", |pod| {
        pod.metadata.get_or_insert_default().uid = "u\0".into()
    }),
    ("config.hostname", |pod| pod.hostname = "h".repeat(65)),
    ("config.hostname", |pod| pod.hostname = "two words".into()),
    ("config.hostname", |pod| pod.hostname = "nul\0".into()),
    ("config.log_directory", |pod| {
        pod.log_directory = "relative/path".into()
    }),
    ("config.log_directory", |pod| {
        pod.log_directory = "/var/log/../../etc".into()
    }),
    ("config.linux.cgroup_parent", |pod| {
        pod.linux
            .get_or_insert_default()
            .cgroup_parent
            .push_str("/../..")
    }),
    ("config.linux.cgroup_parent", |pod| {
        pod.linux.get_or_insert_default().cgroup_parent.push('\0')
    }),
    ("cgroup_parent", |pod| {
        pod.linux
            .get_or_insert_default()
            .cgroup_parent
            .push_str(&format!("/{}", "c".repeat(256)));
    }),
    ("cgroup_parent", |pod| {
        pod.linux
            .get_or_insert_default()
            .cgroup_parent
            .push_str(&"/deeper-and-deeper".repeat(300));
    }),
    (
        "config.linux.security_context.namespace_options.network",
        |pod| namespaces(pod).network = 1,
    ),
    (
        "config.linux.security_context.namespace_options.pid",
        |pod| namespaces(pod).pid = 3,
    ),
    (
        "config.linux.security_context.namespace_options.ipc",
        |pod| namespaces(pod).ipc = 77,
    ),
    (
        "config.linux.security_context.namespace_options.userns_options.uids",
        |pod| {
            namespaces(pod).userns_options = Some(UserNamespace::default());
        },
    ),
    ("config.linux.security_context.run_as_user", |pod| {
        security(pod).run_as_user = Some(Int64Value { value: -5 });
    }),
    (
        "config.linux.security_context.supplemental_groups[1]",
        |pod| {
            security(pod).supplemental_groups = vec![1, 1 << 40];
        },
    ),
    (
        "config.linux.security_context.selinux_options.level",
        |pod| {
            security(pod).selinux_options = Some(SeLinuxOption {
                level: "s0 s1".into(),
                ..Default::default()
            });
        },
    ),
    (
        "config.linux.security_context.selinux_options.level",
        |pod| {
            let level = "s0\",lowerdir=/etc,x=\"".into();
            security(pod).selinux_options = Some(SeLinuxOption {
                level,
                ..Default::default()
            });
        },
    ),
    (
        "config.linux.security_context.selinux_options.type",
        |pod| {
            security(pod).selinux_options = Some(SeLinuxOption {
                r#type: "a,b".into(),
                ..Default::default()
            });
        },
    ),
    (
        "config.linux.security_context.seccomp.localhost_ref",
        |pod| {
            security(pod).seccomp = Some(localhost("relative.json"));
        },
    ),
    ("config.port_mappings[0].host_port", |pod| {
        pod.port_mappings = vec![port(80, 70_000)]
    }),
    ("config.port_mappings[1].host_port", |pod| {
        pod.port_mappings = vec![port(80, 0), port(80, -1)]
    }),
    ("config.port_mappings[0].container_port", |pod| {
        pod.port_mappings = vec![port(0, 8080)]
    }),
    ("config.port_mappings[0].host_ip", |pod| {
        pod.port_mappings = vec![PortMapping {
            host_ip: "localhost".into(),
            ..port(80, 8080)
        }];
    }),
    ("config.port_mappings[0].protocol", |pod| {
        pod.port_mappings = vec![PortMapping {
            protocol: 9,
            ..port(80, 8080)
        }];
    }),
    ("config.dns_config.servers[0]", |pod| {
        pod.dns_config = Some(DnsConfig {
            servers: vec!["1.1.1.1\nevil".into()],
            ..Default::default()
        });
    }),
    ("kernel.pid_max", |pod| sysctl(pod, "kernel.pid_max", "1")),
    ("net/../kernel", |pod| {
        sysctl(pod, "net/../kernel/pid_max", "1")
    }),
    ("net.ipv4.no_such_parameter", |pod| {
        sysctl(pod, "net.ipv4.no_such_parameter", "1")
    }),
    ("net.ipv4.ip_local_port_range", |pod| {
        sysctl(pod, "net.ipv4.ip_local_port_range", "many")
    }),
    ("net.ipv4.ip_forward", |pod| {
        namespaces(pod).network = 2;
        sysctl(pod, "net.ipv4.ip_forward", "1");
    }),
    ("ingress-bandwidth", |pod| {
        annotate(pod, "kubernetes.io/ingress-bandwidth", "-5M")
    }),
    ("egress-bandwidth", |pod| {
        annotate(pod, "kubernetes.io/egress-bandwidth", "fast")
    }),
];

pub(super) const CONTAINERS: &[Case<ContainerConfig>] = &[
    ("config.metadata", |container| container.metadata = None),
    ("config.metadata.name", |container| {
        container.metadata.get_or_insert_default().name.clear()
    }),
    ("config.metadata.name", |container| {
        container.metadata.get_or_insert_default().name = "../x".into()
    }),
    ("config.image", |container| container.image = None),
    ("config.image.image", |container| {
        container.image = Some(image_spec(""))
    }),
    ("registry.example/none:1", |container| {
        container.image = Some(image_spec("registry.example/none:1"))
    }),
    ("UPPER/case", |container| {
        container.image = Some(image_spec("registry.example/UPPER/case"))
    }),
    ("config.command[1]", |container| {
        container.command = vec!["echo".into(), "nul\0".into()]
    }),
    ("config.args[0]", |container| {
        container.args = vec!["\0".into()]
    }),
    ("config.working_dir", |container| {
        container.working_dir = "relative".into()
    }),
    ("config.envs[0].key", |container| {
        container.envs = vec![variable("", "x")]
    }),
    ("config.envs[1].key", |container| {
        container.envs = vec![variable("A", "x"), variable("B=C", "x")]
    }),
    ("config.envs[0].value", |container| {
        container.envs = vec![variable("A", "\0")]
    }),
    ("config.log_path", |container| {
        container.log_path = "../../etc/passwd".into()
    }),
    ("config.log_path", |container| {
        container.log_path = "/etc/passwd".into()
    }),
    ("config.log_path", |container| {
        container.log_path = "directory/".into()
    }),
    ("config.mounts[0].host_path", |container| {
        container.mounts = vec![mount("relative", "/data")]
    }),
    ("config.mounts[0].host_path", |container| {
        container.mounts = vec![mount("", "/data")]
    }),
    ("config.mounts[0].host_path", |container| {
        container.mounts = vec![mount("/tmp/\0", "/data")]
    }),
    ("config.mounts[1].container_path", |container| {
        container.mounts = vec![mount("/tmp", "/tmp"), mount("/tmp", "/data\0")];
    }),
    ("config.mounts[0].propagation", |container| {
        container.mounts = vec![Mount {
            propagation: 9,
            ..mount("/tmp", "/data")
        }];
    }),
    ("config.mounts[0].recursive_read_only", |container| {
        container.mounts = vec![Mount {
            recursive_read_only: true,
            ..mount("/tmp", "/data")
        }];
    }),
    ("config.mounts[0].uidMappings", |container| {
        let map = vec![IdMapping {
            host_id: 5,
            container_id: 0,
            length: 5,
        }];
        let uid_mappings = map.clone();
        let gid_mappings = map;
        container.mounts = vec![Mount {
            uid_mappings,
            gid_mappings,
            ..mount("/tmp", "/data")
        }];
    }),
    ("config.mounts[0].image_sub_path", |container| {
        container.mounts = vec![Mount {
            image_sub_path: "x".into(),
            ..mount("/tmp", "/data")
        }];
    }),
    ("config.CDI_devices[0]", |container| {
        container.cdi_devices = vec![CdiDevice {
            name: String::new(),
        }]
    }),
    ("a b", |container| {
        container.cdi_devices = vec![CdiDevice {
            name: "v/c=a b".into(),
        }]
    }),
    ("config.devices[0].host_path", |container| {
        container.devices = vec![device("dev/null", "rw")]
    }),
    ("config.devices[0].permissions", |container| {
        container.devices = vec![device("/dev/null", "rwx")]
    }),
    ("/dev/no-such-device", |container| {
        container.devices = vec![device("/dev/no-such-device", "rw")]
    }),
    ("/etc/passwd", |container| {
        container.devices = vec![device("/etc/passwd", "rw")]
    }),
    ("config.stop_signal", |container| container.stop_signal = 99),
    (
        "config.linux.resources.memory_limit_in_bytes",
        |container| limits(container).memory_limit_in_bytes = -5,
    ),
    (
        "config.linux.resources.memory_swap_limit_in_bytes",
        |container| {
            limits(container).memory_limit_in_bytes = 64 << 20;
            limits(container).memory_swap_limit_in_bytes = 32 << 20;
        },
    ),
    ("config.linux.resources.cpu_shares", |container| {
        limits(container).cpu_shares = -1
    }),
    ("config.linux.resources.cpu_period", |container| {
        limits(container).cpu_period = 5
    }),
    ("config.linux.resources.cpu_quota", |container| {
        limits(container).cpu_quota = 5
    }),
    ("config.linux.resources.cpuset_cpus", |container| {
        limits(container).cpuset_cpus = "0-x".into()
    }),
    ("config.linux.resources.oom_score_adj", |container| {
        limits(container).oom_score_adj = 5000
    }),
    ("config.linux.resources.hugepage_limits[0]", |container| {
        limits(container).hugepage_limits = vec![HugepageLimit {
            page_size: "2XB".into(),
            limit: 1,
        }];
    }),
    ("config.linux.resources.unified", |container| {
        limits(container)
            .unified
            .insert("../memory.max".into(), "1".into());
    }),
    ("run_as_user", |container| {
        context(container).run_as_user = Some(Int64Value { value: -1 })
    }),
    ("run_as_user", |container| {
        context(container).run_as_user = Some(Int64Value {
            value: 5_000_000_000,
        })
    }),
    ("run_as_username", |container| {
        context(container).run_as_username = "two words".into()
    }),
    ("nobody-of-this-name", |container| {
        context(container).run_as_username = "nobody-of-this-name".into()
    }),
    ("run_as_group", |container| {
        context(container).run_as_group = Some(Int64Value { value: 5 })
    }),
    ("supplemental_groups[0]", |container| {
        context(container).supplemental_groups = vec![-1]
    }),
    ("capabilities.add_capabilities[0]", |container| {
        let add_capabilities = vec!["SYS ADMIN".into()];
        context(container).capabilities = Some(Capability {
            add_capabilities,
            ..Default::default()
        });
    }),
    ("masked_paths[0]", |container| {
        context(container).masked_paths = vec!["proc".into()]
    }),
    ("seccomp.localhost_ref", |container| {
        context(container).seccomp = Some(localhost("relative.json"))
    }),
    ("/no/such/profile.json", |container| {
        context(container).seccomp = Some(localhost("/no/such/profile.json"));
    }),
    ("seccomp_profile_path", |container| {
        context(container).seccomp_profile_path = "strange".into()
    }),
    ("namespace_options.pid", |container| {
        context(container)
            .namespace_options
            .get_or_insert_default()
            .pid = 42;
    }),
    ("privileged", |container| {
        context(container).privileged = true
    }),
];

fn localhost(path: &str) -> SecurityProfile {
    SecurityProfile {
        profile_type: ProfileType::Localhost.into(),
        localhost_ref: path.into(),
    }
}

fn port(container_port: i32, host_port: i32) -> PortMapping {
    PortMapping {
        container_port,
        host_port,
        ..Default::default()
    }
}

fn sysctl(pod: &mut PodSandboxConfig, name: &str, value: &str) {
    pod.linux
        .get_or_insert_default()
        .sysctls
        .insert(name.into(), value.into());
}

fn variable(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.into(),
        value: value.into(),
    }
}

fn mount(host: &str, container: &str) -> Mount {
    Mount {
        host_path: host.into(),
        container_path: container.into(),
        ..Default::default()
    }
}

fn device(path: &str, permissions: &str) -> Device {
    Device {
        host_path: path.into(),
        container_path: "/dev/x".into(),
        permissions: permissions.into(),
    }
}
