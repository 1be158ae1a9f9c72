//! Kernel parameters of the network, which are files. They show the namespace of the calling thread.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::error::NetlinkError;
use super::names::LinkName;

/// The settings of IPv6 of each device.
const OF_DEVICES: &str = "/proc/sys/net/ipv6/conf";
/// The addresses of IPv6 of all devices; a kernel without IPv6 has no such file.
const ADDRESSES: &str = "/proc/thread-self/net/if_inet6";
/// The flag of an address that does not expire, and so was not learnt.
const PERMANENT: u8 = 0x80;

/// Which addresses are meant.
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
    /// Whether advertisements of routers give it addresses and routes: 0 (never), 1 (unless packets are forwarded), 2 (always).
    AcceptRa,
    /// Whether it is asked first whether somebody else has an address: 0 or 1.
    AcceptDad,
    /// Whether it has no IPv6: 0 or 1.
    DisableIpv6,
    /// Whether addresses stay when it is set down: 0 or 1.
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

/// Returns whether packets are forwarded in the namespace of the calling thread.
///
/// # Errors
/// [`NetlinkError::Parameter`], with a source that is not found if the kernel has no such family.
pub fn is_forwarding(family: IpFamily) -> Result<bool, NetlinkError> {
    Ok(read(family.forwarding())?.trim() != "0")
}

/// A device that learns its addresses of IPv6 from routers only while nothing is forwarded, if the namespace of the calling thread has one:
/// it loses them with [`enable_forwarding`].
///
/// # Errors
/// [`NetlinkError::Parameter`].
pub fn learns_from_routers() -> Result<Option<String>, NetlinkError> {
    let text = match read(ADDRESSES.into()) {
        Ok(text) => text,
        Err(NetlinkError::Parameter { source, .. }) if source.kind() == ErrorKind::NotFound => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let loses_them = |device: &&str| {
        let file = Path::new(OF_DEVICES).join(device);
        // One that is gone by now loses nothing.
        read(file.join(Ipv6Setting::AcceptRa.name())).is_ok_and(|value| value.trim() == "1")
    };
    let device = text.lines().filter_map(learnt_by).find(loses_them);
    Ok(device.map(str::to_owned))
}

/// The device of a line of [`ADDRESSES`], if its address is a global one that expires.
fn learnt_by(line: &str) -> Option<&str> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let &[_, _, _, scope, flags, device] = fields.as_slice() else {
        return None;
    };
    let flags = u8::from_str_radix(flags, 16).ok()?;
    (scope == "00" && flags & PERMANENT == 0).then_some(device)
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
