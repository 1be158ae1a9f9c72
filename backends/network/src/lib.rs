//! Container networks made by the kernel's own interfaces, without CNI plugins and, for a container, without running a program.
//!
//! [`netlink`] speaks to the kernel: sockets, batches of messages, links, addresses, routes, neighbours, rules and bandwidth.
//! [`addresses`] assigns addresses to containers, in the directory that the plugin `host-local` uses.
//! [`nft`] has the rules: published ports, masquerading, and which bridges reach each other.
//! [`driver`] attaches containers to a bridge with these three.
//! [`iptables`] undoes a policy of iptables that would drop what a bridge forwards, by the node's own program.
//!
//! Everything here is synchronous, and blocks while the kernel works: call it from a thread for blocking calls. A call that has begun
//! continues to its end, also if nobody waits for it any more. Nothing here keeps records: a caller writes down the names of what it
//! is about to make, so that a kill at any line leaves only what can be found and removed by these names.

pub mod addresses;
pub mod driver;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod iptables;
pub mod netlink;
pub mod nft;
#[cfg(test)]
mod testing;
