//! Many descriptors in one, for a store that takes few: a socket in whose queue they are.
//!
//! The kernel keeps what was sent over a socket open until it is received, or until the last descriptor of the receiving end
//! is closed. So a bundle holds its descriptors open wherever it is, also in another process.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use socket2::{Domain, Socket, Type};

/// The most descriptors that the kernel takes with one message (`SCM_MAX_FD`).
const OF_MESSAGE: usize = 253;

/// Room for the control data of a message, in bytes.
const SPACE: usize = rustix::cmsg_space!(ScmRights(OF_MESSAGE));

/// A bundle of duplicates of these descriptors. Some ten thousand have room; but the kernel counts those of one user together
/// (`ETOOMANYREFS`, unix(7)), so that many of them keep other processes of the user from passing any.
///
/// # Errors
/// Those of the kernel, as for lack of descriptors or of room.
pub fn bundle(descriptors: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let (sender, receiver) = Socket::pair(Domain::UNIX, Type::STREAM, None)?;
    for part in descriptors.chunks(OF_MESSAGE) {
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(part)) {
            return Err(io::Error::other(
                "a control message has no room for its descriptors",
            ));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&sender, &[IoSlice::new(b"\n")], &mut control, flags)?;
    }
    Ok(receiver.into())
}

/// Takes all descriptors out of a bundle, in their order. It is empty then, also where it was duplicated.
///
/// # Errors
/// Those of the kernel; those that were taken by then are closed.
pub fn unbundle(bundle: &OwnedFd) -> io::Result<Vec<OwnedFd>> {
    let mut all = Vec::new();
    loop {
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let read = recvmsg(
            bundle,
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            flags,
        )?;
        // The sending end is closed.
        if read.bytes == 0 {
            return Ok(all);
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                all.extend(descriptors);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn bundle_holds_its_descriptors_open_until_they_are_taken_out() {
        for count in [0, 1, OF_MESSAGE, OF_MESSAGE + 1, 2 * OF_MESSAGE + 1] {
            let socket = UdpSocket::bind("127.93.0.1:0").unwrap();
            let address = socket.local_addr().unwrap();
            let descriptors = vec![socket.as_fd(); count];
            let bundled = bundle(&descriptors).unwrap();
            drop(socket);
            let is_open = || UdpSocket::bind(address).is_err();
            assert_eq!(is_open(), count > 0, "{count}");
            let taken = unbundle(&bundled).unwrap();
            assert_eq!(taken.len(), count);
            assert_eq!(is_open(), count > 0, "{count}");
            assert!(unbundle(&bundled).unwrap().is_empty());
            drop(taken);
            assert!(!is_open(), "{count}");
        }
    }

    #[test]
    fn descriptors_end_with_their_bundle() {
        let socket = UdpSocket::bind("127.93.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let bundled = bundle(&[socket.as_fd()]).unwrap();
        drop(socket);
        assert!(UdpSocket::bind(address).is_err());
        drop(bundled);
        assert!(UdpSocket::bind(address).is_ok());
    }
}
