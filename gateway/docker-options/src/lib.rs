//! The options of Docker's containers that jobs of Nomad and services of a swarm share: how they are parsed and
//! checked, and what Docker does where they are not set.
//!
//! Pure. An error is `InvalidArgument` and names the field as its caller spells it.

pub mod auth;
pub mod capabilities;
pub mod confinement;
pub mod fields;
pub mod local_volume;
pub mod names;
pub mod sizes;
pub mod tmpfs;
pub mod ulimits;
