//! Host name, resolver configuration, additional hosts, and kernel parameters of a task.

use std::collections::BTreeMap;
use std::net::IpAddr;

use switchyard_core::spec::{Dns, HostAddress, HostEntry, IpcMode, SandboxNetwork, UtsMode};
use switchyard_core::sysctl::{SysctlName, SysctlNamespace};
use switchyard_core::{Error, Result};

use super::field::text;
use super::request::TaskRequest;

/// The kernel's limit on a host name, in bytes.
const HOST_NAME_MAX: usize = 64;

/// What Docker allows on every network except the host's, also on that of a group: low ports and echo
/// requests for all users.
const OPEN_NETWORK: [(&str, &str); 2] =
    [("net.ipv4.ip_unprivileged_port_start", "0"), ("net.ipv4.ping_group_range", "0 2147483647")];

/// The host name of a task that has its own: the requested one, or that of its group's network, or one
/// derived from the allocation id.
pub(super) fn hostname(asked: &TaskRequest<'_>) -> Result<String> {
    let group = asked.task.network_isolation_spec.as_ref().and_then(|spec| spec.hosts_config.as_ref());
    let of_group = group.map(|hosts| hosts.hostname.as_str()).unwrap_or_default();
    let (field, name) = match asked.options.hostname.as_str() {
        "" => ("task.network_isolation_spec.hostsConfig.hostname", of_group),
        own => ("hostname", own),
    };
    if !name.is_empty() {
        return check_hostname(field, name).map(|()| name.to_owned());
    }
    let digits: String = asked.task.alloc_id.chars().filter(char::is_ascii_alphanumeric).take(12).collect();
    Ok(if digits.is_empty() { "task".to_owned() } else { digits })
}

fn check_hostname(field: &str, name: &str) -> Result<()> {
    if name.len() > HOST_NAME_MAX {
        return Err(Error::invalid(field, format!("it is longer than {HOST_NAME_MAX} bytes")));
    }
    if name.starts_with(['-', '.'])
        || !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'))
    {
        return Err(Error::invalid(field, format!("{name:?} is no host name")));
    }
    Ok(())
}

/// The resolver configuration: each part from the task's config, or else from the job's `dns` block; `None`
/// is the host's.
pub(super) fn dns(asked: &TaskRequest<'_>) -> Result<Option<Dns>> {
    let options = asked.options;
    let job = asked.task.dns.clone().unwrap_or_default();
    let part = |key: &str, own: &[String], field: &str, jobs: Vec<String>| {
        let (field, list) =
            if own.is_empty() { (format!("task.dns.{field}"), jobs) } else { (key.to_owned(), own.to_vec()) };
        for (index, word) in list.iter().enumerate() {
            if word.is_empty()
                || word.contains(['#', ';'])
                || word.chars().any(|c| c.is_whitespace() || c.is_control())
            {
                return Err(Error::invalid(
                    format_args!("{field}[{index}]"),
                    format!("{word:?} is not one word"),
                ));
            }
        }
        Ok((field, list))
    };
    let (field, servers) = part("dns_servers", &options.dns_servers, "servers", job.servers)?;
    for (index, server) in servers.iter().enumerate() {
        let address = server.split_once('%').map_or(server.as_str(), |(address, _)| address);
        if address.parse::<IpAddr>().is_err() {
            return Err(Error::invalid(
                format_args!("{field}[{index}]"),
                format!("{server:?} is no IP address"),
            ));
        }
    }
    let (_, searches) = part("dns_search_domains", &options.dns_search_domains, "searches", job.searches)?;
    let (_, options) = part("dns_options", &options.dns_options, "options", job.options)?;
    let empty = servers.is_empty() && searches.is_empty() && options.is_empty();
    Ok((!empty).then_some(Dns { servers, searches, options, host_defaults: true }))
}

/// Additional lines of `/etc/hosts`, from `name:address`.
pub(super) fn extra_hosts(entries: &[String], network: &SandboxNetwork) -> Result<Vec<HostEntry>> {
    entries
        .iter()
        .enumerate()
        .map(|(index, entry)| host_entry(&format!("extra_hosts[{index}]"), entry, network))
        .collect()
}

fn host_entry(field: &str, entry: &str, network: &SandboxNetwork) -> Result<HostEntry> {
    let (name, ip) = entry.split_once([':', '=']).unwrap_or((entry, ""));
    let bare = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(ip);
    let wrong = || Error::invalid(field, format!("{entry:?} is not of the form \"name:address\""));
    check_hostname(field, name)?;
    if name.is_empty() {
        return Err(wrong());
    }
    let ip = match (ip, network) {
        ("host-gateway", SandboxNetwork::Pod(_) | SandboxNetwork::Host) => HostAddress::Gateway,
        ("host-gateway", SandboxNetwork::Joined(_) | SandboxNetwork::Isolated) => {
            let why = "host-gateway is known on the gateway's own bridge and the host's network alone; give the address";
            return Err(Error::unimplemented(format!("{field}: {why}")));
        }
        _ => HostAddress::Ip(bare.parse().map_err(|_| wrong())?),
    };
    Ok(HostEntry { ip, names: vec![name.to_owned()] })
}

/// Kernel parameters, which must belong to a namespace of the task itself; those of the task override those
/// that Docker always sets.
pub(super) fn sysctls(
    asked: &BTreeMap<String, String>,
    network: &SandboxNetwork,
    ipc: IpcMode,
    uts: UtsMode,
) -> Result<BTreeMap<String, String>> {
    let host_network = *network == SandboxNetwork::Host;
    let host_uts = match uts {
        UtsMode::Network => host_network,
        UtsMode::Own => false,
        UtsMode::Host => true,
    };
    let mut parameters = BTreeMap::new();
    for (name, value) in asked {
        let field = format!("sysctl.{name}");
        text(&field, value)?;
        let parsed = SysctlName::parse(name)
            .ok_or_else(|| Error::invalid(&field, "it is not the name of a kernel parameter"))?;
        let (what, shared) = match parsed.namespace() {
            Some(SysctlNamespace::Network) => ("network", host_network),
            Some(SysctlNamespace::Ipc) => ("ipc", ipc == IpcMode::Host),
            Some(SysctlNamespace::Uts) => ("uts", host_uts),
            None => {
                return Err(Error::invalid(
                    field,
                    "it belongs to the whole node, not to a namespace of the task",
                ));
            }
        };
        if shared {
            return Err(Error::invalid(
                field,
                format!("sysctl {name:?} not allowed in host {what} namespace"),
            ));
        }
        parameters.insert(parsed.parts().join("/"), (name.clone(), value.clone()));
    }
    if !host_network {
        for (name, value) in OPEN_NETWORK {
            parameters.entry(name.replace('.', "/")).or_insert_with(|| (name.to_owned(), value.to_owned()));
        }
    }
    Ok(parameters.into_values().collect())
}
