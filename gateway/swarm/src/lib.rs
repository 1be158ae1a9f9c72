//! Makes this node a worker of a Docker swarm, by SwarmKit's API for agents.
//!
//! ```text
//! join ── CA, NodeCA ──► managers            the first certificate, by a join token
//!   └─► store: roots, certificate, key
//! ```
//!
//! - A *cluster* is a swarm, and has an id; a *node* is a member, whose id is in its certificate. Managers are
//!   recognised by the roots of the cluster, never by their address.

mod certificates;
mod connection;
mod error;
mod identity;
mod issuance;
mod join;
mod key;
mod managers;
mod random;
mod renewal;
mod status;
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod token;

pub use certificates::{Issuer, NodeChain, NodeSubject, PEM_MAX, RootBundle, Unverified, ValidityPeriod};
pub use error::{BoxedError, Error};
pub use identity::Identity;
pub use join::{JoinRequest, join};
pub use key::NodeKey;
pub use managers::{Managers, Peer};
pub use renewal::{due, pause};
pub use status::{RATE_LIMIT_PAUSE, Reaction, reaction};
pub use store::{PendingJoin, Store};
pub use token::{JoinToken, RootDigest};
