//! The files that tasks get from their sandbox: `/etc/hosts`, `/etc/hostname` and `/etc/resolv.conf`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use switchyard_core::id::SandboxId;
use switchyard_core::spec::{
    Dns, HostAddress, HostEntry, Link, PodNetwork, SandboxNetwork, SandboxSpec,
};
use switchyard_core::{Error, Result};
use switchyard_linux::files::Durable;
use switchyard_linux::resolv_conf::{Families, Reachable};
use switchyard_namespaces::files as content;

use crate::base::error::from_namespaces;
use crate::base::fs::blocking;
use crate::base::layout::SandboxDirs;
use crate::node::userns::chown_to_container_root;
use crate::record::{NetworkRecord, SandboxRecord};
use crate::sandbox::host_files::HostFiles;
use crate::sandbox::{SandboxEntry, Sandboxes};

/// Writes `/etc/hostname`, which does not depend on the sandbox's addresses. Its state directory must exist.
pub(super) async fn write_hostname(
    dirs: &SandboxDirs,
    spec: &SandboxSpec,
    record: &SandboxRecord,
) -> Result<()> {
    // The host's own name need not be a valid one by our rules.
    let text = if record.owns(switchyard_namespaces::Ns::Uts) {
        content::hostname(&record.hostname).map_err(from_namespaces)?
    } else {
        format!("{}\n", record.hostname)
    };
    write(dirs.hostname(), text.into_bytes(), spec).await
}

impl Sandboxes {
    /// Writes the files that depend on the sandbox's addresses, which are in its record.
    pub(super) async fn write_address_files(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
        entry: &SandboxEntry,
    ) -> Result<()> {
        let SandboxEntry { record, dirs, .. } = entry;
        let settings = self.context.settings();
        let configured = &settings.network.dns;
        write_resolv_conf(id, dirs, spec, record, &self.host_files, configured).await?;
        let bridge = self.network.bridge.host();
        write_hosts(dirs, spec, record, bridge, &self.host_files).await
    }
}

/// Writes `/etc/resolv.conf`. Of the host's servers, those are left out that the sandbox with its addresses cannot ask;
/// `configured` replaces them, unless it is empty or the network is the host's.
async fn write_resolv_conf(
    id: SandboxId,
    dirs: &SandboxDirs,
    spec: &SandboxSpec,
    record: &SandboxRecord,
    host: &HostFiles,
    configured: &[String],
) -> Result<()> {
    let text = match (&spec.dns, &spec.network) {
        (Some(dns), _) if !dns.host_defaults => resolv_conf(dns, None)?,
        (Some(dns), SandboxNetwork::Host) => resolv_conf(dns, Some(&host.resolv_conf().await?))?,
        (None, SandboxNetwork::Host) => host.resolv_conf().await?,
        (asked, SandboxNetwork::Pod(_) | SandboxNetwork::Isolated | SandboxNetwork::Joined(_)) => {
            let families = Families::of(&record.ips);
            let found = host.reachable_resolv_conf(families).await?;
            let asked = with_configured(asked.as_ref(), configured);
            let is_connected = !record.ips.is_empty();
            if is_connected && asked.servers.is_empty() && found.servers.is_empty() {
                tracing::warn!(sandbox = %id, reason = found.explain(), "the node names no DNS server that a container on this network can ask: it resolves no names, unless network.dns names a server");
            }
            away_from_host(&asked, found)?
        }
    };
    write(dirs.resolv_conf(), text, spec).await
}

/// The request of a sandbox with another network than the host's, with the configured servers if it names none.
fn with_configured(asked: Option<&Dns>, configured: &[String]) -> Dns {
    let mut asked = asked.cloned().unwrap_or_default();
    if asked.servers.is_empty() {
        asked.servers = configured.to_vec();
    }
    asked
}

/// The resolver configuration of a sandbox with this request and with this part of the host's configuration, byte for
/// byte if it requests nothing.
fn away_from_host(asked: &Dns, found: Reachable) -> Result<Vec<u8>> {
    let Dns {
        servers,
        searches,
        options,
        host_defaults: _,
    } = asked;
    if servers.is_empty() && searches.is_empty() && options.is_empty() {
        Ok(found.text)
    } else {
        resolv_conf(asked, Some(&found.text))
    }
}

/// Replaces a file of a sandbox, which belongs to the root of its containers.
async fn write(path: PathBuf, text: Vec<u8>, spec: &SandboxSpec) -> Result<()> {
    let users = spec.users.clone();
    blocking(move || {
        content::write(&path, &text, 0o644, Durable::No).map_err(from_namespaces)?;
        users
            .as_ref()
            .map_or(Ok(()), |users| chown_to_container_root(&path, users))
    })
    .await
}

/// Writes `/etc/hosts`, which names the sandbox's addresses. With the host's network it is a copy of the
/// host's file, with the requested extra entries appended. `bridge` is the host's address on the gateway's
/// own bridge.
async fn write_hosts(
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
    write(dirs.hosts(), text, spec).await
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

#[cfg(test)]
mod tests {
    use switchyard_linux::resolv_conf::reachable;

    use super::*;

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn sandbox_gets_what_it_asks_for_then_what_is_configured_then_what_the_host_has() {
        let host = b"nameserver 127.0.0.1\nnameserver 192.0.2.1\nsearch a.test\noptions trust-ad\n";
        let text = |asked: Option<&Dns>, configured: &[&str]| {
            let families = Families::of(&[[10, 0, 0, 2].into()]);
            let asked = with_configured(asked, &strings(configured));
            let text = away_from_host(&asked, reachable(host, families)).unwrap();
            String::from_utf8(text).unwrap()
        };
        let host_alone = "nameserver 192.0.2.1\nsearch a.test\noptions trust-ad\n";
        let defaults = Dns {
            host_defaults: true,
            ..Dns::default()
        };
        let server = Dns {
            servers: strings(&["198.51.100.1"]),
            ..defaults.clone()
        };
        let search = Dns {
            searches: strings(&["b.test"]),
            ..defaults.clone()
        };
        let none: &[&str] = &[];
        let one: &[&str] = &["fd00::53"];
        for (asked, configured, expected) in [
            (None, none, host_alone),
            (Some(&defaults), none, host_alone),
            (
                None,
                one,
                "search a.test\nnameserver fd00::53\noptions trust-ad\n",
            ),
            (
                Some(&server),
                one,
                "search a.test\nnameserver 198.51.100.1\noptions trust-ad\n",
            ),
            (
                Some(&search),
                none,
                "search b.test\nnameserver 192.0.2.1\noptions trust-ad\n",
            ),
            (
                Some(&search),
                one,
                "search b.test\nnameserver fd00::53\noptions trust-ad\n",
            ),
        ] {
            assert_eq!(
                text(asked, configured),
                expected,
                "{asked:?} {configured:?}"
            );
        }
    }
}
