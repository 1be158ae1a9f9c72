//! Host name, resolver configuration and additional hosts of a task.

use switchyard_core::spec::{Dns, HostAddress, HostEntry, SandboxNetwork};
use switchyard_core::{Error, Result};
use switchyard_docker_options::names::{check_hostname, check_name_servers, check_resolver_words};

use super::request::TaskRequest;

/// The host name of a task that has its own: the requested one, or that of its group's network, or one
/// derived from the allocation id.
pub(super) fn hostname(request: &TaskRequest<'_>) -> Result<String> {
    let group = request
        .task
        .network_isolation_spec
        .as_ref()
        .and_then(|spec| spec.hosts_config.as_ref());
    let of_group = group
        .map(|hosts| hosts.hostname.as_str())
        .unwrap_or_default();
    let (field, name) = match request.options.hostname.as_str() {
        "" => ("task.network_isolation_spec.hostsConfig.hostname", of_group),
        own => ("hostname", own),
    };
    if !name.is_empty() {
        return check_hostname(field, name).map(|()| name.to_owned());
    }
    let digits: String = request
        .task
        .alloc_id
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(12)
        .collect();
    Ok(if digits.is_empty() {
        "task".to_owned()
    } else {
        digits
    })
}

/// The resolver configuration: each part from the task's config, or else from the job's `dns` block; `None`
/// is the host's.
pub(super) fn dns(request: &TaskRequest<'_>) -> Result<Option<Dns>> {
    let options = request.options;
    let job = request.task.dns.clone().unwrap_or_default();
    let part = |key: &str, own: &[String], field: &str, jobs: Vec<String>| {
        let (field, list) = if own.is_empty() {
            (format!("task.dns.{field}"), jobs)
        } else {
            (key.to_owned(), own.to_vec())
        };
        check_resolver_words(&field, &list)?;
        Ok::<_, Error>((field, list))
    };
    let (field, servers) = part("dns_servers", &options.dns_servers, "servers", job.servers)?;
    check_name_servers(field, &servers)?;
    let (_, searches) = part(
        "dns_search_domains",
        &options.dns_search_domains,
        "searches",
        job.searches,
    )?;
    let (_, options) = part("dns_options", &options.dns_options, "options", job.options)?;
    let empty = servers.is_empty() && searches.is_empty() && options.is_empty();
    Ok((!empty).then_some(Dns {
        servers,
        searches,
        options,
        host_defaults: true,
    }))
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
    let bare = ip
        .strip_prefix('[')
        .and_then(|ip| ip.strip_suffix(']'))
        .unwrap_or(ip);
    let wrong = || {
        Error::invalid(
            field,
            format!("{entry:?} is not of the form \"name:address\""),
        )
    };
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
    Ok(HostEntry {
        ip,
        names: vec![name.to_owned()],
    })
}
