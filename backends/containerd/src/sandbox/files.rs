//! The files that tasks get from their sandbox: `/etc/hosts`, `/etc/hostname` and `/etc/resolv.conf`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use switchyard_core::spec::{Dns, HostAddress, HostEntry, Link, PodNetwork, SandboxNetwork, SandboxSpec};
use switchyard_core::{Error, Result};
use switchyard_namespaces::files as content;

use crate::base::error::from_namespaces;
use crate::base::fs::{blocking, io_error};
use crate::base::layout::SandboxDirs;
use crate::node::userns::chown_to_container_root;
use crate::record::{NetworkRecord, SandboxRecord};

const HOST_RESOLV_CONF: &str = "/etc/resolv.conf";
/// The configuration with the upstream servers of systemd-resolved.
const RESOLVED_RESOLV_CONF: &str = "/run/systemd/resolve/resolv.conf";
const HOST_HOSTS: &str = "/etc/hosts";

/// Writes the files that do not depend on the sandbox's addresses. Its state directory must exist.
pub(super) async fn write_static_files(
    dirs: &SandboxDirs,
    spec: &SandboxSpec,
    record: &SandboxRecord,
) -> Result<()> {
    let dns = spec.dns.clone();
    let own_name = record.owns(switchyard_namespaces::Ns::Uts);
    let away = !matches!(spec.network, SandboxNetwork::Host);
    let name = record.hostname.clone();
    let dirs = dirs.clone();
    let users = spec.users.clone();
    blocking(move || {
        let resolv_conf = match dns {
            Some(dns) => resolv_conf(dns, away)?,
            None => host_resolv_conf(away)?,
        };
        // The host's own name need not be a valid one by our rules.
        let name =
            if own_name { content::hostname(&name).map_err(from_namespaces)? } else { format!("{name}\n") };
        content::write_atomic(&dirs.resolv_conf(), &resolv_conf, 0o644).map_err(from_namespaces)?;
        content::write_atomic(&dirs.hostname(), name.as_bytes(), 0o644).map_err(from_namespaces)?;
        let given = |users| {
            [dirs.resolv_conf(), dirs.hostname()]
                .iter()
                .try_for_each(|path| chown_to_container_root(path, users))
        };
        users.as_ref().map_or(Ok(()), given)
    })
    .await
}

/// The host's resolver configuration. With `away`, for another network namespace than the host's, servers at
/// loopback addresses cannot be reached: if it names no other, the upstream servers of systemd-resolved are
/// used instead, if that runs.
fn host_resolv_conf(away: bool) -> Result<Vec<u8>> {
    let read = |path| content::host_resolv_conf(Path::new(path)).map_err(from_namespaces);
    let own = read(HOST_RESOLV_CONF)?;
    if !away || !content::is_local_alone(&own) {
        return Ok(own);
    }
    let behind = read(RESOLVED_RESOLV_CONF)?;
    Ok(if behind.is_empty() { own } else { behind })
}

/// Writes `/etc/hosts`, which names the sandbox's addresses. With the host's network it is a copy of the
/// host's file, with the requested extra entries appended. `bridge` is the host's address on the gateway's
/// own bridge.
pub(super) async fn write_hosts(
    dirs: &SandboxDirs,
    spec: &SandboxSpec,
    record: &SandboxRecord,
    bridge: IpAddr,
) -> Result<()> {
    let line = |entry: &HostEntry| {
        let ip = address(entry, &spec.network, bridge)?;
        Ok(content::HostEntry { ip, names: entry.names.clone() })
    };
    let extra = spec.extra_hosts.iter().map(line).collect::<Result<Vec<_>>>()?;
    let made = match record.network {
        NetworkRecord::Host => None,
        NetworkRecord::Pod | NetworkRecord::Isolated | NetworkRecord::Joined(_) => {
            Some(content::hosts(&record.hostname, &record.ips, &extra).map_err(from_namespaces)?)
        }
    };
    let more =
        if made.is_none() { content::host_lines(&extra).map_err(from_namespaces)? } else { String::new() };
    let path = dirs.hosts();
    let users = spec.users.clone();
    blocking(move || {
        let text = match made {
            Some(text) => text.into_bytes(),
            None => match std::fs::read(HOST_HOSTS) {
                Ok(text) => [text, more.into_bytes()].concat(),
                Err(fault) if fault.kind() == std::io::ErrorKind::NotFound => more.into_bytes(),
                Err(fault) => return Err(io_error("read", Path::new(HOST_HOSTS), fault)),
            },
        };
        content::write_atomic(&path, &text, 0o644).map_err(from_namespaces)?;
        users.as_ref().map_or(Ok(()), |users| chown_to_container_root(&path, users))
    })
    .await
}

fn resolv_conf(dns: Dns, away: bool) -> Result<Vec<u8>> {
    let Dns { servers, searches, options, host_defaults } = dns;
    let mut made = content::DnsConfig { servers, searches, options };
    if host_defaults {
        made = content::with_host_parts(made, &host_resolv_conf(away)?);
    }
    Ok(content::resolv_conf(&made).map_err(from_namespaces)?.into_bytes())
}

/// The address of an entry of `/etc/hosts`; `bridge` is the host's address on the gateway's own bridge.
fn address(entry: &HostEntry, network: &SandboxNetwork, bridge: IpAddr) -> Result<IpAddr> {
    match (&entry.ip, network) {
        (HostAddress::Ip(ip), _) => Ok(*ip),
        (HostAddress::Gateway, SandboxNetwork::Host) => Ok(Ipv4Addr::LOCALHOST.into()),
        (HostAddress::Gateway, SandboxNetwork::Pod(PodNetwork { link: Link::Bridge, .. })) => Ok(bridge),
        (
            HostAddress::Gateway,
            SandboxNetwork::Pod(_) | SandboxNetwork::Isolated | SandboxNetwork::Joined(_),
        ) => {
            let names = entry.names.join(" ");
            let why = format!(
                "{names} cannot name the host: the host has no known address in the sandbox's network"
            );
            Err(Error::invalid("extra_hosts", why))
        }
    }
}
