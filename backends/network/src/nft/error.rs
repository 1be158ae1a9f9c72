//! The errors of tables and of conntrack.

use std::net::IpAddr;

use nix::errno::Errno;
use thiserror::Error;

/// Reason why a table of nf_tables or an entry of conntrack could not be read or changed.
#[derive(Debug, Error)]
pub enum NftError {
    /// There is no socket to the kernel.
    #[error(
        "cannot open a netlink socket of netfilter; it needs CAP_NET_ADMIN and a kernel with nfnetlink"
    )]
    Socket {
        /// The error of the kernel.
        #[source]
        source: Errno,
    },
    /// A question to the kernel failed.
    #[error("cannot {doing}")]
    Query {
        /// Question that was asked, as a verb phrase.
        doing: String,
        /// The error of the kernel.
        #[source]
        source: Errno,
    },
    /// The kernel refused a transaction because of one of its changes.
    #[error("cannot {doing}; nothing of its transaction was done")]
    Refused {
        /// The change, as a verb phrase.
        doing: String,
        /// The error of the kernel: ENOENT if what it names is not there, EEXIST if the key of a map leads elsewhere.
        #[source]
        source: Errno,
    },
    /// The kernel cannot do what the tables need.
    #[error(
        "this kernel cannot {doing}; it needs nf_tables with NAT, fib and conntrack (CONFIG_NFT_NAT, CONFIG_NFT_MASQ, CONFIG_NFT_FIB, CONFIG_NFT_CT), and for ports of bridges CONFIG_NF_TABLES_BRIDGE"
    )]
    Lacking {
        /// The change that it refuses, as a verb phrase.
        doing: String,
        /// The error of the kernel, mostly ENOENT.
        #[source]
        source: Errno,
    },
    /// Others changed rules between each look and the change that followed it.
    #[error("cannot {doing}: other programs changed rules during each of {tries} tries; try again")]
    Contended {
        /// Change that was tried, as a verb phrase.
        doing: String,
        /// Number of attempts.
        tries: usize,
    },
    /// The kernel did not say whether it did a transaction.
    #[error("cannot {doing}: the kernel did not answer; read the table to learn what is in it")]
    Unanswered {
        /// The last change of the transaction, as a verb phrase.
        doing: String,
    },
    /// An element cannot be in a table of this family.
    #[error("{element} cannot be in a table of family {family}: its address is of the other one")]
    WrongFamily {
        /// The element, as `nft list` shows it.
        element: String,
        /// The name of the family.
        family: &'static str,
    },
    /// A transaction is larger than one send may be.
    #[error(
        "a change of the tables is larger than {max} bytes, the most that its socket sends; on a node in a user namespace that is twice \
         net.core.wmem_max of the machine, where it can be raised"
    )]
    TooLarge {
        /// The largest, in bytes.
        max: usize,
    },
    /// The name of an instance cannot be a part of a table's name.
    #[error(
        "{instance:?} cannot name the tables of an instance: it needs 1 to 32 lower-case letters, digits and '_'"
    )]
    TableName {
        /// The name of the instance.
        instance: String,
    },
    /// The name of a bridge cannot be one.
    #[error(
        "{name:?} cannot name a bridge: a name has 1 to 15 bytes, of letters, digits, '-', '_' and '.'"
    )]
    BridgeName {
        /// The name.
        name: String,
    },
    /// A subnet has more bits than its addresses.
    #[error("a subnet of {address} cannot have a prefix of {prefix} bits")]
    SubnetPrefix {
        /// The address.
        address: IpAddr,
        /// The number of bits.
        prefix: u8,
    },
}

impl NftError {
    pub(super) fn query(doing: impl Into<String>) -> impl FnOnce(Errno) -> Self {
        let doing = doing.into();
        move |source| Self::Query { doing, source }
    }

    /// Returns whether a change was refused because the table, a set of it or an element that it removes is not there: the table is to be
    /// restored.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Refused { source, .. } if *source == Errno::ENOENT)
    }
}
