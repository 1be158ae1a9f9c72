//! The files that tasks get from their sandbox: `/etc/hosts`, `/etc/hostname` and `/etc/resolv.conf`.

use std::net::{IpAddr, Ipv4Addr};

use switchyard_core::spec::{
    Dns, HostAddress, HostEntry, Link, PodNetwork, SandboxNetwork, SandboxSpec,
};
use switchyard_core::{Error, Result};
use switchyard_linux::files::Durable;
use switchyard_namespaces::files as content;

use crate::base::error::from_namespaces;
use crate::base::fs::blocking;
use crate::base::layout::SandboxDirs;
use crate::node::userns::chown_to_container_root;
use crate::record::{NetworkRecord, SandboxRecord};
use crate::sandbox::host_files::HostFiles;

/// Writes the files that do not depend on the sandbox's addresses. Its state directory must exist.
pub(super) async fn write_static_files(
    dirs: &SandboxDirs,
    spec: &SandboxSpec,
    record: &SandboxRecord,
    host: &HostFiles,
) -> Result<()> {
    let own_name = record.owns(switchyard_namespaces::Ns::Uts);
    let away = !matches!(spec.network, SandboxNetwork::Host);
    let resolv_conf = match &spec.dns {
        Some(dns) if !dns.host_defaults => resolv_conf(dns, None)?,
        Some(dns) => resolv_conf(dns, Some(&host.resolv_conf(away).await?))?,
        None => host.resolv_conf(away).await?,
    };
    let name = record.hostname.clone();
    let dirs = dirs.clone();
    let users = spec.users.clone();
    blocking(move || {
        // The host's own name need not be a valid one by our rules.
        let name = if own_name {
            content::hostname(&name).map_err(from_namespaces)?
        } else {
            format!("{name}\n")
        };
        content::write(&dirs.resolv_conf(), &resolv_conf, 0o644, Durable::No)
            .map_err(from_namespaces)?;
        content::write(&dirs.hostname(), name.as_bytes(), 0o644, Durable::No)
            .map_err(from_namespaces)?;
        let given = |users| {
            [dirs.resolv_conf(), dirs.hostname()]
                .iter()
                .try_for_each(|path| chown_to_container_root(path, users))
        };
        users.as_ref().map_or(Ok(()), given)
    })
    .await
}

/// Writes `/etc/hosts`, which names the sandbox's addresses. With the host's network it is a copy of the
/// host's file, with the requested extra entries appended. `bridge` is the host's address on the gateway's
/// own bridge.
pub(super) async fn write_hosts(
    dirs: &SandboxDirs,
    spec: &SandboxSpec,
    record: &SandboxRecord,
    bridge: IpAddr,
    host: &HostFiles,
) -> Result<()> {
    let line = |entry: &HostEntry| {
        let ip = address(entry, &spec.network, bridge)?;
        Ok(content::HostEntry {
            ip,
            names: entry.names.clone(),
        })
    };
    let extra = spec
        .extra_hosts
        .iter()
        .map(line)
        .collect::<Result<Vec<_>>>()?;
    let text = match record.network {
        NetworkRecord::Host => {
            let more = content::host_lines(&extra).map_err(from_namespaces)?;
            [host.hosts().await?, more.into_bytes()].concat()
        }
        NetworkRecord::Pod | NetworkRecord::Isolated | NetworkRecord::Joined(_) => {
            content::hosts(&record.hostname, &record.ips, &extra)
                .map_err(from_namespaces)?
                .into_bytes()
        }
    };
    let path = dirs.hosts();
    let users = spec.users.clone();
    blocking(move || {
        content::write(&path, &text, 0o644, Durable::No).map_err(from_namespaces)?;
        users
            .as_ref()
            .map_or(Ok(()), |users| chown_to_container_root(&path, users))
    })
    .await
}

/// The requested resolver configuration; of the host's, what it lacks is taken.
fn resolv_conf(dns: &Dns, host: Option<&[u8]>) -> Result<Vec<u8>> {
    let Dns {
        servers,
        searches,
        options,
        host_defaults: _,
    } = dns.clone();
    let mut made = content::DnsConfig {
        servers,
        searches,
        options,
    };
    if let Some(host) = host {
        made = content::with_host_parts(made, host);
    }
    Ok(content::resolv_conf(&made)
        .map_err(from_namespaces)?
        .into_bytes())
}

/// The address of an entry of `/etc/hosts`; `bridge` is the host's address on the gateway's own bridge.
fn address(entry: &HostEntry, network: &SandboxNetwork, bridge: IpAddr) -> Result<IpAddr> {
    match (&entry.ip, network) {
        (HostAddress::Ip(ip), _) => Ok(*ip),
        (HostAddress::Gateway, SandboxNetwork::Host) => Ok(Ipv4Addr::LOCALHOST.into()),
        (
            HostAddress::Gateway,
            SandboxNetwork::Pod(PodNetwork {
                link: Link::Bridge, ..
            }),
        ) => Ok(bridge),
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
