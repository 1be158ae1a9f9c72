//! The contents of a sandbox's `/etc/hostname`, `/etc/hosts` and `/etc/resolv.conf`, and writing them.
//!
//! The functions that produce contents are pure. They refuse values that would add a line or a word to a
//! file, because the values come from job files.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;

use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::files::{self, Durable};

use crate::error::Error;

/// The longest host name that Linux allows, in bytes.
const HOST_NAME_MAX: usize = 64;

/// The largest file of the host that sandboxes get, in bytes. Lists of hosts that are blocked have some.
const HOST_FILE_MAX: u64 = 8 << 20;

/// The first line of every hosts file.
const LOOPBACK: &str = "127.0.0.1\tlocalhost\n";

/// The lines that follow where there is IPv6: those of Debian, which kubelets and Docker write too.
const IPV6_LOOPBACK: &str = "::1\tlocalhost ip6-localhost ip6-loopback\nfe00::\tip6-localnet\nff00::\tip6-mcastprefix\n\
    ff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n";

/// Name resolution of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsConfig {
    /// Addresses of the servers, in order; IPv6 ones may have a zone (`fe80::1%eth0`).
    pub servers: Vec<String>,
    /// Search domains, in order.
    pub searches: Vec<String>,
    /// Resolver options of resolv.conf(5), such as `ndots:5`.
    pub options: Vec<String>,
}

/// An address with the names that resolve to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostEntry {
    /// The address.
    pub ip: IpAddr,
    /// Its names; the first is the canonical one.
    pub names: Vec<String>,
}

/// The contents of `/etc/hostname`.
///
/// # Errors
/// [`Error::Invalid`] if `name` is not a host name.
pub fn hostname(name: &str) -> Result<String, Error> {
    check_hostname(name)?;
    Ok(format!("{name}\n"))
}

/// The contents of `/etc/hosts`: localhost, then `name` for each of the sandbox's addresses, then the extra
/// entries. `has_ipv6` is true where `::1` is an address of the loopback device.
///
/// # Errors
/// [`Error::Invalid`] if a name is not valid, or an entry has no names.
pub fn hosts(
    name: &str,
    ips: &[IpAddr],
    extra: &[HostEntry],
    has_ipv6: bool,
) -> Result<String, Error> {
    check_hostname(name)?;
    let mut text = LOOPBACK.to_owned();
    if has_ipv6 {
        text.push_str(IPV6_LOOPBACK);
    }
    let mut line = |ip: &IpAddr, names: &str| {
        writeln!(text, "{ip}\t{names}").expect("writing to a string cannot fail");
    };
    // A qualified name is followed by its short form, as hosts(5) recommends.
    let names = match name.split_once('.') {
        Some((short, _)) if !short.is_empty() => format!("{name} {short}"),
        _ => name.to_owned(),
    };
    for ip in ips {
        line(ip, &names);
    }
    text.push_str(&host_lines(extra)?);
    Ok(text)
}

/// The lines of a hosts file for these entries.
///
/// # Errors
/// [`Error::Invalid`] if a name is not valid, or an entry has no names.
pub fn host_lines(entries: &[HostEntry]) -> Result<String, Error> {
    let mut text = String::new();
    for entry in entries {
        if entry.names.is_empty() {
            return Err(invalid("host entry", &entry.ip.to_string(), "has no names"));
        }
        for alias in &entry.names {
            word("host name", alias)?;
        }
        writeln!(text, "{}\t{}", entry.ip, entry.names.join(" "))
            .expect("writing to a string cannot fail");
    }
    Ok(text)
}

/// The contents of `/etc/resolv.conf`: `search`, `nameserver` and `options` lines; a key without values has
/// no line.
///
/// # Errors
/// [`Error::Invalid`] if a server is not an IP address, or a domain or option is not one word.
pub fn resolv_conf(dns: &DnsConfig) -> Result<String, Error> {
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        writeln!(text, "{key} {value}").expect("writing to a string cannot fail");
    };
    for domain in &dns.searches {
        word("search domain", domain)?;
    }
    for option in &dns.options {
        word("resolver option", option)?;
    }
    if !dns.searches.is_empty() {
        line("search", &dns.searches.join(" "));
    }
    for server in &dns.servers {
        check_server(server)?;
        line("nameserver", server);
    }
    if !dns.options.is_empty() {
        line("options", &dns.options.join(" "));
    }
    Ok(text)
}

