//! Names of users, groups and hosts, words for resolvers, and kernel parameters.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;

use switchyard_core::spec::{IpcMode, SandboxNetwork, UtsMode};
use switchyard_core::sysctl::{SysctlName, SysctlNamespace, ping_for_all_groups};
use switchyard_core::{Error, Result};

use crate::fields::text;

/// The kernel's limit on a host name, in bytes.
const HOST_NAME_MAX: usize = 64;

/// The sysctl for low ports that Docker sets, with that for echo requests, on every network except the host's, also on that of a group.
const LOW_PORTS: (&str, &str) = ("net.ipv4.ip_unprivileged_port_start", "0");

/// Checks a user as in an image: `user`, `uid`, `user:group`, `uid:gid`. Whether they exist is known only with
/// the image.
///
/// # Errors
/// `InvalidArgument`, naming the field.
pub fn check_user(field: impl Display, name: &str) -> Result<()> {
    if name.is_empty() || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(Error::invalid(
            field,
            format!("{name:?} is not a user's name"),
        ));
    }
    Ok(())
}

/// Checks the name or number of a supplementary group.
///
/// # Errors
/// `InvalidArgument`, naming the field.
pub fn check_group(field: impl Display, group: &str) -> Result<()> {
    if group.is_empty()
        || group
            .chars()
            .any(|c| c.is_control() || c.is_whitespace() || c == ':')
    {
        return Err(Error::invalid(
            field,
            format!("{group:?} is not a group's name or number"),
        ));
    }
    Ok(())
}

/// Checks a host name; an empty one is valid.
///
/// # Errors
/// `InvalidArgument`, naming the field.
pub fn check_hostname(field: impl Display, name: &str) -> Result<()> {
    if name.len() > HOST_NAME_MAX {
        return Err(Error::invalid(
            field,
            format!("it is longer than {HOST_NAME_MAX} bytes"),
        ));
    }
    if name.starts_with(['-', '.'])
        || !name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'))
    {
        return Err(Error::invalid(field, format!("{name:?} is no host name")));
    }
    Ok(())
}

/// Checks words for a resolver's configuration.
///
/// # Errors
/// `InvalidArgument`, naming the field and the place in the list.
pub fn check_resolver_words(field: impl Display, list: &[String]) -> Result<()> {
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
    Ok(())
}

/// Checks the addresses of name servers, which may have a zone.
///
/// # Errors
/// `InvalidArgument`, naming the field and the place in the list.
pub fn check_name_servers(field: impl Display, servers: &[String]) -> Result<()> {
    for (index, server) in servers.iter().enumerate() {
        let address = server
            .split_once('%')
            .map_or(server.as_str(), |(address, _)| address);
        if address.parse::<IpAddr>().is_err() {
            return Err(Error::invalid(
                format_args!("{field}[{index}]"),
                format!("{server:?} is no IP address"),
            ));
        }
    }
    Ok(())
}

/// Kernel parameters, which must belong to a namespace of the task itself; those of the task override those
/// that Docker always sets. `field` is the name of the option.
///
/// # Errors
/// `InvalidArgument`, naming the option and the parameter.
pub fn sysctls(
    field: &str,
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
        let field = format!("{field}.{name}");
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
        for (name, value) in [LOW_PORTS].into_iter().chain(ping_for_all_groups()) {
            parameters
                .entry(name.replace('.', "/"))
                .or_insert_with(|| (name.to_owned(), value.to_owned()));
        }
    }
    Ok(parameters.into_values().collect())
}
