//! Why a container could not be attached or detached.

use nix::errno::Errno;
use thiserror::Error;

use crate::addresses::AddressError;
use crate::netlink::{LinkName, NetlinkError};
use crate::nft::NftError;

/// How many ports the kernel gives a bridge: it numbers them with ten bits, from 1 on.
pub(super) const PORTS_MAX: usize = 1023;

/// Failure of a call of [`crate::driver`].
#[derive(Debug, Error)]
pub enum DriverError {
    /// Addresses could not be assigned or released.
    #[error(transparent)]
    Addresses(#[from] AddressError),
    /// Devices, addresses, routes or a namespace could not be changed.
    #[error(transparent)]
    Links(#[from] NetlinkError),
    /// Tables could not be changed.
    #[error(transparent)]
    Rules(#[from] NftError),
    /// There is a device of the bridge's name that is no bridge.
    #[error(
        "{name} is a network device {kind}, not a bridge: rename it, or give the bridge another name"
    )]
    NoBridge {
        /// The name.
        name: String,
        /// The kind of the device, after its name.
        kind: String,
    },
    /// Another bridge has some of the addresses.
    #[error(
        "{subnet} has addresses of {taken}, which the bridge {bridge} has: give one of them another subnet, or, if nothing uses {bridge} any more, delete it and restart the daemon"
    )]
    SubnetTaken {
        /// The subnet that was to be a bridge's.
        subnet: String,
        /// That of the other bridge.
        taken: String,
        /// The name of the other bridge.
        bridge: String,
    },
    /// The bridge has as many containers as the kernel numbers.
    #[error(
        "the bridge {bridge} has {PORTS_MAX} ports, the most that Linux gives one: stop containers on it, or connect new ones to a second bridge"
    )]
    BridgeFull {
        /// The name of the bridge.
        bridge: String,
        /// What the kernel refused.
        source: NetlinkError,
    },
    /// The node would lose addresses and routes of IPv6.
    #[error(
        "{bridge} has IPv6, and the node would lose what {interface} learns from routers as soon as it forwards: set it with sysctl -w net/ipv6/conf/{interface}/accept_ra=2, and in /etc/sysctl.d"
    )]
    RoutersIgnored {
        /// The name of the bridge.
        bridge: String,
        /// The name of the device that routers tell its addresses.
        interface: String,
    },
    /// A published port leads to another container.
    #[error("{ports} leads to {target} already: publish another port")]
    PortTaken {
        /// The port, or those that were to be published, as far as an error names them.
        ports: String,
        /// Where it leads, and whose that is, as far as it is known.
        target: String,
        /// What the kernel refused.
        source: NftError,
    },
    /// A failed attachment could not be undone.
    #[error("the failed attachment is not undone: {undo}; detach the container")]
    NotUndone {
        /// The first failure.
        source: Box<DriverError>,
        /// Why it could not be undone.
        undo: Box<DriverError>,
    },
}

// === impl DriverError ===

impl DriverError {
    /// The error for a device that could not be made a port of this bridge.
    pub(super) fn of_port(error: NetlinkError, bridge: &LinkName) -> Self {
        if error.refusal() == Some(Errno::EXFULL) {
            return Self::BridgeFull {
                bridge: bridge.to_string(),
                source: error,
            };
        }
        Self::Links(error)
    }

    /// Returns whether nothing is left of what was tried.
    #[must_use]
    pub const fn is_undone(&self) -> bool {
        !matches!(self, Self::NotUndone { .. })
    }
}
