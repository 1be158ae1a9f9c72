//! This node as a worker of real swarms, whose managers are Debian's dockerd.

use switchyard_swarm::NodeFacts;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::agent::TestAgent;

mod bridges;
mod daemon;
mod devices;
mod failover;
mod health;
mod joins;
mod kills;
mod logs;
mod networks;
mod resources;
mod rotation;
mod scale;
mod services;
mod sessions;
mod tasks;

/// What a node of a test says of itself: a processor, a GiB, and networks without overlay.
fn facts(hostname: &str) -> NodeFacts {
    NodeFacts {
        hostname: hostname.to_owned(),
        architecture: "x86_64".to_owned(),
        version: "switchyard-test".to_owned(),
        networks: vec!["host".to_owned(), "bridge".to_owned()],
        logs: vec!["json-file".to_owned(), "local".to_owned()],
        nano_cpus: 1_000_000_000,
        memory_bytes: 1 << 30,
        ..NodeFacts::default()
    }
}

/// Waits until the only worker is ready.
#[track_caller]
fn wait_until_ready(cluster: &SwarmCluster, agent: &TestAgent) {
    cluster.wait_until("the worker is ready", || {
        matches!(&cluster.workers()[..], [one] if one.contains(" Ready ")) && agent.report().manager.is_some()
    });
}
