//! Brings the loopback device of a new network namespace up, with one rtnetlink message.

use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;

use crate::error::Error;

/// The kernel gives the loopback device this index in every network namespace.
const LOOPBACK_INDEX: i32 = 1;
/// Length of the request: a netlink header and an `ifinfomsg`, 16 bytes each (rtnetlink(7)).
const REQUEST_LEN: u32 = 32;
/// How long the answer may take. The kernel answers within `sendto`, so this is only a guard against a hang.
const ANSWER_SECONDS: i64 = 5;

/// Sets IFF_UP on the loopback device of the calling thread's network namespace.
pub(crate) fn loopback_up() -> Result<(), Error> {
    set_up().map_err(Error::namespace("bring the loopback device up"))
}

fn set_up() -> nix::Result<()> {
    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(ANSWER_SECONDS, 0))?;
    sendto(socket.as_raw_fd(), &request()?, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = [0_u8; 512];
    let len = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    acknowledged(answer.get(..len).unwrap_or_default())
}

/// RTM_NEWLINK for the loopback device with IFF_UP set, in the flags and in the change mask, and with a
/// request for an acknowledgement.
fn request() -> nix::Result<Vec<u8>> {
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_ACK).map_err(|_| Errno::EINVAL)?;
    let up = u32::try_from(libc::IFF_UP).map_err(|_| Errno::EINVAL)?;
    let mut message = Vec::with_capacity(32);
    // struct nlmsghdr: length, type, flags, sequence, port.
    message.extend(REQUEST_LEN.to_ne_bytes());
    message.extend(libc::RTM_NEWLINK.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(1_u32.to_ne_bytes());
    message.extend(0_u32.to_ne_bytes());
    // struct ifinfomsg: family (AF_UNSPEC), padding, device type, index, flags, change mask.
    message.extend([0, 0]);
    message.extend(0_u16.to_ne_bytes());
    message.extend(LOOPBACK_INDEX.to_ne_bytes());
    message.extend(up.to_ne_bytes());
    message.extend(up.to_ne_bytes());
    Ok(message)
}

/// Reads an NLMSG_ERROR message: its payload starts with 0 for success or a negative errno.
fn acknowledged(answer: &[u8]) -> nix::Result<()> {
    let kind = answer.get(4..6).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes);
    let code = answer.get(16..20).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
    match (kind.map(i32::from), code) {
        (Some(libc::NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(libc::NLMSG_ERROR), Some(code)) => Err(Errno::from_raw(code.wrapping_neg())),
        _ => Err(Errno::EBADMSG),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netlink_request_length_is_consistent() {
        assert_eq!(request().unwrap().len(), usize::try_from(REQUEST_LEN).unwrap());
    }

    #[test]
    fn short_or_foreign_netlink_answer_is_an_error() {
        assert_eq!(acknowledged(&[]), Err(Errno::EBADMSG));
        assert_eq!(acknowledged(&[0; 20]), Err(Errno::EBADMSG));
        let mut refused = [0_u8; 20];
        refused[4..6].copy_from_slice(&2_u16.to_ne_bytes());
        refused[16..20].copy_from_slice(&(-1_i32).to_ne_bytes());
        assert_eq!(acknowledged(&refused), Err(Errno::EPERM));
    }
}
