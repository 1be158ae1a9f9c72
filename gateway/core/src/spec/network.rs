//! How a sandbox is connected, and what its tasks are told of names.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::error::{Error, Result};

/// How a sandbox is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxNetwork {
    /// The host's own namespace, also for UTS.
    Host,
    /// A namespace of its own, connected by CNI plugins.
    Pod(PodNetwork),
    /// A namespace of its own with loopback only.
    Isolated,
    /// A namespace that somebody else made and connects.
    Joined(PathBuf),
}

/// What CNI is told about a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodNetwork {
    /// Which network it is.
    pub link: Link,
    /// The hardware address of its interface; `None` leaves that to the network.
    pub mac: Option<MacAddress>,
    /// Ports of the host that lead here.
    pub ports: Vec<PortMapping>,
    /// Rate limits.
    pub bandwidth: Option<Bandwidth>,
    /// `CNI_ARGS` pairs, in order.
    pub args: Vec<(String, String)>,
    /// Capability arguments of the frontend's own, by capability name.
    pub capabilities: BTreeMap<String, BTreeMap<String, String>>,
}

/// A network that sandboxes can be connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Link {
    /// The node's, as others have configured it.
    #[default]
    Node,
    /// The gateway's own bridge, which is there without anybody's doing.
    Bridge,
}

/// A hardware address of one interface: neither of a group nor all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MacAddress([u8; 6]);

impl MacAddress {
    /// Reads six hexadecimal bytes with colons or dashes between them.
    ///
    /// # Errors
    /// `InvalidArgument`, naming `mac_address`.
    pub fn parse(text: &str) -> Result<Self> {
        let refused = |why: &str| Error::invalid("mac_address", format!("{text:?} {why}"));
        let parts: Vec<&str> = text.split([':', '-']).collect();
        let byte = |part: &&str| match part.len() {
            2 if part.bytes().all(|digit| digit.is_ascii_hexdigit()) => u8::from_str_radix(part, 16).ok(),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = parts.iter().map(byte).collect();
        let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| refused("is no hardware address, as 02:42:ac:11:00:02 is"))?;
        if bytes[0] & 1 == 1 || bytes == [0; 6] {
            return Err(refused("is not the address of one interface"));
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Namespace of a sandbox's host name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UtsMode {
    /// The host's with the host's network, else its own.
    #[default]
    Network,
    /// Its own.
    Own,
    /// The host's.
    Host,
}

/// A port of the host that leads into a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortMapping {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port inside.
    pub container_port: u16,
    /// Port outside, never 0.
    pub host_port: u16,
    /// Address outside; `None` for all.
    pub host_ip: Option<IpAddr>,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// The word that operators know it by.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// The protocol that [`Protocol::as_str`] gives this word for.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::Sctp].into_iter().find(|protocol| protocol.as_str() == word)
    }
}

/// Rate limits of a sandbox's interface; `None` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bandwidth {
    /// Towards the sandbox, bits per second.
    pub ingress_bits: Option<u64>,
    /// From the sandbox, bits per second.
    pub egress_bits: Option<u64>,
}

/// Resolver configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dns {
    /// Name servers, by address.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options.
    pub options: Vec<String>,
    /// What is left empty here is as the host has it.
    pub host_defaults: bool,
}

/// A line of `/etc/hosts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEntry {
    /// The address.
    pub ip: HostAddress,
    /// Names for it.
    pub names: Vec<String>,
}

/// An address in `/etc/hosts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostAddress {
    /// This one.
    Ip(IpAddr),
    /// That of the host, as the sandbox sees it. Only the gateway's own bridge, and the host's network, have one that is known.
    Gateway,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hardware_address_is_six_bytes_of_one_interface() {
        for text in ["02:42:ac:11:00:02", "02-42-AC-11-00-02"] {
            assert_eq!(MacAddress::parse(text).unwrap().to_string(), "02:42:ac:11:00:02");
        }
        for text in [
            "",
            "02:42:ac:11:00",
            "02:42:ac:11:00:02:03",
            "2:42:ac:11:00:02",
            "02:42:ac:11:00:0g",
            "+2:42:ac:11:00:02",
            "01:42:ac:11:00:02",
            "00:00:00:00:00:00",
        ] {
            assert!(MacAddress::parse(text).unwrap_err().to_string().starts_with("mac_address: "), "{text}");
        }
    }
}
