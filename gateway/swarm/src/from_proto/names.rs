//! Resolver configuration and additional hosts of a task.

use switchyard_core::spec::{Dns, HostAddress, HostEntry};
use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::check_count;
use switchyard_docker_options::names::{check_hostname, check_name_servers, check_resolver_words};
use switchyard_proto::docker::swarmkit::v1 as swarm;

/// The resolver configuration; parts that the service does not have, and the whole if it has none, are the
/// host's.
pub(super) fn dns(wire: Option<&swarm::container_spec::DnsConfig>) -> Result<Option<Dns>> {
    let Some(swarm::container_spec::DnsConfig {
        nameservers,
        search,
        options,
    }) = wire
    else {
        return Ok(None);
    };
    let field = "container.dns_config";
    for (part, list) in [
        ("nameservers", nameservers),
        ("search", search),
        ("options", options),
    ] {
        check_count(format_args!("{field}.{part}"), "words", list.len())?;
        check_resolver_words(format_args!("{field}.{part}"), list)?;
    }
    check_name_servers(format_args!("{field}.nameservers"), nameservers)?;
    if nameservers.is_empty() && search.is_empty() && options.is_empty() {
        return Ok(None);
    }
    Ok(Some(Dns {
        servers: nameservers.clone(),
        searches: search.clone(),
        options: options.clone(),
        host_defaults: true,
    }))
}

/// Additional lines of `/etc/hosts`, from lines of that form.
pub(super) fn extra_hosts(lines: &[String]) -> Result<Vec<HostEntry>> {
    lines
        .iter()
        .enumerate()
        .map(|(index, line)| host_entry(index, line))
        .collect()
}

fn host_entry(index: usize, line: &str) -> Result<HostEntry> {
    let field = format!("container.hosts[{index}]");
    check_count(&field, "hosts", index)?;
    let mut words = line.split_ascii_whitespace();
    let address = words.next().unwrap_or_default();
    let names: Vec<String> = words.map(str::to_owned).collect();
    let wrong = || {
        Error::invalid(
            &field,
            format!("{line:?} is not of the form \"address name\""),
        )
    };
    if names.is_empty() {
        return Err(wrong());
    }
    for name in &names {
        check_hostname(&field, name)?;
    }
    let ip = match address {
        "host-gateway" => HostAddress::Gateway,
        address => HostAddress::Ip(address.parse().map_err(|_| wrong())?),
    };
    Ok(HostEntry { ip, names })
}
