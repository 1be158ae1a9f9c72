//! Addresses of devices.

use std::net::IpAddr;

use nix::errno::Errno;

use super::decode::{attributes, u32_at};
use super::error::NetlinkError;
use super::message::Request;
use super::names::{IpPrefix, family, put_address, read_address};
use super::socket::Socket;
use super::uapi::{
    AF_UNSPEC, IFA_ADDRESS, IFA_BROADCAST, IFA_F_DADFAILED, IFA_F_NODAD, IFA_F_OPTIMISTIC,
    IFA_F_TENTATIVE, IFA_FLAGS, IFA_LOCAL, NLM_F_CREATE, NLM_F_EXCL, RTM_DELADDR, RTM_GETADDR,
    RTM_NEWADDR,
};

/// Length of `struct ifaddrmsg`.
const IFADDRMSG: usize = 8;

/// An address of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The index of the device.
    pub link: u32,
    /// The address, and the length of the network that is reached by the device.
    pub prefix: IpPrefix,
}

/// An address that a device has, as the kernel lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldAddress {
    /// The address.
    pub address: Address,
    /// Its state.
    pub state: AddressState,
}

/// State of an address, by the search for duplicates of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressState {
    /// It is in use.
    Usable,
    /// The kernel does not use it yet: others are being asked whether they have it.
    Tentative,
    /// The kernel never uses it, since others have answered that they have it.
    Duplicate,
}

// === impl AddressState ===

impl AddressState {
    const fn of(flags: u32) -> Self {
        // An optimistic address is used while others are being asked.
        match flags & (IFA_F_DADFAILED | IFA_F_TENTATIVE | IFA_F_OPTIMISTIC) {
            IFA_F_TENTATIVE => Self::Tentative,
            found if found & IFA_F_DADFAILED != 0 => Self::Duplicate,
            _ => Self::Usable,
        }
    }
}

// === impl HeldAddress ===

impl HeldAddress {
    /// Reads the body of `RTM_NEWADDR`; nothing if it is too short for one, or of another family.
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let &[_, length, flags, ..] = body else {
            return None;
        };
        let link = u32_at(body, 4)?;
        let mut local = None;
        let mut address = None;
        // The attribute has those flags, too, for which the header has no room.
        let mut flags = u32::from(flags);
        for (kind, value) in attributes(body.get(IFADDRMSG..)?) {
            match kind {
                IFA_LOCAL => local = read_address(value),
                IFA_ADDRESS => address = read_address(value),
                IFA_FLAGS => flags = u32_at(value, 0).unwrap_or(flags),
                _ => {}
            }
        }
        // Of a point-to-point device, IFA_ADDRESS is the other end's; IPv6 has no IFA_LOCAL else.
        let prefix = IpPrefix::new(local.or(address)?, length).ok()?;
        Some(Self {
            address: Address { link, prefix },
            state: AddressState::of(flags),
        })
    }
}

/// Gives a device an address, usable at once: without the search for duplicates of IPv6, which takes more than a second.
/// Refused with `EEXIST` if the device has it.
#[must_use]
pub fn add_address(address: &Address) -> Request {
    let Address { link, prefix } = *address;
    let doing = format!("add {prefix} to device {link}");
    let flags = NLM_F_CREATE | NLM_F_EXCL;
    Request::new(RTM_NEWADDR, flags, &header(address), doing)
        .acknowledged()
        .with(|all| {
            put_address(all, IFA_LOCAL, prefix.address());
            put_address(all, IFA_ADDRESS, prefix.address());
            if let Some(broadcast) = prefix.broadcast() {
                put_address(all, IFA_BROADCAST, IpAddr::V4(broadcast));
            }
            if prefix.address().is_ipv6() {
                all.u32(IFA_FLAGS, IFA_F_NODAD);
            }
        })
}

/// Takes an address from a device. One that is gone, also with its device, is success.
#[must_use]
pub fn delete_address(address: &Address) -> Request {
    let Address { link, prefix } = *address;
    let doing = format!("remove {prefix} from device {link}");
    Request::new(RTM_DELADDR, 0, &header(address), doing)
        .acknowledged()
        .done_by(&[Errno::EADDRNOTAVAIL, Errno::ENODEV, Errno::ENXIO])
        .with(|all| {
            put_address(all, IFA_LOCAL, prefix.address());
            put_address(all, IFA_ADDRESS, prefix.address());
        })
}

/// All addresses of the socket's namespace, of both families.
///
/// # Errors
/// Those of [`Socket::list`].
pub fn list_addresses(socket: &mut Socket) -> Result<Vec<HeldAddress>, NetlinkError> {
    let all = [AF_UNSPEC; IFADDRMSG];
    let messages = socket.list(RTM_GETADDR, &all, "list the addresses")?;
    let addresses = messages
        .iter()
        .filter(|message| message.kind == RTM_NEWADDR);
    Ok(addresses
        .filter_map(|message| HeldAddress::read(&message.body))
        .collect())
}

/// A `struct ifaddrmsg`: family, length of the prefix, flags, scope (of all), index of the device.
fn header(address: &Address) -> [u8; IFADDRMSG] {
    let mut bytes = [0; IFADDRMSG];
    bytes[0] = family(address.prefix.address());
    bytes[1] = address.prefix.length();
    bytes[4..].copy_from_slice(&address.link.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_follows_from_the_flags() {
        for (flags, expected) in [
            (0x80, AddressState::Usable),
            (0x82, AddressState::Usable),
            (0x40, AddressState::Tentative),
            (0xc0, AddressState::Tentative),
            (0x48, AddressState::Duplicate),
            (0xc8, AddressState::Duplicate),
            (0x44, AddressState::Usable),
            // Of an address without a route of its own.
            (0x240, AddressState::Tentative),
        ] {
            assert_eq!(AddressState::of(flags), expected, "{flags:#x}");
        }
    }
}
