//! Resources of the node that a sandbox or task claims: host ports, leased devices, processors and memory.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::{PortMapping, Protocol, SandboxNetwork};
use crate::error::{Error, Result};
use crate::id::{LeaseToken, SlotId};

/// The host ports that a sandbox claims, whether the gateway maps them, its processes bind them, or something
/// else uses them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostPorts {
    /// Sandboxes of one owner with the same group share the ports they both name, and the SELinux level if they ask
    /// for none: those of a Nomad allocation, or the attempts of a pod. Of a group whose ports are forwarded, it also has the member that they
    /// lead to ([`HostPorts::forwarded_to`]).
    pub group: String,
    /// The ports.
    pub ports: Vec<HostPort>,
}

/// Separates the member of a group from the group, in which no orchestrator has this character.
const MEMBER_MARK: char = '\n';

/// The maximum number of host ports of a sandbox.
pub const HOST_PORTS_MAX: usize = 4096;

/// A host port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// Transport protocol.
    pub protocol: Protocol,
    /// The port, never 0.
    pub port: u16,
    /// The address; `None` for all addresses.
    pub ip: Option<IpAddr>,
}

/// A device lease that a task is created with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseClaim {
    /// The lease.
    pub token: LeaseToken,
    /// The slots of the lease. Left empty by frontends; the gateway fills them in for the backend, which
    /// records them with the task.
    pub slots: Vec<SlotId>,
    /// The task named the devices directly, without requesting a lease: the lease ends with the last task of
    /// its sandbox that uses it.
    pub named: bool,
}

/// The reservation of processors and memory that an orchestrator made for a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ComputeClaim {
    /// The reserved amounts.
    pub reserved: Reserved,
    /// The processors of its limits (`cpuset_cpus`) are exclusive: the orchestrator gives them to no other
    /// task.
    pub exclusive_cpus: bool,
}

/// An amount of processors and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reserved {
    /// Thousandths of a processor.
    pub cpu_milli: u64,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

// === impl HostPorts ===

impl HostPorts {
    /// The ports of a sandbox of this group, without duplicates. `field` names the request field, for errors.
    ///
    /// # Errors
    /// `InvalidArgument` if there are more than [`HOST_PORTS_MAX`].
    pub fn new(
        group: String,
        ports: impl IntoIterator<Item = HostPort>,
        field: &str,
    ) -> Result<Self> {
        let ports: BTreeSet<HostPort> = ports.into_iter().collect();
        if ports.len() > HOST_PORTS_MAX {
            let why = format!(
                "it has {} ports of the host, and may have {HOST_PORTS_MAX}",
                ports.len()
            );
            return Err(Error::invalid(field, why));
        }
        Ok(Self {
            group,
            ports: ports.into_iter().collect(),
        })
    }

    /// The same claims of a sandbox to which the gateway forwards the ports, as the sandbox of this member of the group:
    /// a connection leads to one of them, so members do not share what is forwarded to both. Sandboxes of one member
    /// do: a task that is started again does not wait for its predecessor's end.
    #[must_use]
    pub fn forwarded_to(mut self, member: &str) -> Self {
        self.group.push(MEMBER_MARK);
        self.group.push_str(member);
        self
    }

    /// Returns whether sandboxes of one owner with these claims share the ports they both name.
    #[must_use]
    pub fn shares_with(&self, other: &Self) -> bool {
        let (group, member) = self.group_and_member();
        let (other_group, other_member) = other.group_and_member();
        let is_one_member = match (member, other_member) {
            (Some(member), Some(other)) => member == other,
            (None, _) | (_, None) => true,
        };
        !group.is_empty() && group == other_group && is_one_member
    }

    /// The group alone; empty if the sandbox is in none.
    #[must_use]
    pub fn group_name(&self) -> &str {
        self.group_and_member().0
    }

    fn group_and_member(&self) -> (&str, Option<&str>) {
        match self.group.split_once(MEMBER_MARK) {
            Some((group, member)) => (group, Some(member)),
            None => (self.group.as_str(), None),
        }
    }
}

// === impl LeaseClaim ===

impl LeaseClaim {
    /// The claim of a frontend, which knows only the token.
    #[must_use]
    pub const fn new(token: LeaseToken) -> Self {
        Self {
            token,
            slots: Vec::new(),
            named: false,
        }
    }
}

// === impl Reserved ===

impl Reserved {
    /// The sum; saturating.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            cpu_milli: self.cpu_milli.saturating_add(other.cpu_milli),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }

    /// The difference; saturating at 0.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self {
            cpu_milli: self.cpu_milli.saturating_sub(other.cpu_milli),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
        }
    }
}

// === impl HostPort ===

impl HostPort {
    /// The ports that are forwarded into a sandbox with this network, in the order of the request.
    #[must_use]
    pub fn forwarded_into(network: &SandboxNetwork) -> Vec<Self> {
        match network {
            SandboxNetwork::Pod(network) => network.ports.iter().map(Self::of).collect(),
            // Its processes bind them, or the program that has made the namespace forwards them.
            SandboxNetwork::Host | SandboxNetwork::Isolated | SandboxNetwork::Joined(_) => {
                Vec::new()
            }
        }
    }

    /// The port of the node that a mapping forwards.
    #[must_use]
    pub const fn of(mapping: &PortMapping) -> Self {
        Self {
            protocol: mapping.protocol,
            port: mapping.host_port,
            ip: mapping.host_ip,
        }
    }

