//! A socket to the netfilter of the network namespace of the thread that opens it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, getsockname,
    getsockopt, recv, sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use switchyard_linux::host_features::in_user_namespace;

use super::message::{
    DONE, DUMP, ERROR, INTERRUPTED, NfHead, NfMessage, NfWriter, aligned, messages,
};

/// The size of the largest transaction, in bytes: more than 100,000 elements.
pub(super) const MAX_SEND: usize = 16 << 20;
/// Number of bytes of the send buffer that the kernel may need for itself.
const SEND_OVERHEAD: usize = 32;
/// Room for answers and notifications that are not yet read, in bytes. A transaction with many errors has an answer for each, and an
/// answer repeats the message.
const RECEIVE_BUFFER: usize = 4 << 20;
/// The largest datagram of the kernel: a part of a dump has at most 32 KiB. Of a longer one, as an error that repeats its message, only
/// the beginning is read.
const MAX_DATAGRAM: usize = 64 << 10;
/// The most that is kept of a dump, in bytes.
const MAX_DUMP: usize = 64 << 20;
/// Limit of attempts at a dump, which is repeated because something changed meanwhile.
const DUMP_TRIES: usize = 5;
/// Time for an answer. The kernel answers within the send, so this is only a guard against a hang.
const ANSWER_SECONDS: i64 = 5;

/// An answer to one message of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NfAnswer {
    pub(super) sequence: u32,
    pub(super) outcome: Result<(), Errno>,
}

/// A netlink socket of netfilter.
#[derive(Debug)]
pub(super) struct NfSocket {
    socket: OwnedFd,
    port: u32,
    sequence: u32,
    /// Room for one datagram; of a longer one the rest is lost.
    pub(super) buffer: Vec<u8>,
    /// Limit of the size of a send, in bytes.
    pub(super) longest_send: usize,
}