/// A file of the host that sandboxes get, such as `/etc/resolv.conf`, byte for byte; `path` may be a symlink. One that
/// is missing counts as empty: without a resolver configuration the C library queries 127.0.0.1. Blocks on the file
/// system, and on one that hangs for ever.
///
/// # Errors
/// [`Error::File`] if it exists but cannot be read, is no regular file, or has more than 8 MiB.
pub fn host_file(path: &Path) -> Result<Vec<u8>, Error> {
    match switchyard_node_files::read(path, HOST_FILE_MAX) {
        Ok(bytes) => Ok(bytes),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(Error::file("read", path)(error.into())),
    }
}

/// The requested configuration, with each empty part filled in from a resolver configuration of the host.
#[must_use]
pub fn with_host_parts(asked: DnsConfig, resolv_conf: &[u8]) -> DnsConfig {
    let text = String::from_utf8_lossy(resolv_conf);
    let mut host = DnsConfig::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let keyword = words.next().unwrap_or_default();
        let words = words
            .take_while(|word| !word.starts_with(['#', ';']))
            .map(str::to_owned);
        match keyword {
            "nameserver" => host
                .servers
                .extend(words.take(1).filter(|server| check_server(server).is_ok())),
            // The last of several lines applies.
            "search" | "domain" => host.searches = words.collect(),
            "options" => host.options.extend(words),
            _ => {}
        }
    }
    let part = |asked: Vec<String>, host| if asked.is_empty() { host } else { asked };
    DnsConfig {
        servers: part(asked.servers, host.servers),
        searches: part(asked.searches, host.searches),
        options: part(asked.options, host.options),
    }
}

/// Replaces a file atomically by one with these contents and permission bits. Idempotent. Tasks that have the old file
/// bind-mounted keep seeing the old one. Files of a sandbox do not have to outlive a boot.
///
/// # Errors
/// [`Error::File`]; then `path` is unchanged, unless only its directory could not be synced.
pub fn write(path: &Path, contents: &[u8], mode: u32, durable: Durable) -> Result<(), Error> {
    files::replace(path, contents, mode, durable, || {
        reach(CrashPoint::FileDrafted)
    })?;
    reach(CrashPoint::FileNamed);
    Ok(())
}

/// Letters, digits, `-`, `_` and `.`, at most 64 bytes, not starting with a dash or dot.
pub(crate) fn check_hostname(name: &str) -> Result<(), Error> {
    if name.is_empty() {
        Err(invalid("host name", name, "is empty"))
    } else if name.len() > HOST_NAME_MAX {
        Err(invalid(
            "host name",
            name,
            "is longer than the 64 bytes that Linux allows",
        ))
    } else if !name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        || name.starts_with(['-', '.'])
    {
        Err(invalid(
            "host name",
            name,
            "may only have letters, digits, dashes, underscores and dots, and starts with a letter or digit",
        ))
    } else {
        Ok(())
    }
}

/// Checks the address of a DNS server.
///
/// # Errors
/// [`Error::Invalid`] if it is no IP address.
pub fn check_server(server: &str) -> Result<(), Error> {
    word("DNS server", server)?;
    let (address, zone) = match server.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (server, None),
    };
    match (address.parse::<IpAddr>(), zone) {
        (Ok(_), None) => Ok(()),
        (Ok(IpAddr::V6(_)), Some(zone)) if !zone.is_empty() => Ok(()),
        _ => Err(invalid("DNS server", server, "is not an IP address")),
    }
}

/// One word: not empty, no white space, no control characters, no comment sign in front.
fn word(what: &'static str, value: &str) -> Result<(), Error> {
    if value.is_empty() {
        Err(invalid(what, value, "is empty"))
    } else if value.chars().any(|c| c.is_whitespace() || c.is_control()) {
        Err(invalid(
            what,
            value,
            "has white space or control characters in it",
        ))
    } else if value.contains(['#', ';']) {
        Err(invalid(what, value, "has a comment sign in it"))
    } else {
        Ok(())
    }
}

fn invalid(what: &'static str, value: &str, why: &'static str) -> Error {
    Error::Invalid {
        what,
        value: value.to_owned(),
        why,
    }
}

#[cfg(test)]
mod tests;