    /// The port that a process of the node binds at this address, or at all. A socket at `::` has IPv4 as well, unless its
    /// program opts out.
    #[must_use]
    pub fn bound(protocol: Protocol, port: u16, ip: Option<IpAddr>) -> Self {
        let has_both = ip == Some(Ipv6Addr::UNSPECIFIED.into());
        Self {
            protocol,
            port,
            ip: ip.filter(|_| !has_both),
        }
    }

    /// Returns whether both cannot be had at once: the same protocol and port, and an address in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.protocol == other.protocol
            && self.port == other.port
            && share_address(self.ip, other.ip)
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ip {
            None => write!(f, "{}/{}", self.port, self.protocol.as_str()),
            Some(IpAddr::V4(ip)) => write!(f, "{ip}:{}/{}", self.port, self.protocol.as_str()),
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}/{}", self.port, self.protocol.as_str()),
        }
    }
}

/// Returns whether two addresses on which ports are had overlap. An unspecified one covers its family: plugins forward a port
/// of `::` from IPv6 alone. For that of a socket see [`HostPort::bound`].
fn share_address(one: Option<IpAddr>, other: Option<IpAddr>) -> bool {
    let (Some(one), Some(other)) = (one, other) else {
        return true;
    };
    let one = one.to_canonical();
    let other = other.to_canonical();
    let is_same_family = one.is_ipv4() == other.is_ipv4();
    one == other || is_same_family && (one.is_unspecified() || other.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(ip: &str) -> HostPort {
        HostPort {
            protocol: Protocol::Tcp,
            port: 80,
            ip: (!ip.is_empty()).then(|| ip.parse().unwrap()),
        }
    }

    #[test]
    fn address_overlap_matches_listening_sockets() {
        let check = |one: &str, other: &str, expected: bool| {
            assert_eq!(
                port(one).overlaps(&port(other)),
                expected,
                "{one:?} and {other:?}"
            );
            assert_eq!(
                port(other).overlaps(&port(one)),
                expected,
                "{other:?} and {one:?}"
            );
        };
        for any in [
            "",
            "0.0.0.0",
            "::",
            "10.0.0.1",
            "::ffff:10.0.0.1",
            "fd00::1",
        ] {
            check(any, "", true);
        }
        check("::", "::", true);
        check("::", "fd00::1", true);
        check("::", "0.0.0.0", false);
        check("::", "10.0.0.1", false);
        check("::", "::ffff:10.0.0.1", false);
        check("0.0.0.0", "10.0.0.1", true);
        check("0.0.0.0", "fd00::1", false);
        check("10.0.0.1", "::ffff:10.0.0.1", true);
        check("10.0.0.1", "10.0.0.2", false);
        check("fd00::1", "fd00::2", false);
        check("fd00::1", "10.0.0.1", false);
    }

    #[test]
    fn socket_at_all_addresses_of_ipv6_has_those_of_ipv4_too() {
        for (bound, forwarded, expected) in [
            ("::", "10.0.0.1", true),
            ("::", "0.0.0.0", true),
            ("::", "fd00::1", true),
            ("", "10.0.0.1", true),
            ("0.0.0.0", "::", false),
            ("10.0.0.1", "::", false),
            ("fd00::1", "::", true),
            ("fd00::1", "10.0.0.1", false),
        ] {
            let socket = HostPort::bound(Protocol::Tcp, 80, port(bound).ip);
            let overlap = socket.overlaps(&port(forwarded));
            assert_eq!(overlap, expected, "{bound:?} {forwarded:?}");
        }
    }

    #[test]
    fn members_of_a_group_share_what_is_not_forwarded_to_both() {
        let claims = |group: &str, member: Option<&str>| {
            let claims = HostPorts::new(group.to_owned(), [port("")], "ports").unwrap();
            match member {
                Some(member) => claims.forwarded_to(member),
                None => claims,
            }
        };
        for (one, other, expected) in [
            // Two tasks of an allocation publish one label.
            (("a", Some("web")), ("a", Some("db")), false),
            // A task is started again while its predecessor still ends.
            (("a", Some("web")), ("a", Some("web")), true),
            // A task on the host's network, or of an earlier version of the daemon.
            (("a", Some("web")), ("a", None), true),
            (("a", None), ("a", None), true),
            (("a", Some("web")), ("b", Some("web")), false),
            (("a", Some("web")), ("b", None), false),
            (("", Some("web")), ("", Some("web")), false),
            (("", None), ("", None), false),
        ] {
            let one = claims(one.0, one.1);
            let other = claims(other.0, other.1);
            assert_eq!(one.shares_with(&other), expected, "{one:?} {other:?}");
            assert_eq!(other.shares_with(&one), expected, "{other:?} {one:?}");
        }
    }

    #[test]
    fn claims_differ_by_protocol_and_port() {
        let udp = HostPort {
            protocol: Protocol::Udp,
            ..port("")
        };
        assert!(!udp.overlaps(&port("")));
        assert!(
            !HostPort {
                port: 81,
                ..port("")
            }
            .overlaps(&port(""))
        );
    }

    #[test]
    fn port_claim_display_format() {
        assert_eq!(port("").to_string(), "80/tcp");
        assert_eq!(port("10.0.0.1").to_string(), "10.0.0.1:80/tcp");
        assert_eq!(port("fd00::1").to_string(), "[fd00::1]:80/tcp");
    }
}
