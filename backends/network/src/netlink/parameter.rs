//! Kernel parameters of the network, which are files. They show the namespace of the calling thread.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::error::NetlinkError;
use super::names::LinkName;

/// The settings of IPv6 of each device.
const OF_DEVICES: &str = "/proc/sys/net/ipv6/conf";
/// The addresses of IPv6 of all devices. A kernel without IPv6 has no such file.
const ADDRESSES: &str = "/proc/thread-self/net/if_inet6";
/// The routes of IPv6, and the flag of one that a router has told (`RTF_ADDRCONF`).
const ROUTES: &str = "/proc/thread-self/net/ipv6_route";
const TOLD: u32 = 0x0004_0000;
/// The flag of an address that does not expire, and so was not learnt.
const PERMANENT: u8 = 0x80;

/// Family of the addresses that are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A setting of IPv6 of a device, for which there is no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipv6Setting {
    /// Use of advertisements of routers for its addresses and routes: 0 (never), 1 (unless packets are forwarded), 2 (always).
    AcceptRa,
    /// Check first whether somebody else has an address: 0 or 1.
    AcceptDad,
    /// Absence of IPv6: 0 or 1.
    DisableIpv6,
    /// Preservation of addresses when it is set down: 0 (none), or any larger value.
    KeepAddrOnDown,
}

// === impl IpFamily ===

impl IpFamily {
    /// The file that says whether packets are forwarded. Writing it, also what it has, changes the setting of every device.
    fn forwarding(self) -> PathBuf {
        PathBuf::from(match self {
            Self::V4 => "/proc/sys/net/ipv4/ip_forward",
            Self::V6 => "/proc/sys/net/ipv6/conf/all/forwarding",
        })
    }
}

// === impl Ipv6Setting ===

impl Ipv6Setting {
    const fn name(self) -> &'static str {
        match self {
            Self::AcceptRa => "accept_ra",
            Self::AcceptDad => "accept_dad",
            Self::DisableIpv6 => "disable_ipv6",
            Self::KeepAddrOnDown => "keep_addr_on_down",
        }
    }
}

/// Changes a setting of IPv6 of a device, in the namespace of the calling thread: see [`super::NetNs::run`].
///
/// # Errors
/// [`NetlinkError::Parameter`], with a source that is not found if there is no such device, or the kernel has no IPv6.
pub fn set_ipv6(link: &LinkName, setting: Ipv6Setting, value: u32) -> Result<(), NetlinkError> {
    let file = Path::new(OF_DEVICES).join(link.as_str());
    write(file.join(setting.name()), value)
}

/// Returns whether a setting of IPv6 of a device has this value, in the namespace of the calling thread. One that is not there has none.
///
/// # Errors
/// [`NetlinkError::Parameter`].
pub fn has_ipv6_setting(
    link: &LinkName,
    setting: Ipv6Setting,
    value: u32,
) -> Result<bool, NetlinkError> {
    let file = Path::new(OF_DEVICES).join(link.as_str());
    let text = read_if_there(file.join(setting.name()))?;
    Ok(text.trim().parse::<u32>() == Ok(value))
}

/// Returns whether packets are forwarded in the namespace of the calling thread.
///
/// # Errors
/// [`NetlinkError::Parameter`], with a source that is not found if the kernel has no such family.
pub fn is_forwarding(family: IpFamily) -> Result<bool, NetlinkError> {
    Ok(read(family.forwarding())?.trim() != "0")
}

/// A device that would not listen to routers any more after [`enable_forwarding`] of IPv6, in the namespace of the calling thread: one that has
/// learnt an address or the default route from them, which it would lose, or one of these, which may learn some yet. `None` if there is none,
/// or if packets are forwarded already.
///
/// # Errors
/// Those of [`is_forwarding`].
pub fn would_ignore_routers(uplinks: &[String]) -> Result<Option<String>, NetlinkError> {
    if is_forwarding(IpFamily::V6)? {
        return Ok(None);
    }
    let addresses = read_if_there(ADDRESSES.into())?;
    let routes = read_if_there(ROUTES.into())?;
    let learnt = learnt_devices(&addresses, &routes);
    let mut all = learnt.chain(uplinks.iter().map(String::as_str));
    let would = all.find(|device| listens_while_nothing_is_forwarded(device));
    Ok(would.map(str::to_owned))
}

