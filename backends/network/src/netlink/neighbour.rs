//! Permanent entries of the table of neighbours, which are never asked for.

use std::net::IpAddr;

use nix::errno::Errno;

use super::decode::{attribute, u16_at, u32_at};
use super::error::NetlinkError;
use super::message::Request;
use super::names::{Mac, family, put_address, read_address};
use super::socket::Socket;
use super::uapi::{
    AF_UNSPEC, NDA_DST, NDA_LLADDR, NLM_F_CREATE, NLM_F_REPLACE, NUD_PERMANENT, RTM_DELNEIGH,
    RTM_GETNEIGH, RTM_NEWNEIGH,
};

/// Length of `struct ndmsg`.
const NDMSG: usize = 12;

/// A neighbour whose hardware address is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// The index of the device by which it is reached.
    pub link: u32,
    /// Its address.
    pub address: IpAddr,
    /// Its hardware address.
    pub mac: Mac,
    /// True if it stays until it is deleted. The kernel forgets others.
    pub is_permanent: bool,
}

// === impl Neighbour ===

impl Neighbour {
    /// Reads the body of `RTM_NEWNEIGH`; nothing if it is too short for one, or its hardware address is not known.
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let rest = body.get(NDMSG..)?;
        Some(Self {
            link: u32_at(body, 4)?,
            address: read_address(attribute(rest, NDA_DST)?)?,
            mac: Mac::new(attribute(rest, NDA_LLADDR)?.try_into().ok()?).ok()?,
            is_permanent: u16_at(body, 8)? & NUD_PERMANENT != 0,
        })
    }
}

/// Makes a neighbour's hardware address known until it is deleted, whatever the kernel knows of it. A packet to a neighbour that is
/// not known waits for an answer, a second longer if the first question is lost.
#[must_use]
pub fn add_neighbour(link: u32, address: IpAddr, mac: Mac) -> Request {
    let doing = format!("make the neighbour {address} on device {link} known");
    let flags = NLM_F_CREATE | NLM_F_REPLACE;
    Request::new(RTM_NEWNEIGH, flags, &header(link, address), doing)
        .acknowledged()
        .with(|all| {
            put_address(all, NDA_DST, address);
            all.bytes(NDA_LLADDR, &mac.bytes());
        })
}

/// Forgets a neighbour. One that is gone, also with its device, is success.
#[must_use]
pub fn delete_neighbour(link: u32, address: IpAddr) -> Request {
    let doing = format!("forget the neighbour {address} on device {link}");
    Request::new(RTM_DELNEIGH, 0, &header(link, address), doing)
        .acknowledged()
        .done_by(&[Errno::ENOENT, Errno::ENODEV])
        .with(|all| put_address(all, NDA_DST, address))
}

/// All neighbours of the socket's namespace whose hardware addresses are known, of both families.
///
/// # Errors
/// Those of [`Socket::list`].
pub fn list_neighbours(socket: &mut Socket) -> Result<Vec<Neighbour>, NetlinkError> {
    let all = [AF_UNSPEC; NDMSG];
    let messages = socket.list(RTM_GETNEIGH, &all, "list the neighbours")?;
    let neighbours = messages
        .iter()
        .filter(|message| message.kind == RTM_NEWNEIGH);
    Ok(neighbours
        .filter_map(|message| Neighbour::read(&message.body))
        .collect())
}

/// A `struct ndmsg`: family, padding, index of the device, state, flags, type.
fn header(link: u32, address: IpAddr) -> [u8; NDMSG] {
    let mut bytes = [0; NDMSG];
    bytes[0] = family(address);
    bytes[4..8].copy_from_slice(&link.to_ne_bytes());
    bytes[8..10].copy_from_slice(&NUD_PERMANENT.to_ne_bytes());
    bytes
}
