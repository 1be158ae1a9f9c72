//! Changes network devices, with one rtnetlink message each: brings the loopback device of a new network
//! namespace up, adds addresses, and deletes devices.

use std::net::Ipv6Addr;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use crate::error::Error;

/// The kernel gives the loopback device this index in every network namespace.
const LOOPBACK_INDEX: i32 = 1;
/// Length of a request: a netlink header and an `ifinfomsg`, 16 bytes each (rtnetlink(7)).
const REQUEST_LEN: u32 = 32;
/// Length of a request about an IPv6 address: a netlink header, an `ifaddrmsg` of 8 bytes, and the address twice, each after a
/// header of 4 bytes.
const ADDRESS_REQUEST_LEN: u32 = 16 + 8 + 2 * 20;
/// Length of an attribute with an IPv6 address.
const ATTRIBUTE_LEN: u16 = 4 + 16;
/// Time for the answer. The kernel answers within `sendto`, so this is only a guard against a hang.
const ANSWER_SECONDS: i64 = 5;

/// Sets IFF_UP on the loopback device of the calling thread's network namespace.
pub(crate) fn loopback_up() -> Result<(), Error> {
    let up = || {
        let up = u32::try_from(libc::IFF_UP).map_err(|_| Errno::EINVAL)?;
        call(&request(libc::RTM_NEWLINK, LOOPBACK_INDEX, up)?)
    };
    up().map_err(Error::namespace("bring the loopback device up"))
}

/// Returns whether the calling thread's network namespace has a device of this name. `/sys/class/net` instead
/// shows the network namespace of the process that mounted it.
#[must_use]
pub fn has_device(name: &str) -> bool {
    if_nametoindex(name).is_ok()
}

/// Deletes a device of the calling thread's network namespace; what is connected to a bridge is detached from
/// it. Idempotent: succeeds if there is none.
///
/// # Errors
/// [`Error::Namespace`].
pub fn delete_device(name: &str) -> Result<(), Error> {
    let delete = || {
        let index = i32::try_from(if_nametoindex(name)?).map_err(|_| Errno::EINVAL)?;
        call(&request(libc::RTM_DELLINK, index, 0)?)
    };
    match delete() {
        Ok(()) | Err(Errno::ENODEV) => Ok(()),
        Err(errno) => Err(Error::namespace("delete a network device")(errno)),
    }
}

/// Gives a device of the calling thread's network namespace an IPv6 address, which can be used at once: nobody is asked
/// whether it has it. Idempotent.
pub(crate) fn add_ipv6(device: &str, address: Ipv6Addr, prefix: u8) -> Result<(), Error> {
    let add = || call(&address_request(if_nametoindex(device)?, address, prefix)?);
    add().map_err(Error::namespace("add an IPv6 address"))
}

/// A message that adds an address to the device with this index, and asks for an acknowledgement.
fn address_request(index: u32, address: Ipv6Addr, prefix: u8) -> nix::Result<Vec<u8>> {
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
    let flags = u16::try_from(flags).map_err(|_| Errno::EINVAL)?;
    let family = u8::try_from(libc::AF_INET6).map_err(|_| Errno::EINVAL)?;
    let no_detection = u8::try_from(libc::IFA_F_NODAD).map_err(|_| Errno::EINVAL)?;
    let mut message = Vec::with_capacity(64);
    // struct nlmsghdr: length, type, flags, sequence, port.
    message.extend(ADDRESS_REQUEST_LEN.to_ne_bytes());
    message.extend(libc::RTM_NEWADDR.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(1_u32.to_ne_bytes());
    message.extend(0_u32.to_ne_bytes());
    // struct ifaddrmsg: family, length of the prefix, flags, scope (global), index of the device.
    message.extend([family, prefix, no_detection, 0]);
    message.extend(index.to_ne_bytes());
    for kind in [libc::IFA_LOCAL, libc::IFA_ADDRESS] {
        // struct rtattr: length, type.
        message.extend(ATTRIBUTE_LEN.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(address.octets());
    }
    Ok(message)
}

fn call(request: &[u8]) -> nix::Result<()> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    setsockopt(
        &socket,
        sockopt::ReceiveTimeout,
        &TimeVal::new(ANSWER_SECONDS, 0),
    )?;
    sendto(
        socket.as_raw_fd(),
        request,
        &NetlinkAddr::new(0, 0),
        MsgFlags::empty(),
    )?;
    let mut answer = [0_u8; 512];
    let len = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    acknowledged(answer.get(..len).unwrap_or_default())
}

/// A message about the device with this index, which sets these flags and asks for an acknowledgement.
fn request(kind: u16, index: i32, set: u32) -> nix::Result<Vec<u8>> {
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_ACK).map_err(|_| Errno::EINVAL)?;
    let mut message = Vec::with_capacity(32);
    // struct nlmsghdr: length, type, flags, sequence, port.
    message.extend(REQUEST_LEN.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(1_u32.to_ne_bytes());
    message.extend(0_u32.to_ne_bytes());
    // struct ifinfomsg: family (AF_UNSPEC), padding, device type, index, flags, change mask.
    message.extend([0, 0]);
    message.extend(0_u16.to_ne_bytes());
    message.extend(index.to_ne_bytes());
    message.extend(set.to_ne_bytes());
    message.extend(set.to_ne_bytes());
    Ok(message)
}

/// Reads an NLMSG_ERROR message: its payload starts with 0 for success or a negative errno.
fn acknowledged(answer: &[u8]) -> nix::Result<()> {
    let kind = answer
        .get(4..6)
        .and_then(|b| b.try_into().ok())
        .map(u16::from_ne_bytes);
    let code = answer
        .get(16..20)
        .and_then(|b| b.try_into().ok())
        .map(i32::from_ne_bytes);
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
        let message = request(libc::RTM_DELLINK, 7, 0).unwrap();
        assert_eq!(message.len(), usize::try_from(REQUEST_LEN).unwrap());
        let message = address_request(7, Ipv6Addr::LOCALHOST, 128).unwrap();
        assert_eq!(message.len(), usize::try_from(ADDRESS_REQUEST_LEN).unwrap());
    }

    #[test]
    fn address_that_the_kernel_removed_is_added_again() {
        let work = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let ip = |words: &[&str]| {
                let output = std::process::Command::new("ip").args(words).output();
                String::from_utf8(output.unwrap().stdout).unwrap()
            };
            ip(&["link", "add", "one", "type", "veth", "peer", "two"]);
            let address: Ipv6Addr = "fd00:1::2".parse().unwrap();
            for _ in 0..2 {
                add_ipv6("one", address, 64).unwrap();
                let listed = ip(&["-6", "-oneline", "address", "show", "dev", "one"]);
                assert!(
                    listed.contains("inet6 fd00:1::2/64 scope global") && listed.contains("nodad"),
                    "{listed}"
                );
            }
            add_ipv6("missing", address, 64).unwrap_err();
        };
        std::thread::spawn(work).join().unwrap();
    }

    #[test]
    fn device_is_deleted_once() {
        let name = "swt-link-test";
        let ip = |words: &[&str]| {
            std::process::Command::new("ip")
                .args(words)
                .output()
                .unwrap()
                .status
                .success()
        };
        let work = move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            assert!(ip(&["link", "add", name, "type", "bridge"]) && has_device(name));
            delete_device(name).unwrap();
            delete_device(name).unwrap();
            assert!(!has_device(name) && has_device("lo"));
        };
        std::thread::spawn(work).join().unwrap();
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
