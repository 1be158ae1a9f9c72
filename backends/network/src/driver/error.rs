//! Reasons why a container could not be attached or detached.

use std::collections::BTreeSet;

use nix::errno::Errno;
use thiserror::Error;

use crate::addresses::AddressError;
use crate::netlink::{LinkName, NetlinkError};
use crate::nft::{NftError, NftFamily};

/// Number of ports that the kernel gives a bridge: it numbers them with ten bits, from 1 on.
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
    /// Tables could not be restored.
    #[error("the tables of {families} are not as they should be; until they are, {open}")]
    NotRestored {
        /// The names of their families.
        families: String,
        /// Description of what may be open meanwhile.
        open: String,
        /// Reason why the first one could not.
        source: NftError,
    },
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
        /// Refusal of the kernel.
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
        /// Destination of the port, and whose that is, as far as it is known.
        target: String,
        /// Refusal of the kernel.
        source: NftError,
    },
    /// A failed attachment could not be undone.
    #[error("the failed attachment is not undone: {undo}; detach the container")]
    NotUndone {
        /// The first failure.
        source: Box<DriverError>,
        /// Reason why it could not be undone.
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

    /// The error for the tables of these families, if there are any.
    pub(super) fn not_restored(failed: Vec<(NftFamily, NftError)>) -> Option<Self> {
        let families: Vec<&str> = failed.iter().map(|(family, _)| family.name()).collect();
        let open = failed.iter().map(|(family, _)| match family {
            NftFamily::Ip4 | NftFamily::Ip6 => {
                "published ports may lead nowhere, bridges may not be kept apart, and containers may reach 127.0.0.1 of the node"
            }
            NftFamily::Bridge => "containers with NET_RAW may send with addresses of others",
        });
        let open: BTreeSet<&str> = open.collect();
        let open: Vec<&str> = open.into_iter().collect();
        Some(Self::NotRestored {
            families: format!("family {}", families.join(" and ")),
            open: open.join("; "),
            source: failed.into_iter().next()?.1,
        })
    }

    /// Returns whether nothing is left of what was tried.
    #[must_use]
    pub const fn is_undone(&self) -> bool {
        !matches!(self, Self::NotUndone { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_are_not_restored_are_told_with_what_may_be_open() {
        use NftFamily::{Bridge, Ip4, Ip6};

        for (families, expected) in [
            (&[Bridge][..], Some(("family bridge ", true, false))),
            (&[Ip4], Some(("family ip ", false, true))),
            (&[Ip4, Ip6], Some(("family ip and ip6 ", false, true))),
            (&[Ip6, Bridge], Some(("family ip6 and bridge ", true, true))),
            (&[], None),
        ] {
            let failed = families.iter().map(|family: &NftFamily| {
                let doing = format!("restore {}", family.name());
                (*family, NftError::Unanswered { doing })
            });
            let told = DriverError::not_restored(failed.collect());
            let found = told.as_ref().map(ToString::to_string);
            assert_eq!(found.is_some(), expected.is_some(), "{families:?}");
            let Some((text, (named, of_pins, of_addresses))) = found.zip(expected) else {
                continue;
            };
            assert!(text.contains(named), "{text}");
            assert_eq!(text.contains("NET_RAW"), of_pins, "{text}");
            let times = text.matches("published ports").count();
            assert_eq!(times, usize::from(of_addresses), "{text}");
        }
    }
}