/// Returns whether a device listens to routers, but not once packets are forwarded. One that is gone by now does not.
fn listens_while_nothing_is_forwarded(device: &str) -> bool {
    let file = Path::new(OF_DEVICES).join(device);
    read(file.join(Ipv6Setting::AcceptRa.name())).is_ok_and(|value| value.trim() == "1")
}

/// The devices that have an address or the default route of IPv6 from a router, some more than once: by the texts of the kernel's files `if_inet6` and
/// `ipv6_route`. Pure.
pub fn learnt_devices<'a>(addresses: &'a str, routes: &'a str) -> impl Iterator<Item = &'a str> {
    let addresses = addresses.lines().filter_map(with_learnt_address);
    addresses.chain(routes.lines().filter_map(with_learnt_route))
}

/// The device of a line of [`ADDRESSES`], if its address is a global one that expires.
fn with_learnt_address(line: &str) -> Option<&str> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let &[_, _, _, scope, flags, device] = fields.as_slice() else {
        return None;
    };
    let flags = u8::from_str_radix(flags, 16).ok()?;
    (scope == "00" && flags & PERMANENT == 0).then_some(device)
}

/// The device of a line of [`ROUTES`], if it is a default route that a router has told.
fn with_learnt_route(line: &str) -> Option<&str> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let &[to, length, _, _, _, _, _, _, flags, device] = fields.as_slice() else {
        return None;
    };
    let flags = u32::from_str_radix(flags, 16).ok()?;
    let is_default = length == "00" && to.bytes().all(|digit| digit == b'0');
    (is_default && flags & TOLD != 0).then_some(device)
}

/// Lets packets be forwarded in the namespace of the calling thread, unless they are already; returns whether it has changed that. What
/// is set is left alone, since writing would change the settings of all devices. With IPv6, devices that accept advertisements of routers
/// only while nothing is forwarded stop to accept them.
///
/// # Errors
/// Those of [`is_forwarding`].
pub fn enable_forwarding(family: IpFamily) -> Result<bool, NetlinkError> {
    if is_forwarding(family)? {
        return Ok(false);
    }
    write(family.forwarding(), 1)?;
    Ok(true)
}

fn read(path: PathBuf) -> Result<String, NetlinkError> {
    fs::read_to_string(&path).map_err(|source| NetlinkError::Parameter {
        doing: "read".to_owned(),
        path,
        source,
    })
}

/// The same, or nothing if there is no such file.
fn read_if_there(path: PathBuf) -> Result<String, NetlinkError> {
    match read(path) {
        Err(NetlinkError::Parameter { source, .. }) if source.kind() == ErrorKind::NotFound => {
            Ok(String::new())
        }
        done => done,
    }
}

/// No O_CREAT and no O_TRUNC, and one write: procfs accepts a value only at offset 0.
fn write(path: PathBuf, value: u32) -> Result<(), NetlinkError> {
    let written = OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut file| file.write_all(value.to_string().as_bytes()));
    written.map_err(|source| NetlinkError::Parameter {
        doing: format!("write {value} to"),
        path,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_router_has_told_expires_or_has_a_flag() {
        for (line, device) in [
            (
                "20010db8000000000000000000000007 02 40 00 00     eth0",
                Some("eth0"),
            ),
            // It does not expire; without a search for duplicates; of the link alone.
            (
                "20010db8000000000000000000000007 02 40 00 80     eth0",
                None,
            ),
            (
                "20010db8000000000000000000000007 02 40 00 82     eth0",
                None,
            ),
            (
                "fe800000000000000000000000000007 02 40 20 00     eth0",
                None,
            ),
            ("nonsense", None),
        ] {
            assert_eq!(with_learnt_address(line), device, "{line}");
        }
        let zero = "0".repeat(32);
        let route = |to: &str, length: &str, flags: &str| {
            format!("{to} {length} {zero} 00 {zero} 00000400 00000001 00000000 {flags}     eth0")
        };
        let network = format!("fd00{}", &zero[4..]);
        for (line, device) in [
            (route(&zero, "00", "00450003"), Some("eth0")),
            (route(&zero, "00", "00040003"), Some("eth0")),
            (route(&zero, "00", "00000003"), None),
            (route(&network, "40", "00440001"), None),
            (route(&zero, "00", ""), None),
        ] {
            assert_eq!(with_learnt_route(&line), device, "{line}");
        }
    }
}
