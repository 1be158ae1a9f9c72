//! Support for the integration tests of Switchyard.
//!
//! A test creates a [`root::PrivateRoot`] (its own state, run files, bridge, subnet and cgroup parent),
//! starts a [`registry::Registry`], pushes an [`image::Image`] into it, and starts the daemon with
//! [`daemon::Daemon::start`]. At the end it runs a [`leak_scan::LeakScan`] to check that nothing was left
//! behind. Also when the test fails, dropping these values kills their processes, unmounts, and removes the
//! bridge, the packet rules, the cgroups and the files. A test run that was itself killed is cleaned up by
//! the next one ([`scratch::sweep_abandoned`]).
//!
//! All functions block, and panic on failure: a missing prerequisite fails the test with the name of its
//! Debian package.

pub mod backend_fixture;
pub mod bad_disks;
pub mod browser;
pub mod chaos;
pub mod cni_plugin;
pub mod containerd_proxy;
pub mod cri;
pub mod daemon;
pub mod debian;
pub mod devices;
pub mod documents;
pub mod drill;
pub mod external_containerd;
pub mod far_link;
pub mod forger;
pub mod host;
pub mod http;
pub mod image;
pub mod leak_scan;
pub mod network;
pub mod node;
pub mod nomad;
pub mod prereq;
pub mod prometheus;
pub mod registry;
pub mod registry_proxy;
pub mod remote_snapshotter;
pub mod root;
pub mod scraped_node;
pub mod scratch;
pub mod shards;
pub mod streams;
pub mod stub_programs;
pub mod swarm;
pub mod trace_collector;
pub mod ustar;
pub mod versions;
