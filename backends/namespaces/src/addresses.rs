//! The addresses of a network namespace.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use crate::error::Error;
use crate::link::add_ipv6;
use crate::sysctl::set_in_netns;
use crate::within::run_in_netns;

/// The addresses at which a network namespace can be reached: those of its interfaces that are up, except for
/// loopback and link-local addresses. IPv4 before IPv6, else in the kernel's order.
///
/// # Errors
/// Those of [`run_in_netns`]; [`Error::Namespace`] if the kernel does not list them.
pub fn addresses(netns: &Path) -> Result<Vec<IpAddr>, Error> {
    let found = run_in_netns(netns, || {
        getifaddrs().map(|all| all.filter_map(reachable).collect::<Vec<_>>())
    })?;
    let mut found = found.map_err(Error::namespace(
        "read the addresses of a network namespace",
    ))?;
    found.sort_by_key(IpAddr::is_ipv6);
    found.dedup();
    Ok(found)
}

/// The addresses of the network namespace of the calling thread, each with the name of its interface: as of [`addresses`], in the kernel's
/// order.
///
/// # Errors
/// [`Error::Namespace`] if the kernel does not list them.
pub fn node_addresses() -> Result<Vec<(String, IpAddr)>, Error> {
    let all = getifaddrs().map_err(Error::namespace("read the addresses of the node"))?;
    let with_name = |one: nix::ifaddrs::InterfaceAddress| {
        let name = one.interface_name.clone();
        Some((name, reachable(one)?))
    };
    Ok(all.filter_map(with_name).collect())
}

/// Enables IPv6 on a device of a network namespace, and gives it these addresses, with the lengths of their prefixes, if it
/// lacks them: the kernel removed them when IPv6 was disabled. Idempotent. Blocks.
///
/// # Errors
/// Those of [`set_in_netns`] and [`run_in_netns`]; [`Error::Namespace`] if an address is refused.
pub fn restore_ipv6(netns: &Path, device: &str, addresses: &[(Ipv6Addr, u8)]) -> Result<(), Error> {
    let enabled = format!("net.ipv6.conf.{device}.disable_ipv6");
    set_in_netns(netns, &BTreeMap::from([(enabled, "0".to_owned())]))?;
    run_in_netns(netns, || {
        addresses
            .iter()
            .try_for_each(|(address, prefix)| add_ipv6(device, *address, *prefix))
    })?
}

/// Returns whether the loopback device of a network namespace has `::1`: not where the kernel has no IPv6, or where it is
/// disabled there.
///
/// # Errors
/// Those of [`run_in_netns`]; [`Error::Namespace`] if the kernel does not list the addresses.
pub fn has_ipv6_loopback(netns: &Path) -> Result<bool, Error> {
    let found = run_in_netns(netns, || {
        getifaddrs().map(|mut all| all.any(|interface| is_ipv6_loopback(&interface)))
    })?;
    found.map_err(Error::namespace(
        "read the addresses of a network namespace",
    ))
}

fn is_ipv6_loopback(interface: &nix::ifaddrs::InterfaceAddress) -> bool {
    let address = interface.address.as_ref();
    address
        .and_then(|address| address.as_sockaddr_in6())
        .is_some_and(|address| address.ip().is_loopback())
}

fn reachable(interface: nix::ifaddrs::InterfaceAddress) -> Option<IpAddr> {
    let flags = interface.flags;
    if !flags.contains(InterfaceFlags::IFF_UP) || flags.contains(InterfaceFlags::IFF_LOOPBACK) {
        return None;
    }
    let address = interface.address?;
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(IpAddr::V4(v4.ip())).filter(|_| !v4.ip().is_link_local());
    }
    let v6 = address.as_sockaddr_in6()?.ip();
    Some(IpAddr::V6(v6)).filter(|_| !v6.is_unicast_link_local())
}
