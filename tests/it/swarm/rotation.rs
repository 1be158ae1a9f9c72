//! Rotations of the swarm's CA, and roles.

use std::time::SystemTime;

use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use switchyard_swarm::{Error, Store};
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::agent::{TestAgent, join_worker, state, try_join};
use switchyard_tests::swarm::node::facts;

use super::wait_until_ready;

#[track_caller]
fn wait_until_converged(cluster: &SwarmCluster, node: &str) {
    cluster.wait_until("the certificates are new", || {
        let all = cluster.docker(&["node", "ls", "--format", "{{.ID}} {{.TLSStatus}}"]);
        all.lines().all(|line| line.ends_with(" Ready")) && all.contains(node)
    });
}

#[test]
fn rotation_of_the_ca_renews_the_certificate_and_ends() {
    let cluster = SwarmCluster::new();
    let dir = state(&cluster, "a");
    let old_token = cluster.token("worker");
    let identity = join_worker(&cluster, &dir, Availability::Drain);
    let agent = TestAgent::start(&cluster, &dir, facts("worker-a"));
    wait_until_ready(&cluster, &agent);
    // Twice: after the first the manager answers no ALPN any more.
    for round in 1..=2 {
        let before = Store::new(dir.clone())
            .load(SystemTime::now())
            .unwrap()
            .unwrap();
        // An hour is the least; the certificate is then of two.
        cluster.docker(&["swarm", "ca", "--rotate", "--quiet", "--cert-expiry", "1h"]);
        wait_until_converged(&cluster, identity.node());
        cluster.wait_until("the new roots are stored", || {
            let stored = Store::new(dir.clone())
                .load(SystemTime::now())
                .unwrap()
                .unwrap();
            stored.roots() != before.roots() && stored.chain() != before.chain()
        });
        let stored = Store::new(dir.clone())
            .load(SystemTime::now())
            .unwrap()
            .unwrap();
        assert_eq!(stored.node(), identity.node());
        assert_ne!(
            stored.key().public_key().unwrap(),
            before.key().public_key().unwrap(),
            "round {round}"
        );
        let left = stored
            .validity()
            .not_after
            .duration_since(SystemTime::now())
            .unwrap();
        assert!(left.as_secs() < 2 * 3600, "{left:?}");
        cluster.wait_until("the report has the new certificate", || {
            agent.report().certificate_ends == stored.validity().not_after
        });
        wait_until_ready(&cluster, &agent);
    }
    assert_eq!(cluster.workers().len(), 1);
    let other = try_join(
        &cluster,
        &state(&cluster, "b"),
        &old_token,
        Availability::Drain,
    );
    assert!(matches!(other, Err(Error::OtherRoot { .. })), "{other:?}");

    drop(agent);
    let agent = TestAgent::start(&cluster, &dir, facts("worker-a"));
    wait_until_ready(&cluster, &agent);
    assert!(agent.report().problems().is_empty(), "{:?}", agent.report());
}

#[test]
fn promotion_is_ignored_and_told_with_its_cure() {
    let cluster = SwarmCluster::new();
    let dir = state(&cluster, "a");
    let identity = join_worker(&cluster, &dir, Availability::Drain);
    let agent = TestAgent::start(&cluster, &dir, facts("worker-a"));
    wait_until_ready(&cluster, &agent);
    cluster.docker(&["node", "promote", identity.node()]);
    cluster.wait_until("the promotion is reported", || agent.report().is_promoted);
    let problems = agent.report().problems();
    let cure = format!("docker node rm --force {}", identity.node());
    assert!(
        problems.iter().any(|problem| problem.contains(&cure)),
        "{problems:?}"
    );
    assert!(
        agent.report().manager.is_some(),
        "the session continues: {:?}",
        agent.report()
    );
    let stored = Store::new(dir.clone())
        .load(SystemTime::now())
        .unwrap()
        .unwrap();
    assert_eq!(
        stored.chain(),
        identity.chain(),
        "the certificate is still that of a worker"
    );

    cluster.docker(&["node", "rm", "--force", identity.node()]);
    let ended = agent.wait();
    assert!(
        matches!(&ended, Err(Error::Removed { node }) if node == identity.node()),
        "{ended:?}"
    );
    Store::new(dir.clone()).wipe().unwrap();
    let other = join_worker(&cluster, &dir, Availability::Drain);
    assert_ne!(other.node(), identity.node());
    let agent = TestAgent::start(&cluster, &dir, facts("worker-a"));
    wait_until_ready(&cluster, &agent);
}
