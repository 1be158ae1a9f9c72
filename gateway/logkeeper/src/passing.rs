//! Passes descriptors over a control connection: one byte each, with the descriptor as its ancillary data.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Sends one byte with a descriptor. Cancel-safe.
pub(crate) async fn send(stream: &UnixStream, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        stream.writable().await?;
        match stream.try_io(Interest::WRITABLE, || try_send(stream, descriptor)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

/// Receives one byte, and the descriptor that comes with it, if any. Nothing that comes before it may be unread: a
/// buffered reader must be empty. Cancel-safe.
pub(crate) async fn receive(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
    loop {
        stream.readable().await?;
        match stream.try_io(Interest::READABLE, || try_receive(stream)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

fn try_send(stream: &UnixStream, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other(
            "a control message has no room for one descriptor",
        ));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(stream, &[IoSlice::new(b"\n")], &mut control, flags)?;
    Ok(())
}

fn try_receive(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let read = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        flags,
    )?;
    if read.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let received = control.drain().filter_map(|message| {
        let RecvAncillaryMessage::ScmRights(descriptors) = message else {
            return None;
        };
        Some(descriptors)
    });
    Ok(received.flatten().next())
}
