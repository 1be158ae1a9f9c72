//! The files that tasks get from their sandbox: `/etc/hosts`, `/etc/hostname` and `/etc/resolv.conf`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use switchyard_core::id::SandboxId;
use switchyard_core::spec::{
    Dns, HostAddress, HostEntry, Link, PodNetwork, SandboxNetwork, SandboxSpec,
};
use switchyard_core::{Error, Result};
use switchyard_linux::files::Durable;
use switchyard_linux::resolv_conf::{Families, Reachable, unreachable};
use switchyard_namespaces::{Ns, files as content, has_ipv6_loopback};

use crate::base::error::from_namespaces;
use crate::base::fs::blocking;
use crate::base::layout::SandboxDirs;
use crate::node::userns::chown_to_container_root;
use crate::record::{NetworkRecord, SandboxRecord};
use crate::sandbox::host_files::HostFiles;

/// Writes `/etc/hostname`, which does not depend on the sandbox's addresses. Its state directory must exist.
pub(super) async fn write_hostname(
    dirs: &SandboxDirs,
    spec: &SandboxSpec,
    record: &SandboxRecord,
) -> Result<()> {
    // The host's own name need not be a valid one by our rules.
    let text = if record.owns(Ns::Uts) {
        content::hostname(&record.hostname).map_err(from_namespaces)?
    } else {
        format!("{}\n", record.hostname)
    };
    write(dirs.hostname(), text.into_bytes(), spec).await
}

/// Writes `/etc/resolv.conf`. Of the host's servers, those are left out that the sandbox with its addresses cannot ask;
/// those of `configured` that it can ask replace them, unless there are none or the network is the host's.
pub(super) async fn write_resolv_conf(
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
            let asked = with_configured(asked.as_ref(), configured, families);
            let is_connected = !record.ips.is_empty();
            if is_connected && asked.servers.is_empty() && found.servers.is_empty() {
                tracing::warn!(sandbox = %id, reason = found.explain(), "the node names no DNS server that a container on this network can ask: it resolves no names, unless network.dns names a server");
            }
            away_from_host(&asked, found)?
        }
    };
    write(dirs.resolv_conf(), text, spec).await
}

/// The request of a sandbox with another network than the host's, if it names no server with the configured ones of these
/// families.
fn with_configured(asked: Option<&Dns>, configured: &[String], families: Families) -> Dns {
    let mut asked = asked.cloned().unwrap_or_default();
    if asked.servers.is_empty() {
        let of_families = configured
            .iter()
            .filter(|server| unreachable(server, families).is_none());
        asked.servers = of_families.cloned().collect();
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
/// host's file, with the requested extra entries appended. `bridge` has the host's addresses on the gateway's
/// own bridge.
pub(super) async fn write_hosts(
    dirs: &SandboxDirs,
    spec: &SandboxSpec,
    record: &SandboxRecord,
    bridge: &[IpAddr],
    host: &HostFiles,
) -> Result<()> {
    let mut extra = Vec::new();
    for entry in &spec.extra_hosts {
        for ip in addresses(entry, &spec.network, bridge, &record.ips)? {
            let names = entry.names.clone();
            extra.push(content::HostEntry { ip, names });
        }
    }
    let netns = match &record.network {
        NetworkRecord::Host => {
            let more = content::host_lines(&extra).map_err(from_namespaces)?;
            let text = [host.hosts().await?, more.into_bytes()].concat();
            return write(dirs.hosts(), text, spec).await;
        }
        NetworkRecord::Pod | NetworkRecord::Isolated => dirs.pin(Ns::Net),
        NetworkRecord::Joined(path) => path.clone(),
    };
    // What cannot be looked at is taken for what most are.
    let looked = blocking(move || Ok(has_ipv6_loopback(&netns).unwrap_or(true)));
    let text = content::hosts(&record.hostname, &record.ips, &extra, looked.await?);
    let text = text.map_err(from_namespaces)?;
    write(dirs.hosts(), text.into_bytes(), spec).await
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

/// The addresses of an entry of `/etc/hosts` of a sandbox with the addresses `own`; `bridge` has the host's on the gateway's own
/// bridge, of which the sandbox reaches those of its families.
fn addresses(
    entry: &HostEntry,
    network: &SandboxNetwork,
    bridge: &[IpAddr],
    own: &[IpAddr],
) -> Result<Vec<IpAddr>> {
    let is_reached = |host: &IpAddr| own.iter().any(|ip| ip.is_ipv6() == host.is_ipv6());
    match (&entry.ip, network) {
        (HostAddress::Ip(ip), _) => Ok(vec![*ip]),
        (HostAddress::Gateway, SandboxNetwork::Host) => Ok(vec![Ipv4Addr::LOCALHOST.into()]),
        (
            HostAddress::Gateway,
            SandboxNetwork::Pod(PodNetwork {
                link: Link::Bridge, ..
            }),
        ) => Ok(bridge.iter().copied().filter(is_reached).collect()),
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
    fn host_gateway_is_the_host_on_each_range_of_the_bridge() {
        let [four, six]: [IpAddr; 2] = ["172.26.80.1", "fd00::1"].map(|ip| ip.parse().unwrap());
        let entry = HostEntry {
            ip: HostAddress::Gateway,
            names: strings(&["host.docker.internal"]),
        };
        let bridged = SandboxNetwork::Pod(PodNetwork {
            link: Link::Bridge,
            ..PodNetwork::default()
        });
        let [own_four, own_six]: [IpAddr; 2] =
            ["172.26.80.2", "fd00::2"].map(|ip| ip.parse().unwrap());
        let both = [own_four, own_six];
        for ranges in [vec![four], vec![six], vec![four, six], vec![six, four]] {
            let found = addresses(&entry, &bridged, &ranges, &both).unwrap();
            assert_eq!(found, ranges);
        }
        // A task that has disabled IPv6 does not reach the other one.
        let found = addresses(&entry, &bridged, &[six, four], &[own_four]).unwrap();
        assert_eq!(found, [four]);
        let of_host = addresses(&entry, &SandboxNetwork::Host, &[six], &[]).unwrap();
        assert_eq!(of_host, [IpAddr::from(Ipv4Addr::LOCALHOST)]);
        addresses(&entry, &SandboxNetwork::Isolated, &[four], &[]).unwrap_err();
    }

    #[test]
    fn sandbox_gets_what_it_asks_for_then_what_is_configured_then_what_the_host_has() {
        let host = b"nameserver 127.0.0.1\nnameserver 192.0.2.1\nsearch a.test\noptions trust-ad\n";
        let text = |asked: Option<&Dns>, configured: &[&str]| {
            let families = Families::of(&[[10, 0, 0, 2].into()]);
            let asked = with_configured(asked, &strings(configured), families);
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
        let one: &[&str] = &["203.0.113.53"];
        let six: &[&str] = &["fd00::53"];
        let both: &[&str] = &["fd00::53", "203.0.113.53"];
        for (asked, configured, expected) in [
            (None, none, host_alone),
            (Some(&defaults), none, host_alone),
            (
                None,
                one,
                "search a.test\nnameserver 203.0.113.53\noptions trust-ad\n",
            ),
            (
                None,
                both,
                "search a.test\nnameserver 203.0.113.53\noptions trust-ad\n",
            ),
            // None of them is of a family of its network.
            (None, six, host_alone),
            (
                Some(&server),
                six,
                "search a.test\nnameserver 198.51.100.1\noptions trust-ad\n",
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
                "search b.test\nnameserver 203.0.113.53\noptions trust-ad\n",
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
