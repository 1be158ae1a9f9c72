//! Facts about sandboxes.

use switchyard_core::ErrorKind;
use switchyard_core::id::SandboxId;
use switchyard_core::spec::{Link, PodNetwork, SandboxNetwork};
use switchyard_core::state::SandboxState;

use crate::Fixture;
use crate::contract_test::{ContractTest, sandbox_in};
use crate::refused;

/// Stop and removal are idempotent, also after each other.
pub async fn sandbox_stop_and_removal_are_idempotent(fixture: &dyn Fixture) {
    let mut test = ContractTest::open(fixture).await;
    let sandbox = test.sandbox("pod").await;
    for _ in 0..3 {
        test.backend.stop_sandbox(sandbox.id).await.expect("stop");
        test.backend.wait_network_released(sandbox.id).await;
    }
    for _ in 0..3 {
        test.backend
            .remove_sandbox(sandbox.id)
            .await
            .expect("remove");
    }
    test.backend
        .stop_sandbox(sandbox.id)
        .await
        .expect("stop after removal");
    assert!(test.reopen().await.sandboxes.is_empty());
}

/// Both succeed for a sandbox that does not exist.
pub async fn stop_and_removal_of_an_unknown_sandbox_succeed(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    test.backend
        .stop_sandbox(SandboxId::random())
        .await
        .expect("stop");
    test.backend
        .remove_sandbox(SandboxId::random())
        .await
        .expect("remove");
}

/// The readers return `NotFound`.
pub async fn unknown_sandbox_has_no_stats_or_inspection(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    assert_eq!(
        refused(test.backend.sandbox_stats(SandboxId::random()).await),
        ErrorKind::NotFound
    );
    assert!(
        test.backend
            .sandbox_traffic(&[SandboxId::random()])
            .await
            .expect("traffic")
            .is_empty()
    );
    assert_eq!(
        refused(test.backend.inspect_sandbox(SandboxId::random()).await),
        ErrorKind::NotFound
    );
}

/// `InvalidArgument`, and nothing is left behind.
pub async fn unknown_handler_is_rejected_and_leaves_nothing_behind(fixture: &dyn Fixture) {
    let mut test = ContractTest::open(fixture).await;
    let mut spec = fixture.sandbox_spec("pod");
    spec.handler = "no-such-handler".into();
    let result = test
        .backend
        .create_sandbox(SandboxId::random(), &spec)
        .await;
    assert_eq!(refused(result), ErrorKind::InvalidArgument);
    assert!(test.reopen().await.sandboxes.is_empty());
    assert_eq!(fixture.remaining_objects().await, Vec::<String>::new());
}

/// Each has its own.
pub async fn sandboxes_have_distinct_addresses_and_namespaces(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    let one = test.sandbox("one").await.details;
    let other = test.sandbox("other").await.details;
    assert!(
        one.ips.iter().all(|ip| !other.ips.contains(ip)),
        "{one:?} and {other:?}"
    );
    assert!(
        one.netns.is_none() || one.netns != other.netns,
        "{one:?} and {other:?}"
    );
}

/// Sandboxes do not affect each other.
pub async fn sandboxes_can_be_created_concurrently(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    let names = ["a", "b", "c", "d"];
    let made = futures::future::join_all(names.map(|name| test.sandbox(name))).await;
    let mut ips: Vec<_> = made
        .iter()
        .flat_map(|sandbox| sandbox.details.ips.clone())
        .collect();
    let all = ips.len();
    ips.sort();
    ips.dedup();
    assert_eq!(ips.len(), all, "an address was given twice");
    let stops = made.iter().map(|sandbox| async {
        test.backend.stop_sandbox(sandbox.id).await?;
        test.backend.remove_sandbox(sandbox.id).await
    });
    for result in futures::future::join_all(stops).await {
        result.expect("stop and remove");
    }
}

/// They can be read while it is ready, and tell afterwards that its network namespace is gone.
pub async fn ready_sandbox_has_stats_and_inspection(fixture: &dyn Fixture) {
    let test = ContractTest::open(fixture).await;
    let sandbox = test.sandbox("pod").await;
    let stats = test.backend.sandbox_stats(sandbox.id).await.expect("stats");
    assert_eq!(
        stats.interfaces.is_empty(),
        sandbox.details.ips.is_empty(),
        "{stats:?}"
    );
    let traffic = test
        .backend
        .sandbox_traffic(&[sandbox.id, SandboxId::random()])
        .await
        .expect("traffic");
    assert_eq!(
        traffic.contains_key(&sandbox.id),
        sandbox.details.netns.is_some(),
        "{traffic:?}"
    );
    assert!(traffic.len() <= 1, "{traffic:?}");
    let facts = test
        .backend
        .inspect_sandbox(sandbox.id)
        .await
        .expect("facts");
    assert_eq!(facts.pid, sandbox.details.pid);
    assert!(!facts.netns_closed, "{facts:?}");
    test.backend.stop_sandbox(sandbox.id).await.expect("stop");
    test.backend.wait_network_released(sandbox.id).await;
    let facts = test
        .backend
        .inspect_sandbox(sandbox.id)
        .await
        .expect("facts");
    assert_eq!(
        facts.netns_closed,
        sandbox.details.netns.is_some(),
        "{facts:?}"
    );
}

/// Also by a backend that did not stop it.
pub async fn restarted_sandbox_keeps_its_addresses(fixture: &dyn Fixture) {
    let mut test = ContractTest::open(fixture).await;
    let spec = fixture.sandbox_spec("pod");
    let unknown = test.backend.start_sandbox(SandboxId::random(), &spec).await;
    assert_eq!(refused(unknown), ErrorKind::NotFound);
    let sandbox = test.sandbox("pod").await;
    test.backend.stop_sandbox(sandbox.id).await.expect("stop");
    test.backend.wait_network_released(sandbox.id).await;
    let again = test
        .backend
        .start_sandbox(sandbox.id, &spec)
        .await
        .expect("start");
    assert_eq!(
        (&again.ips, &again.netns),
        (&sandbox.details.ips, &sandbox.details.netns)
    );
    test.backend.stop_sandbox(sandbox.id).await.expect("stop");
    test.backend.wait_network_released(sandbox.id).await;
    test.reopen().await;
    test.backend
        .start_sandbox(sandbox.id, &spec)
        .await
        .expect("start");
    let found = test.reopen().await.sandboxes;
    assert_eq!(
        (&found[0].state, &found[0].details.ips),
        (&SandboxState::Ready, &sandbox.details.ips)
    );
}

/// Addresses are distinct, and the next daemon knows them.
pub async fn bridge_addresses_are_recovered(fixture: &dyn Fixture) {
    let mut test = ContractTest::open(fixture).await;
    let mut made = Vec::new();
    for name in ["one", "other"] {
        let mut spec = fixture.sandbox_spec(name);
        spec.network = SandboxNetwork::Pod(PodNetwork {
            link: Link::Bridge,
            ..PodNetwork::default()
        });
        let id = SandboxId::random();
        made.push((
            id,
            test.backend
                .create_sandbox(id, &spec)
                .await
                .expect("create a sandbox"),
        ));
    }
    let [(one, first), (_, second)] = &made[..] else {
        panic!("two were made")
    };
    assert!(
        !first.ips.is_empty() && first.ips.iter().all(|ip| !second.ips.contains(ip)),
        "{made:?}"
    );
    let found = test.reopen().await;
    assert_eq!(sandbox_in(&found, *one).details.ips, first.ips);
}
