//! Converts errors of networks that are made without plugins.

use std::error::Error as StdError;

use switchyard_core::{Error, ErrorKind};
use switchyard_network::addresses::AddressError;
use switchyard_network::driver::DriverError;
use switchyard_network::nft::NftError;

use super::exhausted_or;

/// Converts an error of the network crate: `FailedPrecondition` for an address that cannot be had, `ResourceExhausted` for a limit of the
/// node or if no address is free, `Unavailable` if others may mend it meanwhile, else `Internal`.
pub(crate) fn from_network(error: impl StdError + Send + Sync + 'static) -> Error {
    let any: &(dyn StdError + 'static) = &error;
    let kind = match any.downcast_ref::<DriverError>() {
        Some(DriverError::Addresses(error)) => kind_of_addresses(error),
        Some(DriverError::SubnetTaken { .. }) => Some(ErrorKind::FailedPrecondition),
        Some(DriverError::BridgeFull { .. }) => Some(ErrorKind::ResourceExhausted),
        // A device of another program, the port of an attachment that is not undone yet, or what the operator has to set.
        Some(
            DriverError::NoBridge { .. }
            | DriverError::RoutersIgnored { .. }
            | DriverError::PortTaken { .. },
        ) => Some(ErrorKind::Unavailable),
        // It was tried three times while other programs changed rules.
        Some(
            DriverError::Rules(NftError::Contended { .. })
            | DriverError::NotRestored {
                source: NftError::Contended { .. },
                ..
            },
        ) => Some(ErrorKind::Unavailable),
        Some(
            DriverError::Links(_)
            | DriverError::Rules(_)
            | DriverError::NotRestored { .. }
            | DriverError::NotUndone { .. },
        ) => None,
        None => any.downcast_ref().and_then(kind_of_addresses),
    };
    let kind = kind.unwrap_or_else(|| exhausted_or(ErrorKind::Internal, any));
    Error::new(kind, "network").with_source(error)
}

/// `None` if the causes of the error decide.
fn kind_of_addresses(error: &AddressError) -> Option<ErrorKind> {
    match error {
        AddressError::OutOfRange { .. }
        | AddressError::Gateway { .. }
        | AddressError::TwoOfOneSet { .. }
        | AddressError::Taken { .. } => Some(ErrorKind::FailedPrecondition),
        AddressError::Full { .. } => Some(ErrorKind::ResourceExhausted),
        AddressError::Busy { .. } => Some(ErrorKind::Unavailable),
        AddressError::Name { .. }
        | AddressError::Range { .. }
        | AddressError::TooMany { .. }
        | AddressError::File { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use switchyard_network::netlink::NetlinkError;

    use super::*;

    #[test]
    #[expect(
        clippy::too_many_lines,
        reason = "a table of all errors with their kinds"
    )]
    fn error_of_the_network_has_the_kind_of_what_can_be_done_about_it() {
        let network = || "switchyard0".to_owned();
        let ranges = || "172.26.80.0/20".to_owned();
        let address: std::net::IpAddr = [172, 26, 80, 7].into();
        let taken = AddressError::Taken {
            network: network(),
            address,
            holder: "another container".to_owned(),
        };
        let out_of_range = AddressError::OutOfRange {
            network: network(),
            address,
            ranges: ranges(),
        };
        let gateway = AddressError::Gateway {
            network: network(),
            address,
        };
        let full = AddressError::Full {
            network: network(),
            ranges: ranges(),
        };
        let busy = AddressError::Busy {
            lock: "/var/lib/cni/networks/switchyard0/lock".into(),
            waited: Duration::from_secs(10),
        };
        let no_space = |code| AddressError::File {
            doing: "write",
            path: "/var/lib/cni/networks/switchyard0/172.26.80.7".into(),
            source: io::Error::from_raw_os_error(code),
        };
        for (error, kind) in [
            (taken, ErrorKind::FailedPrecondition),
            (out_of_range, ErrorKind::FailedPrecondition),
            (gateway, ErrorKind::FailedPrecondition),
            (full, ErrorKind::ResourceExhausted),
            (busy, ErrorKind::Unavailable),
            // ENOSPC and EIO.
            (no_space(28), ErrorKind::ResourceExhausted),
            (no_space(5), ErrorKind::Internal),
        ] {
            let text = error.to_string();
            let error = from_network(DriverError::from(error));
            assert_eq!(error.kind(), kind, "{text}");
            assert!(error.report().contains(&text), "{}", error.report());
        }
        let unanswered = || NftError::Unanswered {
            doing: "add a port".to_owned(),
        };
        let contended = || NftError::Contended {
            doing: "restore table ip switchyard".to_owned(),
            tries: 3,
        };
        for (error, kind) in [
            (DriverError::Rules(unanswered()), ErrorKind::Internal),
            // Others may have ended their changes by now.
            (DriverError::Rules(contended()), ErrorKind::Unavailable),
            (
                DriverError::NotRestored {
                    families: "family ip".to_owned(),
                    open: "ports may lead nowhere".to_owned(),
                    source: contended(),
                },
                ErrorKind::Unavailable,
            ),
            (
                DriverError::NotUndone {
                    source: Box::new(DriverError::Rules(contended())),
                    undo: Box::new(DriverError::Rules(contended())),
                },
                ErrorKind::Internal,
            ),
            (
                DriverError::NotRestored {
                    families: "family ip".to_owned(),
                    open: "ports may lead nowhere".to_owned(),
                    source: unanswered(),
                },
                ErrorKind::Internal,
            ),
            (
                DriverError::PortTaken {
                    ports: "port 8080 tcp".to_owned(),
                    target: "172.26.80.2:80".to_owned(),
                    source: unanswered(),
                },
                ErrorKind::Unavailable,
            ),
            (
                DriverError::SubnetTaken {
                    subnet: "10.244.1.0/24".to_owned(),
                    taken: "10.244.0.0/16".to_owned(),
                    bridge: network(),
                },
                ErrorKind::FailedPrecondition,
            ),
            (
                DriverError::BridgeFull {
                    bridge: network(),
                    source: NetlinkError::EventsLost,
                },
                ErrorKind::ResourceExhausted,
            ),
            (
                DriverError::RoutersIgnored {
                    bridge: network(),
                    interface: "eth0".to_owned(),
                },
                ErrorKind::Unavailable,
            ),
            (
                DriverError::NoBridge {
                    name: network(),
                    kind: "dummy".to_owned(),
                },
                ErrorKind::Unavailable,
            ),
            (
                DriverError::NotUndone {
                    source: Box::new(DriverError::PortTaken {
                        ports: "port 8080 tcp".to_owned(),
                        target: "172.26.80.2:80".to_owned(),
                        source: unanswered(),
                    }),
                    undo: Box::new(DriverError::Rules(unanswered())),
                },
                ErrorKind::Internal,
            ),
        ] {
            let text = error.to_string();
            assert_eq!(from_network(error).kind(), kind, "{text}");
        }
        let refused = from_network(unanswered());
        assert_eq!(refused.kind(), ErrorKind::Internal);
    }
}
