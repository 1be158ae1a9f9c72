//! A socket to the kernel: sends batches of requests, and collects their answers.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::socket::SetSockOpt;
use nix::sys::socket::sockopt::SetBool;
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{
    Timeout, set_socket_recv_buffer_size_force, set_socket_send_buffer_size_force,
    set_socket_timeout,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
    socket_with,
};

use super::decode::messages;
use super::error::NetlinkError;
use super::exchange::{Exchange, Received, is_answered};
use super::message::Request;
use super::netns::NetNs;
use super::uapi::{
    NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK, NLM_F_DUMP, SOL_NETLINK,
};

/// Time for the answers to a batch. The kernel answers within `sendto`, so this is only a guard against a hang.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// The most requests at once to which the kernel answers: their answers fit into a receive buffer of the default size.
const ANSWERED_MAX: usize = 128;
/// Limit of attempts to read a list that has changed while it was read.
const LIST_TRIES: u32 = 5;
/// The longest datagram of the kernel: it sends parts of lists of up to 32 KiB.
const DATAGRAM_MAX: usize = 64 << 10;
/// Send and receive buffers, for which the kernel needs CAP_NET_ADMIN; without it, those of the node's default size remain.
const BUFFER: usize = 1 << 20;

/// Subsystem of the kernel to which a socket leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Links, addresses, routes, neighbours, rules and queueing disciplines: rtnetlink(7).
    Route,
    /// `nf_tables` and connection tracking.
    Netfilter,
}

/// A socket to the kernel, in the network namespace of the thread that opened it.
///
/// Calls take it exclusively: the kernel carries out the requests of one batch in order, and those of all sockets about links one after the
/// other. While others hold the kernel's lock for this, sending blocks, and no deadline ends that.
pub struct Socket {
    fd: OwnedFd,
    /// The sequence number of the next request. 0 is that of events.
    sequence: u32,
    buffer: Vec<u8>,
}

/// An option of the socket that is on or off.
#[derive(Debug, Clone, Copy)]
struct ShortAnswers;
nix::setsockopt_impl!(ShortAnswers, SOL_NETLINK, NETLINK_CAP_ACK, bool, SetBool);

/// An option of the socket that is on or off.
#[derive(Debug, Clone, Copy)]
struct TextsOfErrors;
nix::setsockopt_impl!(TextsOfErrors, SOL_NETLINK, NETLINK_EXT_ACK, bool, SetBool);

/// An option of the socket that is on or off.
#[derive(Debug, Clone, Copy)]
struct FilteredLists;
nix::setsockopt_impl!(
    FilteredLists,
    SOL_NETLINK,
    NETLINK_GET_STRICT_CHK,
    bool,
    SetBool
);

// === impl Socket ===

impl Socket {
    /// Opens one in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`].
    pub fn open(family: Family) -> Result<Self, NetlinkError> {
        Self::open_for_events(family, 0)
    }

    /// Opens one in this network namespace.
    ///
    /// # Errors
    /// Those of [`Socket::open`] and [`NetNs::run`].
    pub fn open_in(namespace: &NetNs, family: Family) -> Result<Self, NetlinkError> {
        namespace.run(|| Self::open(family))?
    }

