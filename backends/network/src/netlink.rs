//! Links, addresses, routes, neighbours, rules and bandwidth, by rtnetlink(7).
//!
//! ```text
//! Bridge, Veth, Ifb, set_port, …   each returns a Request: what to change, and what an error says of it
//! Socket::run(&[Request])          one datagram, carried out in order; the kernel answers each request
//! list_links, list_addresses, …    what is there, read as a whole
//! ```
//!
//! A request is made without a look at the kernel. What is to be atomic is one request: the kernel has no transactions about links, and goes
//! on after a request that it refuses. Who gets an error undoes all of the batch, by requests that take what is gone for success.
//!
//! Addresses, routes, neighbours and rules belong to the namespace of the socket, and have no attribute that names another one:
//! [`Socket::open_in`]. Kernel parameters are files, which show the namespace of the calling thread: [`NetNs::run`].

pub(crate) mod address;
mod bandwidth;
pub(crate) mod decode;
mod error;
pub(crate) mod exchange;
pub(crate) mod link;
mod message;
mod names;
pub(crate) mod neighbour;
mod netns;
mod parameter;
mod port;
pub(crate) mod route;
mod rule;
mod socket;
mod uapi;

#[cfg(test)]
mod tests;

pub use address::{
    Address, AddressState, HeldAddress, add_address, delete_address, list_addresses,
};
pub use bandwidth::{Ifb, Rate, delete_limit, limit, redirect_ingress};
pub use error::NetlinkError;
pub use exchange::Received;
pub use link::{
    Bridge, Ipv4Setting, Link, NewLink, PortState, Veth, delete_link, delete_links_of_group,
    derive_link_local, disable_link_local, find_link, list_links, set_down, set_ipv4, set_mac,
    set_master, set_mtu, set_up,
};
pub use message::{Attributes, Request};
pub use names::{IpPrefix, LinkName, LinkRef, Mac};
pub use neighbour::{Neighbour, add_neighbour, delete_neighbour, list_neighbours};
pub use netns::NetNs;
pub use parameter::{
    IpFamily, Ipv6Setting, enable_forwarding, has_ipv6_setting, is_forwarding, learnt_devices,
    set_ipv6, would_ignore_routers,
};
pub use port::{PortFlags, set_port};
pub use route::{Route, add_route, delete_route, list_routes};
pub use rule::{Rule, add_rule, delete_rule};
pub use socket::{Family, Socket};
