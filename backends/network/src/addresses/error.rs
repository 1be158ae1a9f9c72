//! The error of this module.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// Reason why no addresses were assigned, released or listed.
#[derive(Debug, Error)]
pub enum AddressError {
    /// A name cannot be that of a network, a container or an interface.
    #[error("{what} {name:?}: {why}")]
    Name {
        /// Kind of object that it should name.
        what: &'static str,
        /// The beginning of the name.
        name: String,
        /// Condition that it should meet.
        why: &'static str,
    },
    /// Ranges have no address for a container, or do not go together.
    #[error("address range {range}: {why}")]
    Range {
        /// The range.
        range: String,
        /// Description of what is wrong with it.
        why: String,
    },
    /// A requested address is not one that the network assigns.
    #[error(
        "network {network}: the requested address {address} is not within {ranges}; request another one, or none"
    )]
    OutOfRange {
        /// The network.
        network: String,
        /// The address.
        address: IpAddr,
        /// The ranges of the network.
        ranges: String,
    },
    /// A requested address is that of a gateway.
    #[error(
        "network {network}: the requested address {address} is that of the gateway; request another one, or none"
    )]
    Gateway {
        /// The network.
        network: String,
        /// The address.
        address: IpAddr,
    },
    /// Two addresses of one range set are requested.
    #[error(
        "network {network}: {first} and {second} are requested of one range set, of which a container gets one address; request one of them"
    )]
    TwoOfOneSet {
        /// The network.
        network: String,
        /// The address that was requested first.
        first: IpAddr,
        /// Another one.
        second: IpAddr,
    },
    /// A requested address is in use.
    #[error(
        "network {network}: the requested address {address} is held by {holder}; request another one, or remove its holder"
    )]
    Taken {
        /// The network.
        network: String,
        /// The address.
        address: IpAddr,
        /// Holder of the address, as its file says.
        holder: String,
    },
    /// A range set has no free address.
    #[error(
        "network {network}: all addresses of {ranges} are in use; remove containers, or give the network a larger range"
    )]
    Full {
        /// The network.
        network: String,
        /// The ranges of the set.
        ranges: String,
    },
    /// The lock was not released in time.
    #[error(
        "{} was locked by others for {waited:?}; look for a process of the plugin host-local that hangs, and try again", lock.display()
    )]
    Busy {
        /// The locked file.
        lock: PathBuf,
        /// The time for which it was tried.
        waited: Duration,
    },
    /// The directory has more files than are read.
    #[error("{} has more than {max} files; remove those that are no addresses in use", dir.display())]
    TooMany {
        /// The directory.
        dir: PathBuf,
        /// The most that it may have.
        max: usize,
    },
    /// A file operation failed.
    #[error("cannot {doing} {}", path.display())]
    File {
        /// The failed operation, as a verb phrase.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}