    /// Opens one that also receives the events of these groups, one bit each: see [`Socket::events`].
    ///
    /// # Errors
    /// [`NetlinkError::Socket`].
    pub fn open_for_events(family: Family, groups: u32) -> Result<Self, NetlinkError> {
        let not_opened = |source| failed("open a socket to the kernel", source);
        let protocol = match family {
            Family::Route => None,
            Family::Netfilter => Some(netlink::NETFILTER),
        };
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )
        .map_err(not_opened)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups)).map_err(not_opened)?;
        set_socket_timeout(&fd, Timeout::Recv, Some(ANSWERS_WITHIN)).map_err(not_opened)?;
        // Kernels and namespaces without one of these answer all the same: with the request in each refusal, without a text, with
        // more of a list than was asked for, and to fewer requests at once.
        let _ = ShortAnswers.set(&fd, &true);
        let _ = TextsOfErrors.set(&fd, &true);
        if family == Family::Route {
            let _ = FilteredLists.set(&fd, &true);
        }
        let _ = set_socket_send_buffer_size_force(&fd, BUFFER);
        let _ = set_socket_recv_buffer_size_force(&fd, BUFFER);
        Ok(Self {
            fd,
            sequence: 1,
            buffer: vec![0; DATAGRAM_MAX],
        })
    }

    /// Sends these requests at once, and returns the messages that answer each, in their order. Acknowledgements are no such messages.
    ///
    /// The kernel carries out all requests about links, also those after one that it refuses: who gets an error undoes the whole.
    /// A caller that goes away, or a kill, may leave any first part of them carried out.
    ///
    /// # Errors
    /// [`NetlinkError::Refused`] for the first that is refused; [`NetlinkError::TooMany`] if more than 128 are to be answered and
    /// [`NetlinkError::TooLong`], before anything is sent; [`NetlinkError::Timeout`], [`NetlinkError::Malformed`] and
    /// [`NetlinkError::Socket`], after which it is not known what has been carried out.
    pub fn run(&mut self, requests: &[Request]) -> Result<Vec<Vec<Received>>, NetlinkError> {
        self.exchange(requests)?.finish()
    }

    /// Sends one request, and returns the messages that answer it.
    ///
    /// # Errors
    /// Those of [`Socket::run`].
    pub fn run_one(&mut self, request: &Request) -> Result<Vec<Received>, NetlinkError> {
        let mut all = self.run(std::slice::from_ref(request))?;
        Ok(all.pop().unwrap_or_default())
    }

    /// Reads a list: the answer to a request of this type with the flag `NLM_F_DUMP`, whole, and as it was at one time. A list that
    /// changes while it is read is read again.
    ///
    /// # Errors
    /// Those of [`Socket::run`]; [`NetlinkError::Unsteady`] if it has changed each of five times.
    pub fn list(
        &mut self,
        kind: u16,
        header: &[u8],
        doing: &str,
    ) -> Result<Vec<Received>, NetlinkError> {
        let request = [Request::new(kind, NLM_F_DUMP, header, doing.to_owned())];
        for _ in 0..LIST_TRIES {
            let exchange = self.exchange(&request)?;
            if !exchange.is_interrupted {
                return Ok(exchange.finish()?.pop().unwrap_or_default());
            }
        }
        Err(NetlinkError::Unsteady {
            doing: doing.to_owned(),
            tries: LIST_TRIES,
        })
    }

    /// The next events of the groups for which it was opened, which are those of one datagram; none if there is no event within five
    /// seconds, or what comes is an answer that nobody waits for any more.
    ///
    /// # Errors
    /// [`NetlinkError::EventsLost`] if the kernel had no room for all events: later calls go on with the next ones.
    /// [`NetlinkError::Malformed`], [`NetlinkError::Socket`].
    pub fn events(&mut self) -> Result<Vec<Received>, NetlinkError> {
        const DOING: &str = "read events of the kernel";
        let datagram = match self.receive() {
            Ok(datagram) => datagram,
            Err(Errno::AGAIN) => return Ok(Vec::new()),
            Err(Errno::NOBUFS) => return Err(NetlinkError::EventsLost),
            Err(source) => return Err(failed(DOING, source)),
        };
        let events = messages(datagram).map(|message| {
            let message = message.map_err(|_| malformed(DOING, "a message is torn"))?;
            Ok(Received {
                kind: message.kind,
                body: message.body.to_vec(),
            })
        });
        events.collect()
    }

    fn exchange<'a>(&mut self, requests: &'a [Request]) -> Result<Exchange<'a>, NetlinkError> {
        let answered = requests
            .iter()
            .filter(|request| is_answered(request))
            .count();
        if answered > ANSWERED_MAX {
            return Err(NetlinkError::TooMany {
                requests: answered,
                most: ANSWERED_MAX,
            });
        }
        let first = self.take_sequence(requests.len());
        let mut bytes = Vec::new();
        for (request, sequence) in requests.iter().zip(first..) {
            request.encode(sequence, &mut bytes)?;
        }
        let mut exchange = Exchange::new(requests, first);
        if requests.is_empty() {
            return Ok(exchange);
        }
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.fd, &bytes, SendFlags::empty(), &kernel)
            .map_err(|source| failed(requests[0].doing(), source))?;
        let until = Instant::now() + ANSWERS_WITHIN;
        while !exchange.is_complete() {
            let is_late = Instant::now() > until;
            let datagram = match self.receive() {
                Ok(datagram) if !is_late => datagram,
                // Events that were lost are no answers: their reader looks at the whole all the same.
                Err(Errno::NOBUFS) if !is_late => continue,
                Ok(_) | Err(Errno::NOBUFS | Errno::AGAIN) => {
                    return Err(NetlinkError::Timeout {
                        doing: exchange.doing(),
                        seconds: ANSWERS_WITHIN.as_secs(),
                    });
                }
                Err(source) => return Err(failed(&exchange.doing(), source)),
            };
            if let Err(reason) = exchange.take(datagram) {
                return Err(malformed(&exchange.doing(), reason));
            }
        }
        Ok(exchange)
    }

    /// The sequence numbers of this many requests begin with the returned one. Answers to earlier requests have others.
    fn take_sequence(&mut self, count: usize) -> u32 {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let (first, next) = match self.sequence.checked_add(count) {
            Some(next) => (self.sequence, next),
            None => (1, count.saturating_add(1)),
        };
        self.sequence = next;
        first
    }

    /// The next datagram of the kernel; empty if somebody else has sent it. A process of the namespace may do so, if it has CAP_NET_ADMIN
    /// there, as a container may have: by sending much it can delay answers, and a caller for as long as it waits for them, no more.
    fn receive(&mut self) -> Result<&[u8], Errno> {
        let (length, sender) = loop {
            match recvfrom(&self.fd, &mut self.buffer[..], RecvFlags::TRUNC) {
                Ok((_, length, sender)) => break (length, sender),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        };
        let is_kernel = sender
            .and_then(|sender| SocketAddrNetlink::try_from(sender).ok())
            .is_some_and(|sender| sender.pid() == 0);
        if !is_kernel {
            return Ok(&[]);
        }
        self.buffer.get(..length).ok_or(Errno::MSGSIZE)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket")
            .field("fd", &self.fd)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

fn failed(doing: &str, source: Errno) -> NetlinkError {
    NetlinkError::Socket {
        doing: doing.to_owned(),
        source: io::Error::from(source),
    }
}

fn malformed(doing: &str, reason: &'static str) -> NetlinkError {
    NetlinkError::Malformed {
        doing: doing.to_owned(),
        reason,
    }
}
