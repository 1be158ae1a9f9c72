//! Converts sandboxes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::SystemTime;

use switchyard_core::id::Owner;
use switchyard_core::spec::{
    Bandwidth, CgroupPlacement, DEFAULT_SHM_BYTES, Dns, HostPort, HostPorts, ID_PLACEHOLDER,
    IpcMode, Link, Meta, PodNetwork, PortMapping, Protocol, SandboxNetwork, SandboxSpec,
    SelinuxLabel, Subnet, UtsMode,
};
use switchyard_core::sysctl::{SysctlName, SysctlNamespace, ping_for_all_groups};
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1 as cri;

use super::field::{
    absolute, known, makeable, name, name_or_nothing, numeric_id, required, text, without_parents,
};
use super::quantity;
use super::security::{self, SandboxNamespaces};
use crate::config::Config;
use crate::record::{self, SandboxRecord};

/// The kernel's limit on the length of a host name, in bytes.
const HOST_NAME_MAX: usize = 64;

/// The accepted bandwidths of an interface, in bits per second; Kubernetes has the same limits.
const RATES: std::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000_000;

/// The Linux part of a sandbox's configuration.
struct Linux {
    cgroup: CgroupPlacement,
    namespaces: SandboxNamespaces,
    privileged: bool,
    selinux: Option<SelinuxLabel>,
    sysctls: BTreeMap<String, String>,
}

/// The name of a sandbox with this metadata.
pub(crate) fn sandbox_name(metadata: &cri::PodSandboxMetadata) -> String {
    let cri::PodSandboxMetadata {
        name,
        uid,
        namespace,
        attempt,
    } = metadata;
    format!("{name}_{namespace}_{uid}_{attempt}")
}

/// Converts a sandbox that was requested at `now`.
pub(crate) fn sandbox(
    request: SandboxRecord,
    settings: &Config,
    now: SystemTime,
) -> Result<SandboxSpec> {
    let bytes = record::encode(&request);
    let SandboxRecord {
        config,
        runtime_handler,
    } = request;
    let cri::PodSandboxConfig {
        metadata,
        hostname,
        log_directory,
        dns_config,
        port_mappings,
        labels,
        annotations,
        linux,
        windows: _,
    } = required("config", config)?;
    let metadata = required("config.metadata", metadata)?;
    check_metadata(&metadata)?;
    check_hostname(&hostname)?;
    let Linux {
        cgroup,
        namespaces,
        privileged,
        selinux,
        sysctls,
    } = linux_part(linux, settings)?;
    let ports = ports(port_mappings)?;
    let host_ports = host_ports(&metadata, &ports, namespaces.host_network)?;
    let network = if namespaces.host_network {
        SandboxNetwork::Host
    } else {
        SandboxNetwork::Pod(PodNetwork {
            link: Link::Node,
            mac: None,
            ports,
            bandwidth: bandwidth(&annotations)?,
            args: cni_args(&metadata),
            capabilities: BTreeMap::from([(
                "io.kubernetes.cri.pod-annotations".to_owned(),
                annotations,
            )]),
        })
    };
    let annotations = runtime_annotations(&metadata);
    Ok(SandboxSpec {
        meta: Meta {
            owner: Owner::Kubernetes,
            name: sandbox_name(&metadata),
            labels,
            created_at: now,
            record: bytes,
        },
        handler: runtime_handler,
        // For a pod on the host's network, kubelets send the node's name here; the host's name must not
        // change.
        hostname: if namespaces.host_network {
            String::new()
        } else {
            hostname
        },
        sysctls: with_defaults(sysctls, &namespaces, settings)?,
        network,
        host_ports,
        uts: UtsMode::Network,
        ipc: namespaces.ipc,
        pid: namespaces.pid,
        dns: dns(dns_config)?,
        // Kubelets mount their own `/etc/hosts`.
        extra_hosts: Vec::new(),
        shm_size_bytes: DEFAULT_SHM_BYTES,
        log_dir: log_dir(&log_directory)?,
        cgroup,
        privileged,
        annotations,
        selinux,
        users: namespaces.users,
    })
}

/// The annotations of the sandbox that runtimes and their shims read, as containerd writes them.
fn runtime_annotations(metadata: &cri::PodSandboxMetadata) -> BTreeMap<String, String> {
    let facts = [
        ("container-type", "sandbox"),
        ("sandbox-id", ID_PLACEHOLDER),
        ("sandbox-name", metadata.name.as_str()),
        ("sandbox-namespace", metadata.namespace.as_str()),
        ("sandbox-uid", metadata.uid.as_str()),
    ];
    facts
        .map(|(fact, value)| (format!("io.kubernetes.cri.{fact}"), value.to_owned()))
        .into()
}

fn check_metadata(metadata: &cri::PodSandboxMetadata) -> Result<()> {
    let cri::PodSandboxMetadata {
        name: pod,
        uid,
        namespace,
        attempt: _,
    } = metadata;
    name("config.metadata.name", pod)?;
    name("config.metadata.namespace", namespace)?;
    // Pods that are written by hand for crictl often have none.
    name_or_nothing("config.metadata.uid", uid)
}

