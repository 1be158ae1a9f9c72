//! This node as a worker of real swarms, whose managers are Debian's dockerd.

use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::agent::TestAgent;

mod bridges;
mod daemon;
mod devices;
mod docker;
mod failover;
mod health;
mod joins;
mod kills;
mod logs;
mod neighbours;
mod networks;
pub(crate) mod resources;
mod rotation;
mod scale;
mod secrets;
pub(crate) mod services;
mod sessions;
mod tasks;
mod updates;

/// Waits until the only worker is ready.
#[track_caller]
fn wait_until_ready(cluster: &SwarmCluster, agent: &TestAgent) {
    cluster.wait_until("the worker is ready", || {
        matches!(&cluster.workers()[..], [one] if one.contains(" Ready "))
            && agent.report().manager.is_some()
    });
}
