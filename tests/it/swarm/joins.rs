//! The first contact with a swarm, and what comes of wrong words.

use std::fs;

use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use switchyard_swarm::{Error, Store};
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::agent::{TestAgent, join_worker, state, try_join};
use switchyard_tests::swarm::node::facts;

use super::wait_until_ready;

#[test]
fn join_makes_one_node_that_is_ready_and_stays_the_same_after_a_restart() {
    let cluster = SwarmCluster::new();
    let dir = state(&cluster, "a");
    let identity = join_worker(&cluster, &dir, Availability::Drain);
    let agent = TestAgent::start(&cluster, &dir, facts("worker-a"));
    wait_until_ready(&cluster, &agent);
    let expected = format!("{} worker-a Ready Drain", identity.node());
    assert_eq!(cluster.workers(), std::slice::from_ref(&expected));
    let engine = cluster.docker(&[
        "node",
        "inspect",
        "--format",
        "{{.Description.Engine.EngineVersion}}",
        identity.node(),
    ]);
    assert_eq!(engine.trim(), "switchyard-test");

    drop(agent);
    let agent = TestAgent::start(&cluster, &dir, facts("worker-a"));
    wait_until_ready(&cluster, &agent);
    assert_eq!(cluster.workers(), std::slice::from_ref(&expected));
    assert_eq!(agent.report().node, identity.node());
    let again = try_join(
        &cluster,
        &dir,
        &cluster.token("worker"),
        Availability::Active,
    );
    assert!(
        matches!(&again, Err(Error::AlreadyJoined { node, .. }) if node == identity.node()),
        "{again:?}"
    );
    assert_eq!(cluster.workers(), [expected]);
}

#[test]
fn wrong_tokens_are_refused_and_leave_nothing() {
    let cluster = SwarmCluster::new();
    let dir = state(&cluster, "a");
    let token = cluster.token("worker");
    let (rest, secret) = token.rsplit_once('-').expect("a token has parts");
    let flipped = if secret.starts_with('0') { '1' } else { '0' };
    let wrong_secret = format!("{rest}-{flipped}{}", &secret[1..]);
    let refused = try_join(&cluster, &dir, &wrong_secret, Availability::Drain)
        .expect_err("the secret is wrong");
    let text = refused.report();
    assert!(
        text.contains("valid join token") && !text.contains(&secret[1..]),
        "{text}"
    );

    let digest = rest.rsplit_once('-').expect("a token has parts").1;
    let other = token.replace(&digest[1..9], "00000000");
    let refused =
        try_join(&cluster, &dir, &other, Availability::Drain).expect_err("the digest is wrong");
    assert!(
        matches!(&refused, Error::OtherRoot { found, .. } if found == digest),
        "{refused:?}"
    );
    assert!(!refused.report().contains(secret), "{}", refused.report());

    assert!(cluster.workers().is_empty(), "{:?}", cluster.workers());
    assert!(
        !dir.exists(),
        "{:?}",
        fs::read_dir(&dir).map(Iterator::count)
    );
}

#[test]
fn manager_token_is_refused_and_its_cure_works() {
    let cluster = SwarmCluster::new();
    let dir = state(&cluster, "a");
    let refused = try_join(
        &cluster,
        &dir,
        &cluster.token("manager"),
        Availability::Drain,
    );
    let Err(Error::ManagerRole { node }) = &refused else {
        panic!("{refused:?}")
    };
    let text = refused.as_ref().expect_err("it is refused").report();
    assert!(
        text.contains(&format!("docker node rm --force {node}")),
        "{text}"
    );
    assert!(
        Store::new(dir.clone())
            .load(std::time::SystemTime::now())
            .expect("it can be read")
            .is_none()
    );
    cluster.docker(&["node", "rm", "--force", node]);
    let identity = join_worker(&cluster, &dir, Availability::Drain);
    assert_ne!(identity.node(), node);
    let agent = TestAgent::start(&cluster, &dir, facts("worker-a"));
    wait_until_ready(&cluster, &agent);
}

#[test]
fn manager_that_is_none_or_absent_is_told() {
    let cluster = SwarmCluster::new();
    let dir = state(&cluster, "a");
    let token = cluster.token("worker").parse().expect("it is valid");
    let request = switchyard_swarm::JoinRequest {
        managers: vec!["127.0.0.9:2377".to_owned()],
        token,
        availability: Availability::Drain,
    };
    let store = Store::new(dir.clone());
    let joined = cluster.within(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("it can be made");
        runtime.block_on(switchyard_swarm::join(&store, &request))
    });
    let error = joined
        .join()
        .expect("a join does not panic")
        .expect_err("nobody listens there");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(
        error.report().contains("127.0.0.9:2377") && error.report().contains("refused"),
        "{}",
        error.report()
    );
    assert!(!dir.exists());
}