fn check_hostname(hostname: &str) -> Result<()> {
    let field = "config.hostname";
    if hostname.len() > HOST_NAME_MAX {
        return Err(Error::invalid(
            field,
            format!("it is longer than {HOST_NAME_MAX} bytes"),
        ));
    }
    match hostname
        .chars()
        .find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '.' | '_'))
    {
        None => Ok(()),
        Some(c) => Err(Error::invalid(field, format!("it contains {c:?}"))),
    }
}

fn log_dir(directory: &str) -> Result<PathBuf> {
    if directory.is_empty() {
        return Ok(PathBuf::new());
    }
    let path = absolute("config.log_directory", directory)?;
    without_parents("config.log_directory", &path)?;
    makeable("config.log_directory", &path)?;
    Ok(path)
}

fn linux_part(linux: Option<cri::LinuxPodSandboxConfig>, settings: &Config) -> Result<Linux> {
    let cri::LinuxPodSandboxConfig {
        cgroup_parent,
        security_context,
        sysctls,
        // For runtimes that size a virtual machine; the kubelet itself configures the pod's cgroup.
        overhead: _,
        resources: _,
    } = linux.unwrap_or_default();
    let parent = PathBuf::from(&cgroup_parent);
    text("config.linux.cgroup_parent", &cgroup_parent)?;
    without_parents("config.linux.cgroup_parent", &parent)?;
    let cri::LinuxSandboxSecurityContext {
        namespace_options,
        selinux_options,
        run_as_user,
        // The following fields are for a process of the sandbox itself. It has nothing to protect, and the
        // backend chooses how it runs.
        readonly_rootfs: _,
        supplemental_groups,
        privileged,
        seccomp_profile_path,
        run_as_group,
        seccomp,
        apparmor,
        supplemental_groups_policy,
    } = security_context.unwrap_or_default();
    let at = |name: &str| format!("config.linux.security_context.{name}");
    for (name, id) in [("run_as_user", run_as_user), ("run_as_group", run_as_group)] {
        if let Some(id) = id {
            numeric_id(at(name), id.value)?;
        }
    }
    security::groups(&supplemental_groups)?;
    known::<cri::SupplementalGroupsPolicy>(
        at("supplemental_groups_policy"),
        supplemental_groups_policy,
    )?;
    security::check_sandbox_profiles(seccomp, &seccomp_profile_path, apparmor, settings)?;
    Ok(Linux {
        cgroup: CgroupPlacement::Parent(parent),
        namespaces: security::sandbox_namespaces(namespace_options)?,
        privileged,
        selinux: security::selinux_label(selinux_options)?,
        sysctls,
    })
}

// === network ===

fn ports(mappings: Vec<cri::PortMapping>) -> Result<Vec<PortMapping>> {
    let mut ports = Vec::new();
    for (index, mapping) in mappings.into_iter().enumerate() {
        let at = |name: &str| format!("config.port_mappings[{index}].{name}");
        let cri::PortMapping {
            protocol,
            container_port,
            host_port,
            host_ip,
        } = mapping;
        let protocol = match known(at("protocol"), protocol)? {
            cri::Protocol::Tcp => Protocol::Tcp,
            cri::Protocol::Udp => Protocol::Udp,
            cri::Protocol::Sctp => Protocol::Sctp,
        };
        let port = |name: &str, number: i32| {
            u16::try_from(number).map_err(|_| {
                Error::invalid(at(name), format!("{number} is not between 0 and 65535"))
            })
        };
        let host_port = port("host_port", host_port)?;
        let container_port = port("container_port", container_port)?;
        // Ports without a host port are informational.
        if host_port == 0 {
            continue;
        }
        if container_port == 0 {
            return Err(Error::invalid(at("container_port"), "0 is not a port"));
        }
        let host_ip = match host_ip.as_str() {
            "" => None,
            ip => Some(ip.parse::<IpAddr>().map_err(|_| {
                Error::invalid(at("host_ip"), format!("{ip:?} is not an IP address"))
            })?),
        };
        ports.push(PortMapping {
            protocol,
            container_port,
            host_port,
            host_ip,
        });
    }
    Ok(ports)
}

/// The host ports that a pod claims. On the host's network they are those that its processes bind, which the
/// API server fills in. All attempts of a pod share them: an earlier attempt may not be gone yet when the
/// next one is created.
fn host_ports(
    metadata: &cri::PodSandboxMetadata,
    mappings: &[PortMapping],
    is_host: bool,
) -> Result<HostPorts> {
    let claim = |mapping: &PortMapping| {
        let HostPort { protocol, port, ip } = HostPort::of(mapping);
        if is_host {
            HostPort::bound(protocol, port, ip)
        } else {
            HostPort { protocol, port, ip }
        }
    };
    let cri::PodSandboxMetadata {
        name,
        uid,
        namespace,
        attempt: _,
    } = metadata;
    let group = if uid.is_empty() {
        format!("{namespace}/{name}")
    } else {
        uid.clone()
    };
    HostPorts::new(group, mappings.iter().map(claim), "config.port_mappings")
}

