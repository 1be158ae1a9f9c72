//! Removes connections that the kernel still translates, so that a port and an address can be used again.
//!
//! The kernel translates all packets of a connection as the first one. TCP notices when the other side is another one; a client of UDP
//! that keeps sending is sent to where its first packet went for as long as it does, and one that began before the port was published
//! never reaches the container.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use nix::errno::Errno;
use nix::sys::socket::SockFlag;

use super::error::NftError;
use super::family::{NftFamily, NftSubnet, Transport};
use super::message::{
    ACK, CONNTRACK, NfHead, NfMessage, NfWriter, attribute, attributes, messages,
};
use super::socket::NfSocket;

/// `IPCTNL_MSG_CT_GET`, `..._DELETE`.
const GET: u16 = 1;
const DELETE: u16 = 2;
/// `CTA_TUPLE_ORIG`, `CTA_TUPLE_REPLY`, `CTA_STATUS`, `CTA_ID`, `CTA_ZONE`.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
const ID: u16 = 12;
const ZONE: u16 = 18;
/// `CTA_TUPLE_IP`, `CTA_TUPLE_PROTO`.
const ADDRESSES: u16 = 1;
const PROTOCOL: u16 = 2;
/// `CTA_PROTO_NUM`, `CTA_PROTO_SRC_PORT`, `CTA_PROTO_DST_PORT`.
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
/// `IPS_DST_NAT`: the destination of the connection was changed.
const DST_NAT: u32 = 0x20;
/// `NLA_F_NESTED` is set by the writer; an attribute that is copied needs it too.
const NESTED: u16 = 1 << 15;
/// Limit of deletions that are sent at once: each has an answer, and all answers must fit in the socket's buffer.
const AT_ONCE: usize = 256;

/// Returns whether a connection of the protocol lasts as long as a client sends, whoever answers. One of TCP begins again by itself.
pub(crate) const fn is_lasting(protocol: Transport) -> bool {
    match protocol {
        Transport::Udp | Transport::Sctp => true,
        Transport::Tcp => false,
    }
}

/// Connections that are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flows {
    /// Those to a port of the node that were made before it was published, and so are not translated. Of connections through the node that
    /// look the same nothing is lost: they are known again with their next packet.
    BeforePublished {
        /// The protocol.
        protocol: Transport,
        /// The address of the node, or all.
        at: Option<IpAddr>,
        /// The port of the node.
        port: u16,
    },
    /// Those that are translated to a port of a container.
    To {
        /// The protocol.
        protocol: Transport,
        /// The port of the node that led there. Connections by others are removed as well.
        port: u16,
        /// The address and port of the container.
        container: SocketAddr,
    },
    /// Those from and to an address of a container, of all protocols.
    Of(IpAddr),
}

/// One direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlowTuple {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    /// Ports of source and destination, of protocols that have them.
    ports: Option<(u16, u16)>,
}

/// A connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flow {
    original: FlowTuple,
    reply: FlowTuple,
}

/// The connections of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Conntrack {
    socket: NfSocket,
}