impl NfSocket {
    /// Opens a socket that receives what is sent to these multicast groups (a mask), with further flags.
    pub(super) fn open(groups: u32, flags: SockFlag) -> nix::Result<Self> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | flags,
            SockProtocol::NetlinkNetFilter,
        )?;
        size_buffers(&socket)?;
        setsockopt(
            &socket,
            sockopt::ReceiveTimeout,
            &TimeVal::new(ANSWER_SECONDS, 0),
        )?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        let port = getsockname::<NetlinkAddr>(socket.as_raw_fd())?.pid();
        let room = getsockopt(&socket, sockopt::SndBuf)?.saturating_sub(SEND_OVERHEAD);
        Ok(Self {
            longest_send: room.min(MAX_SEND),
            socket,
            port,
            sequence: 0,
            buffer: vec![0; MAX_DATAGRAM],
        })
    }

    /// Returns the port id, by which notifications name this socket.
    pub(super) fn port(&self) -> u32 {
        self.port
    }

    /// Returns the first of `count` sequence numbers that nothing has had yet.
    pub(super) fn sequences(&mut self, count: u32) -> u32 {
        let first = self.sequence.wrapping_add(1);
        self.sequence = self.sequence.wrapping_add(count);
        first
    }

    /// Sends messages at once; the kernel has done them when this returns.
    pub(super) fn send(&self, bytes: &[u8]) -> nix::Result<()> {
        loop {
            let kernel = NetlinkAddr::new(0, 0);
            match sendto(self.socket.as_raw_fd(), bytes, &kernel, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                sent => return sent.map(drop),
            }
        }
    }

    /// Receives one datagram.
    pub(super) fn receive(&mut self, flags: MsgFlags) -> nix::Result<&[u8]> {
        let length = loop {
            match recv(self.socket.as_raw_fd(), &mut self.buffer, flags) {
                Err(Errno::EINTR) => {}
                received => break received?,
            }
        };
        Ok(self.buffer.get(..length).unwrap_or_default())
    }

    /// Passes all messages that are there to `take`. After a send all answers to it are, since the kernel answers within it.
    pub(super) fn queued(&mut self, mut take: impl FnMut(&NfMessage<'_>)) -> nix::Result<()> {
        loop {
            match self.receive(MsgFlags::MSG_DONTWAIT) {
                Ok(datagram) => messages(datagram).for_each(|message| take(&message)),
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Receives all acknowledgements and errors that are there.
    pub(super) fn answers(&mut self) -> nix::Result<Vec<NfAnswer>> {
        let mut answers = Vec::new();
        self.queued(|message| answers.extend(NfAnswer::read(message)))?;
        Ok(answers)
    }

    /// Sends a request that has one answer, and returns that answer as a message.
    pub(super) fn ask(
        &mut self,
        kind: u16,
        family: u8,
        body: impl FnOnce(&mut NfWriter),
    ) -> nix::Result<Vec<u8>> {
        let sequence = self.request(kind, 0, family, body)?;
        loop {
            let datagram = self.receive(MsgFlags::empty())?;
            let mut mine = messages(datagram).filter(|message| message.sequence == sequence);
            match mine.next() {
                None => {}
                Some(answer) if answer.kind == ERROR => {
                    answer.outcome()?;
                    return Err(Errno::EBADMSG);
                }
                Some(answer) if answer.whole => return Ok(answer.raw.to_vec()),
                Some(_) => return Err(Errno::EBADMSG),
            }
        }
    }

    /// Lists objects, and returns the messages that `keep` accepts. If the kernel says that they changed meanwhile, all is listed anew.
    pub(super) fn dump(
        &mut self,
        kind: u16,
        family: u8,
        body: impl Fn(&mut NfWriter),
        keep: impl Fn(&NfMessage<'_>) -> bool,
    ) -> nix::Result<Vec<u8>> {
        for _ in 0..DUMP_TRIES {
            let sequence = self.request(kind, DUMP, family, &body)?;
            if let Some(all) = self.collect(sequence, &keep)? {
                return Ok(all);
            }
        }
        Err(Errno::EINTR)
    }

    fn request(
        &mut self,
        kind: u16,
        flags: u16,
        family: u8,
        body: impl FnOnce(&mut NfWriter),
    ) -> nix::Result<u32> {
        let sequence = self.sequences(1);
        let mut writer = NfWriter::default();
        let head = NfHead {
            kind,
            flags,
            sequence,
            family,
            resource: 0,
        };
        writer.message(head, body);
        self.send(&writer.finish().ok_or(Errno::EMSGSIZE)?)?;
        Ok(sequence)
    }

    /// Receives a dump to its end; `None` if it was interrupted.
    fn collect(
        &mut self,
        sequence: u32,
        keep: impl Fn(&NfMessage<'_>) -> bool,
    ) -> nix::Result<Option<Vec<u8>>> {
        let mut all = Vec::new();
        let mut interrupted = false;
        loop {
            let datagram = self.receive(MsgFlags::empty())?;
            for message in messages(datagram).filter(|message| message.sequence == sequence) {
                interrupted |= message.flags & INTERRUPTED != 0;
                match message.kind {
                    ERROR => {
                        message.outcome()?;
                        return Err(Errno::EBADMSG);
                    }
                    DONE => {
                        message.outcome()?;
                        return Ok((!interrupted).then_some(all));
                    }
                    _ if !message.whole => return Err(Errno::EBADMSG),
                    _ if all.len() > MAX_DUMP => return Err(Errno::EOVERFLOW),
                    _ if keep(&message) => {
                        all.extend(message.raw);
                        all.resize(aligned(all.len()), 0);
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Sizes the buffers of a socket. On a node in a user namespace nobody may go beyond `net.core.wmem_max` and `rmem_max` of the whole machine,
/// to which the kernel cuts these sizes, before it doubles them: a transaction that is larger fails there, with EMSGSIZE.
fn size_buffers(socket: &OwnedFd) -> nix::Result<()> {
    if in_user_namespace() {
        setsockopt(socket, sockopt::SndBuf, &MAX_SEND)?;
        return setsockopt(socket, sockopt::RcvBuf, &RECEIVE_BUFFER);
    }
    setsockopt(socket, sockopt::SndBufForce, &MAX_SEND)?;
    setsockopt(socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)
}

impl AsFd for NfSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl NfAnswer {
    /// Reads an acknowledgement or an error; `None` for another message.
    pub(super) fn read(message: &NfMessage<'_>) -> Option<Self> {
        (message.kind == ERROR).then(|| Self {
            sequence: message.sequence,
            outcome: message.outcome(),
        })
    }
}
