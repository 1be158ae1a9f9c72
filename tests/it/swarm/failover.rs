//! A swarm with several managers.

use nix::sys::signal::Signal;
use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::agent::{TestAgent, join_worker, state};
use switchyard_tests::swarm::node::facts;

#[test]
fn session_moves_to_another_manager_when_the_leader_is_killed() {
    let mut cluster = SwarmCluster::with_managers(3);
    let dir = state(&cluster, "a");
    let identity = join_worker(&cluster, &dir, Availability::Drain);
    let agent = TestAgent::start(&cluster, &dir, facts("worker-a"));
    let status = |cluster: &SwarmCluster, manager: usize| {
        let words = [
            "node",
            "ls",
            "--filter",
            "role=worker",
            "--format",
            "{{.ID}} {{.Status}}",
        ];
        cluster
            .try_docker(manager, &words)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let ready = format!("{} Ready", identity.node());
    cluster.wait_until("the worker is ready", || status(&cluster, 0) == ready);
    // The first has the most recent term; it may hold the session, too.
    cluster.end_member(0, Signal::SIGKILL);
    cluster.wait_until("another manager leads", || {
        let words = ["node", "ls", "--format", "{{.ManagerStatus}}"];
        cluster
            .try_docker(1, &words)
            .is_ok_and(|all| all.contains("Leader") && all.contains("Unreachable"))
    });
    cluster.wait_until("the worker is ready at the new leader", || {
        status(&cluster, 1) == ready
            && agent
                .report()
                .manager
                .is_some_and(|manager| manager != cluster.address(0))
    });

    drop(agent);
    // The daemon knows of the others, although it has joined by the one that is gone.
    let agent = TestAgent::start(&cluster, &dir, facts("worker-a"));
    cluster.wait_until("the worker is ready after a restart", || {
        status(&cluster, 1) == ready && agent.report().manager.is_some()
    });
    cluster.start_member(0);
}
