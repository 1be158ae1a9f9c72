//! Network and name resolution of a sandbox.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use super::{ClusterBridge, NetworkName};
use crate::error::{Error, Result};

/// The network of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxNetwork {
    /// The host's network and UTS namespaces.
    Host,
    /// A namespace of its own, set up by CNI plugins.
    Pod(PodNetwork),
    /// A namespace of its own with loopback only.
    Isolated,
    /// A namespace that another program created and connects.
    Joined(PathBuf),
}

/// The CNI configuration of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodNetwork {
    /// The network to attach to.
    pub link: Link,
    /// The MAC address of its interface; `None` leaves it to the network.
    pub mac: Option<MacAddress>,
    /// Host ports that are forwarded to it.
    pub ports: Vec<PortMapping>,
    /// Rate limits.
    pub bandwidth: Option<Bandwidth>,
    /// `CNI_ARGS` pairs, in order.
    pub args: Vec<(String, String)>,
    /// Further CNI capability arguments of the frontend, by capability name.
    pub capabilities: BTreeMap<String, BTreeMap<String, String>>,
}

/// A network that sandboxes can be attached to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Link {
    /// The network of the node's pods: its CNI network, as configured by its operator, or a bridge of the gateway for them.
    #[default]
    Node,
    /// The gateway's own bridge, which needs no configuration.
    Bridge,
    /// One of the node's CNI networks, by its name. It must be configured.
    Named(NetworkName),
    /// A bridge network that the owner's cluster defines.
    ClusterBridge(Box<ClusterBridge>),
}

/// The MAC address of one interface: neither multicast nor all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MacAddress([u8; 6]);

impl MacAddress {
    /// Parses six hexadecimal bytes separated by colons or dashes.
    ///
    /// # Errors
    /// `InvalidArgument`, naming `mac_address`.
    pub fn parse(text: &str) -> Result<Self> {
        let refused = |why: &str| Error::invalid("mac_address", format!("{text:?} {why}"));
        let parts: Vec<&str> = text.split([':', '-']).collect();
        let byte = |part: &&str| match part.len() {
            2 if part.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
                u8::from_str_radix(part, 16).ok()
            }
            _ => None,
        };
        let bytes: Option<Vec<u8>> = parts.iter().map(byte).collect();
        let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
        let bytes =
            bytes.ok_or_else(|| refused("is no hardware address, as 02:42:ac:11:00:02 is"))?;
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

/// UTS namespace of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UtsMode {
    /// The host's with the host's network, otherwise its own.
    #[default]
    Network,
    /// Its own.
    Own,
    /// The host's.
    Host,
}

/// A host port that is forwarded into a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortMapping {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port in the sandbox.
    pub container_port: u16,
    /// Port on the host, never 0.
    pub host_port: u16,
    /// Address on the host; `None` for all addresses.
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
    /// The lower-case name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// The protocol with this [`Protocol::as_str`] name.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::Sctp]
            .into_iter()
            .find(|protocol| protocol.as_str() == word)
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
    /// Name server addresses.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options.
    pub options: Vec<String>,
    /// Fields that are empty here are taken from the host.
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

/// An address for `/etc/hosts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostAddress {
    /// A fixed address.
    Ip(IpAddr),
    /// The host's address as seen by the sandbox. Known only for the gateway's own bridge and the host's
    /// network.
    Gateway,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_address_is_a_six_byte_unicast_address() {
        for text in ["02:42:ac:11:00:02", "02-42-AC-11-00-02"] {
            assert_eq!(
                MacAddress::parse(text).unwrap().to_string(),
                "02:42:ac:11:00:02"
            );
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
            assert!(
                MacAddress::parse(text)
                    .unwrap_err()
                    .to_string()
                    .starts_with("mac_address: "),
                "{text}"
            );
        }
    }
}
