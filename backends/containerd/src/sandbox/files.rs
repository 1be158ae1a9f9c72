//! The files that a sandbox gives its tasks.

use std::path::Path;

use switchyard_core::spec::{Dns, HostEntry, SandboxNetwork, SandboxSpec};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_namespaces as namespaces;
use switchyard_namespaces::files as content;

use crate::layout::SandboxDirs;
use crate::record::{NetworkRecord, SandboxRecord};
use crate::text::{blocking, full_or, io_error};
use crate::users::give;

const HOST_RESOLV_CONF: &str = "/etc/resolv.conf";
/// What systemd's resolver asks itself.
const RESOLVED_RESOLV_CONF: &str = "/run/systemd/resolve/resolv.conf";
const HOST_HOSTS: &str = "/etc/hosts";

/// Writes what does not depend on the sandbox's addresses. Its state directory is there.
pub(super) async fn write_early(
    dirs: &SandboxDirs,
    spec: &SandboxSpec,
    record: &SandboxRecord,
) -> Result<()> {
    let resolv_conf = spec.dns.as_ref().map(resolv_conf).transpose()?;
    let own_name = record.owns_uts();
    let away = !matches!(spec.network, SandboxNetwork::Host);
    let name = record.hostname.clone();
    let (dirs, users) = (dirs.clone(), spec.users.clone());
    blocking(move || {
        let resolv_conf = match resolv_conf {
            Some(text) => text,
            None => host_resolv_conf(away)?,
        };
        // The host's own name need not be one that we would give.
        let name =
            if own_name { content::hostname(&name).map_err(from_namespaces)? } else { format!("{name}\n") };
        content::write_atomic(&dirs.resolv_conf(), &resolv_conf, 0o644).map_err(from_namespaces)?;
        content::write_atomic(&dirs.hostname(), name.as_bytes(), 0o644).map_err(from_namespaces)?;
        let given =
            |users| [dirs.resolv_conf(), dirs.hostname()].iter().try_for_each(|path| give(path, users));
        users.as_ref().map_or(Ok(()), given)
    })
    .await
}

/// The host's own resolver configuration. From another network namespace than the host's, its loopback addresses cannot be reached: where
/// it names nothing else, a resolver of the host's is behind it, and that one's own servers are taken if they can be found.
fn host_resolv_conf(away: bool) -> Result<Vec<u8>> {
    let read = |path| content::host_resolv_conf(Path::new(path)).map_err(from_namespaces);
    let own = read(HOST_RESOLV_CONF)?;
    if !away || !content::is_local_alone(&own) {
        return Ok(own);
    }
    let behind = read(RESOLVED_RESOLV_CONF)?;
    Ok(if behind.is_empty() { own } else { behind })
}

/// Writes `/etc/hosts`, which names the sandbox's addresses; with the host's network it is a copy of the host's, with what was asked for
/// at its end.
pub(super) async fn write_hosts(
    dirs: &SandboxDirs,
    spec: &SandboxSpec,
    record: &SandboxRecord,
) -> Result<()> {
    let extra: Vec<_> = spec
        .extra_hosts
        .iter()
        .map(|HostEntry { ip, names }| content::HostEntry { ip: *ip, names: names.clone() })
        .collect();
    let made = match record.network {
        NetworkRecord::Host => None,
        NetworkRecord::Pod | NetworkRecord::Isolated | NetworkRecord::Joined(_) => {
            Some(content::hosts(&record.hostname, &record.ips, &extra).map_err(from_namespaces)?)
        }
    };
    let more =
        if made.is_none() { content::host_lines(&extra).map_err(from_namespaces)? } else { String::new() };
    let (path, users) = (dirs.hosts(), spec.users.clone());
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
        users.as_ref().map_or(Ok(()), |users| give(&path, users))
    })
    .await
}

fn resolv_conf(dns: &Dns) -> Result<Vec<u8>> {
    let Dns { servers, searches, options } = dns.clone();
    let text =
        content::resolv_conf(&content::DnsConfig { servers, searches, options }).map_err(from_namespaces)?;
    Ok(text.into_bytes())
}

/// What an error of namespaces, mounts and files means to the gateway.
pub(crate) fn from_namespaces(error: namespaces::Error) -> Error {
    let kind = if error.is_invalid_request() {
        ErrorKind::InvalidArgument
    } else {
        full_or(ErrorKind::Internal, &error)
    };
    Error::new(kind, "sandbox").with_source(error)
}
