//! Facts about sandboxes.

use switchyard_core::ErrorKind;
use switchyard_core::id::SandboxId;
use switchyard_core::spec::{Link, PodNetwork, SandboxNetwork};
use switchyard_core::state::SandboxState;

use crate::Fixture;
use crate::lab::{ContractTest, refused, sandbox_in};

/// Stop and removal are idempotent, also after each other.
pub async fn a_sandbox_can_be_stopped_and_removed_any_number_of_times(fixture: &dyn Fixture) {
    let mut lab = ContractTest::open(fixture).await;
    let sandbox = lab.sandbox("pod").await;
    for _ in 0..3 {
        lab.backend.stop_sandbox(sandbox.id).await.expect("stop");
    }
    for _ in 0..3 {
        lab.backend.remove_sandbox(sandbox.id).await.expect("remove");
    }
    lab.backend.stop_sandbox(sandbox.id).await.expect("stop after removal");
    assert!(lab.reopen().await.sandboxes.is_empty());
}

/// Both succeed for a sandbox that does not exist.
pub async fn stop_and_removal_of_an_unknown_sandbox_are_done(fixture: &dyn Fixture) {
    let lab = ContractTest::open(fixture).await;
    lab.backend.stop_sandbox(SandboxId::random()).await.expect("stop");
    lab.backend.remove_sandbox(SandboxId::random()).await.expect("remove");
}

/// The readers return `NotFound`.
pub async fn an_unknown_sandbox_has_no_stats_and_no_facts(fixture: &dyn Fixture) {
    let lab = ContractTest::open(fixture).await;
    assert_eq!(refused(lab.backend.sandbox_stats(SandboxId::random()).await), ErrorKind::NotFound);
    assert!(lab.backend.sandbox_traffic(&[SandboxId::random()]).await.expect("traffic").is_empty());
    assert_eq!(refused(lab.backend.inspect_sandbox(SandboxId::random()).await), ErrorKind::NotFound);
}

/// `InvalidArgument`, and nothing is left behind.
pub async fn a_sandbox_with_an_unknown_handler_is_refused_and_leaves_nothing(fixture: &dyn Fixture) {
    let mut lab = ContractTest::open(fixture).await;
    let mut spec = fixture.sandbox_spec("pod");
    spec.handler = "no-such-handler".into();
    let result = lab.backend.create_sandbox(SandboxId::random(), &spec).await;
    assert_eq!(refused(result), ErrorKind::InvalidArgument);
    assert!(lab.reopen().await.sandboxes.is_empty());
    assert_eq!(fixture.remaining_objects().await, Vec::<String>::new());
}

/// Each has its own.
pub async fn two_sandboxes_share_neither_address_nor_namespace(fixture: &dyn Fixture) {
    let lab = ContractTest::open(fixture).await;
    let one = lab.sandbox("one").await.details;
    let other = lab.sandbox("other").await.details;
    assert!(one.ips.iter().all(|ip| !other.ips.contains(ip)), "{one:?} and {other:?}");
    assert!(one.netns.is_none() || one.netns != other.netns, "{one:?} and {other:?}");
}

/// Sandboxes do not affect each other.
pub async fn sandboxes_can_be_made_at_the_same_time(fixture: &dyn Fixture) {
    let lab = ContractTest::open(fixture).await;
    let names = ["a", "b", "c", "d"];
    let made = futures::future::join_all(names.map(|name| lab.sandbox(name))).await;
    let mut ips: Vec<_> = made.iter().flat_map(|sandbox| sandbox.details.ips.clone()).collect();
    let all = ips.len();
    ips.sort();
    ips.dedup();
    assert_eq!(ips.len(), all, "an address was given twice");
    let stops = made.iter().map(|sandbox| async {
        lab.backend.stop_sandbox(sandbox.id).await?;
        lab.backend.remove_sandbox(sandbox.id).await
    });
    for result in futures::future::join_all(stops).await {
        result.expect("stop and remove");
    }
}

/// They can be read while it is ready.
pub async fn a_ready_sandbox_has_stats_and_facts(fixture: &dyn Fixture) {
    let lab = ContractTest::open(fixture).await;
    let sandbox = lab.sandbox("pod").await;
    let stats = lab.backend.sandbox_stats(sandbox.id).await.expect("stats");
    assert_eq!(stats.interfaces.is_empty(), sandbox.details.ips.is_empty(), "{stats:?}");
    let traffic = lab.backend.sandbox_traffic(&[sandbox.id, SandboxId::random()]).await.expect("traffic");
    assert_eq!(traffic.contains_key(&sandbox.id), sandbox.details.netns.is_some(), "{traffic:?}");
    assert!(traffic.len() <= 1, "{traffic:?}");
    let facts = lab.backend.inspect_sandbox(sandbox.id).await.expect("facts");
    assert_eq!(facts.pid, sandbox.details.pid);
}

/// Also by a backend that did not stop it.
pub async fn a_stopped_sandbox_is_made_ready_again_with_the_addresses_it_had(fixture: &dyn Fixture) {
    let mut lab = ContractTest::open(fixture).await;
    let spec = fixture.sandbox_spec("pod");
    let unknown = lab.backend.start_sandbox(SandboxId::random(), &spec).await;
    assert_eq!(refused(unknown), ErrorKind::NotFound);
    let sandbox = lab.sandbox("pod").await;
    lab.backend.stop_sandbox(sandbox.id).await.expect("stop");
    let again = lab.backend.start_sandbox(sandbox.id, &spec).await.expect("start");
    assert_eq!((&again.ips, &again.netns), (&sandbox.details.ips, &sandbox.details.netns));
    lab.backend.stop_sandbox(sandbox.id).await.expect("stop");
    lab.reopen().await;
    lab.backend.start_sandbox(sandbox.id, &spec).await.expect("start");
    let found = lab.reopen().await.sandboxes;
    assert_eq!((&found[0].state, &found[0].details.ips), (&SandboxState::Ready, &sandbox.details.ips));
}

/// Addresses are distinct, and the next daemon knows them.
pub async fn the_gateways_own_network_gives_addresses_that_are_recovered(fixture: &dyn Fixture) {
    let mut lab = ContractTest::open(fixture).await;
    let mut made = Vec::new();
    for name in ["one", "other"] {
        let mut spec = fixture.sandbox_spec(name);
        spec.network = SandboxNetwork::Pod(PodNetwork { link: Link::Bridge, ..PodNetwork::default() });
        let id = SandboxId::random();
        made.push((id, lab.backend.create_sandbox(id, &spec).await.expect("create a sandbox")));
    }
    let [(one, first), (_, second)] = &made[..] else { panic!("two were made") };
    assert!(!first.ips.is_empty() && first.ips.iter().all(|ip| !second.ips.contains(ip)), "{made:?}");
    let found = lab.reopen().await;
    assert_eq!(sandbox_in(&found, *one).details.ips, first.ips);
}
