//! Tables of nf_tables and connections of conntrack, by netlink and without a program.
//!
//! ```text
//! Element, rules ──> TableStep ──transaction──> kernel ──dump──> FoundTable ──repair──> TableStep
//!                                                 └──notification──> NftMonitor
//! ```
//!
//! Each family of addresses has one table. So have ports of bridges, once a container may send with its own addresses alone ([`port_pins`]).
//! Their rules never change: what containers, ports, subnets and bridges there are is in its sets and maps, and one more of them is one more [`Element`].
//! [`text`] returns the rules as `nft list` shows them.
//!
//! Invariants:
//! - Each change is one transaction: all of it is done or nothing, also if this process is killed.
//! - No rule of others is changed, and no rule of ours drops or changes traffic that has nothing to do with our bridges, subnets and ports.
//! - What others do meanwhile delays no change of elements. Only what follows from a look at the table depends on the ruleset's generation.
//! - A client's text reaches the kernel only as a number, an address, or a checked [`BridgeName`].

mod bridges;
mod conntrack;
mod element;
mod error;
mod expression;
mod family;
mod found;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod iptables_chain;
#[cfg(test)]
mod kept;
mod message;
mod monitor;
mod pins;
mod rules;
mod sets;
mod socket;
mod statement;
mod tables;
mod transaction;

pub use bridges::{BridgeRules, Isolation, bridge_elements};
pub(crate) use conntrack::is_lasting;
pub use conntrack::{Conntrack, Flows};
pub use element::Element;
pub use error::NftError;
pub use family::{BridgeName, NftFamily, NftSubnet, TableName, Transport};
pub use found::{FoundTable, Repair};
pub use iptables_chain::has_iptables_forward;
pub use monitor::{NftMonitor, NftNotice};
pub use pins::port_pins;
pub use rules::text;
pub use sets::TableSet;
pub use tables::{ElementChange, NftTables};