/// The ranges of pod addresses, one for each IP family.
pub(crate) fn ranges(pod_cidr: &str) -> Result<Vec<Subnet>> {
    let range = |text: &str| {
        let wrong = || {
            let why = format!("{text:?} is no range such as \"10.1.0.0/24\"");
            Error::invalid("runtime_config.network_config.pod_cidr", why)
        };
        text.trim().parse().map_err(|_| wrong())
    };
    pod_cidr
        .split(',')
        .filter(|_| !pod_cidr.is_empty())
        .map(range)
        .collect()
}

fn bandwidth(annotations: &BTreeMap<String, String>) -> Result<Option<Bandwidth>> {
    let rate = |direction: &str| {
        let name = format!("kubernetes.io/{direction}-bandwidth");
        let Some(text) = annotations.get(&name) else {
            return Ok(None);
        };
        match quantity::parse(text) {
            Some(rate) if RATES.contains(&rate) => Ok(Some(rate)),
            Some(_) => Err(Error::invalid(
                format_args!("config.annotations[{name:?}]"),
                format!("{text:?} is not between 1k and 1P"),
            )),
            None => Err(Error::invalid(
                format_args!("config.annotations[{name:?}]"),
                format!("{text:?} is not a quantity such as \"10M\""),
            )),
        }
    };
    let ingress_bits = rate("ingress")?;
    let egress_bits = rate("egress")?;
    Ok(
        (ingress_bits.is_some() || egress_bits.is_some()).then_some(Bandwidth {
            ingress_bits,
            egress_bits,
        }),
    )
}

fn cni_args(metadata: &cri::PodSandboxMetadata) -> Vec<(String, String)> {
    [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", &metadata.namespace),
        ("K8S_POD_NAME", &metadata.name),
        ("K8S_POD_INFRA_CONTAINER_ID", ID_PLACEHOLDER),
        ("K8S_POD_UID", &metadata.uid),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

/// The resolver configuration; an empty one means the host's, as if it were missing.
fn dns(config: Option<cri::DnsConfig>) -> Result<Option<Dns>> {
    let Some(cri::DnsConfig {
        servers,
        mut searches,
        mut options,
    }) = config
    else {
        return Ok(None);
    };
    // They say nothing in their lines of resolv.conf.
    searches.retain(|word| !word.is_empty());
    options.retain(|word| !word.is_empty());
    for (name, list) in [
        ("servers", &servers),
        ("searches", &searches),
        ("options", &options),
    ] {
        for (index, word) in list.iter().enumerate() {
            if word.is_empty() || word.chars().any(|c| c.is_whitespace() || c.is_control()) {
                return Err(Error::invalid(
                    format_args!("config.dns_config.{name}[{index}]"),
                    format!("{word:?} is not one word"),
                ));
            }
        }
    }
    let empty = servers.is_empty() && searches.is_empty() && options.is_empty();
    Ok((!empty).then_some(Dns {
        servers,
        searches,
        options,
        host_defaults: false,
    }))
}

// === sysctls ===

/// The requested sysctls, which must belong to a namespace of the sandbox, and the defaults that they do not
/// set.
fn with_defaults(
    mut sysctls: BTreeMap<String, String>,
    namespaces: &SandboxNamespaces,
    settings: &Config,
) -> Result<BTreeMap<String, String>> {
    for (parameter, value) in &sysctls {
        check_sysctl(parameter, value, namespaces)?;
    }
    if !namespaces.host_network {
        let ports = ("net.ipv4.ip_unprivileged_port_start", "0");
        // Without a user namespace only: the range contains groups that a user namespace does not have.
        let pings = settings.unprivileged_icmp && namespaces.users.is_none();
        let defaults = [
            settings.unprivileged_ports.then_some(ports),
            ping_for_all_groups().filter(|_| pings),
        ];
        for (parameter, value) in defaults.into_iter().flatten() {
            let spelled_otherwise = parameter.replace('.', "/");
            if !sysctls.contains_key(&spelled_otherwise) {
                sysctls
                    .entry(parameter.to_owned())
                    .or_insert_with(|| value.to_owned());
            }
        }
    }
    Ok(sysctls)
}

fn check_sysctl(parameter: &str, value: &str, namespaces: &SandboxNamespaces) -> Result<()> {
    let field = format!("config.linux.sysctls[{parameter:?}]");
    text(&field, value)?;
    let name = SysctlName::parse(parameter)
        .ok_or_else(|| Error::invalid(&field, "it is not the name of a kernel parameter"))?;
    let (what, shared) = match name.namespace() {
        Some(SysctlNamespace::Network) => ("network", namespaces.host_network),
        Some(SysctlNamespace::Ipc) => ("IPC", namespaces.ipc == IpcMode::Host),
        // A sandbox on the host's network uses the host's UTS namespace.
        Some(SysctlNamespace::Uts) => ("UTS", namespaces.host_network),
        None => {
            return Err(Error::invalid(
                field,
                "it belongs to the whole node, not to a namespace of the sandbox",
            ));
        }
    };
    if shared {
        return Err(Error::invalid(
            field,
            format!("the sandbox uses the host's {what} namespace"),
        ));
    }
    Ok(())
}