impl Conntrack {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`NftError::Socket`].
    pub fn open() -> Result<Self, NftError> {
        let socket =
            NfSocket::open(0, SockFlag::empty()).map_err(|source| NftError::Socket { source })?;
        Ok(Self { socket })
    }

    /// Removes connections, and returns how many there were. Idempotent.
    ///
    /// The kernel lists all connections of a family for it, in some 30 ms for 20,000: call it once for many ports, and not before the answer
    /// to a client. Call it after the change of elements that it follows: connections that begin in between are then already as they should
    /// be. Blocks until it is done. One that is killed has removed some.
    ///
    /// # Errors
    /// [`NftError::Query`], for example if the kernel has no nfnetlink_conntrack.
    pub fn remove(&mut self, flows: &[Flows]) -> Result<usize, NftError> {
        let mut removed = 0;
        for family in NftFamily::ALL {
            if flows.iter().any(|flows| flows.may_be_of(family)) {
                let is_wanted = |flow: &Flow| flows.iter().any(|flows| flows.include(flow));
                removed += self.remove_of(family, None, is_wanted)?;
            }
        }
        Ok(removed)
    }

    /// Removes the connections of UDP and SCTP that are translated to an address of these subnets which is not in use, and returns how many
    /// there were: their clients would reach whoever gets the address next. As [`Conntrack::remove`], but the kernel lists no connections that are
    /// not translated: on a node with many, most are none.
    ///
    /// # Errors
    /// [`NftError::Query`].
    pub fn remove_abandoned(
        &mut self,
        subnets: &[NftSubnet],
        in_use: &BTreeSet<IpAddr>,
    ) -> Result<usize, NftError> {
        let mut removed = 0;
        for family in NftFamily::ALL {
            if subnets.iter().any(|subnet| subnet.family() == family) {
                let is_wanted = |flow: &Flow| flow.is_abandoned(subnets, in_use);
                removed += self.remove_of(family, Some(DST_NAT), is_wanted)?;
            }
        }
        Ok(removed)
    }

    /// Removes the wanted ones of the connections whose status has these bits, or of all.
    fn remove_of(
        &mut self,
        family: NftFamily,
        status: Option<u32>,
        is_wanted: impl Fn(&Flow) -> bool,
    ) -> Result<usize, NftError> {
        let wanted = |message: &NfMessage<'_>| {
            let flow = Flow::read(message.body(), family);
            flow.is_some_and(|flow| is_wanted(&flow))
        };
        let listed = self
            .list(family, status, wanted)
            .map_err(NftError::query("list connections"))?;
        let found: Vec<_> = messages(&listed).collect();
        let mut removed = 0;
        for part in found.chunks(AT_ONCE) {
            removed += self
                .delete(family, part)
                .map_err(NftError::query("remove connections"))?;
        }
        Ok(removed)
    }

    /// Lists the connections whose status has these bits, or all, and returns those that `keep` accepts. Kernels before 5.15 do not know the filter,
    /// and list all.
    fn list(
        &mut self,
        family: NftFamily,
        status: Option<u32>,
        keep: impl Fn(&NfMessage<'_>) -> bool,
    ) -> nix::Result<Vec<u8>> {
        let filter = |body: &mut NfWriter| {
            if let Some(bits) = status {
                body.number(STATUS, bits);
            }
        };
        let kind = CONNTRACK | GET;
        self.socket.dump(kind, family.number(), filter, keep)
    }

    fn delete(&mut self, family: NftFamily, listed: &[NfMessage<'_>]) -> nix::Result<usize> {
        let count = u32::try_from(listed.len()).map_err(|_| Errno::EMSGSIZE)?;
        let first = self.socket.sequences(count);
        let mut writer = NfWriter::default();
        for (sequence, message) in (0..count).zip(listed) {
            let head = NfHead {
                kind: CONNTRACK | DELETE,
                flags: ACK,
                sequence: first.wrapping_add(sequence),
                family: family.number(),
                resource: 0,
            };
            writer.message(head, |body| name_connection(message, body));
        }
        self.socket.send(&writer.finish().ok_or(Errno::EMSGSIZE)?)?;
        let mut removed = 0;
        for answer in self.socket.answers()? {
            match answer.outcome {
                _ if answer.sequence.wrapping_sub(first) >= count => {}
                Ok(()) => removed += 1,
                // It ended by itself.
                Err(Errno::ENOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(removed)
    }
}

/// Writes what names a listed connection, and no other one that has the same addresses later.
fn name_connection(listed: &NfMessage<'_>, body: &mut NfWriter) {
    for (kind, value) in attributes(listed.body()) {
        match kind {
            ORIGINAL => body.bytes(kind | NESTED, value),
            ID | ZONE => body.bytes(kind, value),
            _ => {}
        }
    }
}

impl Flows {
    fn may_be_of(&self, family: NftFamily) -> bool {
        match self {
            Self::BeforePublished { at: None, .. } => true,
            Self::BeforePublished { at: Some(at), .. } => NftFamily::of(at) == family,
            Self::To { container, .. } => NftFamily::of(&container.ip()) == family,
            Self::Of(address) => NftFamily::of(address) == family,
        }
    }

    /// Returns whether a connection is one of them.
    pub(super) fn include(&self, flow: &Flow) -> bool {
        let Flow { original, reply } = flow;
        match self {
            Self::BeforePublished { protocol, at, port } => {
                original.protocol == protocol.number()
                    && original.ports.is_some_and(|(_, to)| to == *port)
                    && at.is_none_or(|at| at == original.destination)
                    && *reply == original.turned()
            }
            Self::To {
                protocol,
                port: _,
                container,
            } => {
                reply.protocol == protocol.number()
                    && reply.source == container.ip()
                    && reply
                        .ports
                        .is_some_and(|(from, _)| from == container.port())
            }
            Self::Of(address) => original.source == *address || reply.source == *address,
        }
    }
}

impl Flow {
    /// Reads a listed connection.
    pub(super) fn read(body: &[u8], family: NftFamily) -> Option<Self> {
        let tuple = |kind: u16| FlowTuple::read(attribute(body, kind)?, family);
        Some(Self {
            original: tuple(ORIGINAL)?,
            reply: tuple(REPLY)?,
        })
    }

    /// Returns whether it lasts as long as its client sends, and is translated to an address of these subnets that is not in use.
    fn is_abandoned(&self, subnets: &[NftSubnet], in_use: &BTreeSet<IpAddr>) -> bool {
        let Self { original, reply } = self;
        let to = reply.source;
        Transport::from_number(reply.protocol).is_some_and(is_lasting)
            && original.destination != to
            && !in_use.contains(&to)
            && subnets.iter().any(|subnet| subnet.has(&to))
    }
}

impl FlowTuple {
    fn read(tuple: &[u8], family: NftFamily) -> Option<Self> {
        let addresses = attribute(tuple, ADDRESSES)?;
        let (source, destination) = match family {
            NftFamily::Ip4 => (1, 2),
            NftFamily::Ip6 => (3, 4),
            NftFamily::Bridge => return None,
        };
        let protocol = attribute(tuple, PROTOCOL)?;
        let port = |kind: u16| {
            let bytes = attribute(protocol, kind)?.try_into().ok()?;
            Some(u16::from_be_bytes(bytes))
        };
        Some(Self {
            source: family.address(attribute(addresses, source)?)?,
            destination: family.address(attribute(addresses, destination)?)?,
            protocol: *attribute(protocol, PROTOCOL_NUMBER)?.first()?,
            ports: port(SOURCE_PORT).zip(port(DESTINATION_PORT)),
        })
    }

    /// Returns the other direction of a connection that is not translated.
    fn turned(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            protocol: self.protocol,
            ports: self.ports.map(|(from, to)| (to, from)),
        }
    }
}

#[cfg(test)]
mod tests;
