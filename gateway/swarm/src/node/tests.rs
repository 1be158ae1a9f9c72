//! Tests of the actor without a manager: its first phase, refusals, and restarts.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use switchyard_core::ErrorKind;
use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::id::Owner;
use switchyard_core::operation::{Caller, Operations};
use switchyard_fake::Fake;
use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::*;
use crate::certificates::{NodeChain, RootBundle};
use crate::executor::Executor;
use crate::identity::Identity;
use crate::key::NodeKey;
use crate::managers::{Managers, Peer};
use crate::session::assignments::Changes;
use crate::session::description::NodeFacts;
use crate::session::reports::Reports;
use crate::store::{DepartureCause, Store};
use crate::testing::TestAuthority;

mod actor_test;
mod disk;
mod tasks;

use actor_test::ActorTest;

const TOKEN: &str =
    "SWMTKN-1-00000000000000000000000000000000000000000000000001-0123456789abcdefghijklmno";
const SECRET: &str = "0123456789abcdefghijklmno";

/// Nobody listens there.
const NOBODY: &str = "127.0.0.1:1";

/// Long enough for everything, in a time that is not real.
const LIMIT: Duration = Duration::from_secs(3600);

fn request() -> JoinRequest {
    JoinRequest {
        managers: vec![NOBODY.to_owned(), "127.0.0.1:2".to_owned()],
        token: TOKEN.parse().unwrap(),
        availability: Availability::Active,
    }
}

async fn wait_until(
    node: &SwarmNode,
    what: &str,
    condition: impl Fn(&NodePhase) -> bool,
) -> NodeStatus {
    let wait = async {
        while !condition(&node.status().phase) {
            sleep(Duration::from_millis(10)).await;
        }
        node.status()
    };
    timeout(LIMIT, wait)
        .await
        .unwrap_or_else(|_| panic!("{what}: {:?}", node.status()))
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .map(|entries| {
            entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}

#[tokio::test(start_paused = true)]
async fn node_in_no_swarm_is_idle_and_cannot_leave() {
    let test = ActorTest::new();
    let (node, running) = test.start().await;
    assert!(matches!(node.leave().await, Err(Error::NotJoined)));
    let status = node.status();
    assert!(
        matches!(status.phase, NodePhase::NotJoined { departure: None }),
        "{status:?}"
    );
    assert!(status.problems().is_empty() && !test.path().exists());
    drop(node);
    timeout(LIMIT, running).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn join_that_reaches_no_manager_is_told_and_leaves_nothing() {
    let test = ActorTest::new();
    let (node, _running) = test.start().await;
    let caller = Caller {
        listener: "test",
        uid: Some(7),
        pid: None,
    };
    let joining = tokio::spawn({
        let node = node.clone();
        caller.scope(async move { node.join(request()).await })
    });
    wait_until(&node, "it joins", |phase| {
        matches!(phase, NodePhase::Joining { .. })
    })
    .await;
    let [operation] = &test.operations.in_flight()[..] else {
        panic!("one operation")
    };
    assert_eq!(
        (operation.kind.as_str(), operation.owner),
        ("join_swarm", Some(Owner::Swarm))
    );
    assert_eq!(
        operation.caller.as_ref().and_then(|caller| caller.uid),
        Some(7)
    );
    assert_eq!(
        operation.subject.argument.as_deref(),
        Some("127.0.0.1:1,127.0.0.1:2")
    );
    assert!(matches!(
        node.join(request()).await,
        Err(Error::Busy { doing: "joining" })
    ));

    let error = joining.await.unwrap().unwrap_err();
    assert!(
        error.report().contains(NOBODY) && !error.report().contains(SECRET),
        "{}",
        error.report()
    );
    let problems = node.status().problems();
    assert_eq!(problems, [error.report()]);
    assert!(!test.path().exists() && test.operations.in_flight().is_empty());
}

#[tokio::test(start_paused = true)]
async fn join_is_given_up_when_the_node_is_to_leave() {
    let test = ActorTest::new();
    let (node, _running) = test.start().await;
    let joining = tokio::spawn({
        let node = node.clone();
        async move { node.join(request()).await }
    });
    wait_until(&node, "it joins", |phase| {
        matches!(phase, NodePhase::Joining { .. })
    })
    .await;
    node.leave().await.unwrap();
    assert!(matches!(joining.await.unwrap(), Err(Error::Abandoned)));
    assert_eq!(names(&test.path()), ["departure.json"]);
}

#[tokio::test(start_paused = true)]
async fn token_file_that_is_wrong_is_told_and_read_again_when_it_changes() {
    let test = ActorTest::with_token_file("hunter2");
    let (node, _running) = test.start().await;
    let error_of = |phase: &NodePhase| {
        if let NodePhase::Joining { error } = phase {
            error.clone()
        } else {
            None
        }
    };
    let told = wait_until(&node, "the file is refused", |phase| {
        error_of(phase).is_some()
    })
    .await;
    let text = told.problems().remove(0);
    assert!(
        text.contains("token: the join token is not valid") && !text.contains("hunter2"),
        "{text}"
    );
    test.write_token(TOKEN);
    let told = wait_until(&node, "managers are tried", |phase| {
        error_of(phase).is_some_and(|error| error.contains(NOBODY))
    });
    assert!(!told.await.problems()[0].contains(SECRET));

    node.leave().await.unwrap();
    // It has nothing to do by itself, now and after a restart.
    let (restarted, _running) = test.start().await;
    for node in [&node, &restarted] {
        sleep(Duration::from_secs(900)).await;
        let phase = node.status().phase;
        assert!(
            matches!(&phase, NodePhase::NotJoined { departure: Some(departure) }
                if departure.cause == DepartureCause::Left),
            "{phase:?}"
        );
    }
    // An operator may join nevertheless.
    assert!(matches!(
        restarted.join(request()).await,
        Err(Error::Unreachable { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn member_leaves_after_its_tasks_alone() {
    let test = ActorTest::new();
    test.store_membership();
    let (node, _running) = test.start().await;
    let member = wait_until(
        &node,
        "it is a member",
        |phase| matches!(phase, NodePhase::Member(report) if report.failures > 0),
    );
    let member = member.await;
    assert!(
        member.failures > 0 && member.problems()[0].contains(NOBODY),
        "{member:?}"
    );
    let again = node.join(request()).await;
    assert!(
        matches!(&again, Err(Error::AlreadyJoined { node, cluster }) if node == "n" && cluster == "c"),
        "{again:?}"
    );

    test.maker.fails.store(true, Ordering::Relaxed);
    let error = node.leave().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error.report().contains("still in the swarm") && error.report().contains("containerd"),
        "{error:?}"
    );
    let member = node.status();
    assert!(matches!(member.phase, NodePhase::Member(_)), "{member:?}");
    assert!(
        member
            .problems()
            .iter()
            .any(|problem| *problem == error.report()),
        "{member:?}"
    );
    assert!(test.path().join("node.pem").exists());

    test.maker.fails.store(false, Ordering::Relaxed);
    node.leave().await.unwrap();
    assert_eq!(test.maker.removals.load(Ordering::Relaxed), 2);
    assert_eq!(names(&test.path()), ["departure.json"]);
    let left = node.status();
    assert!(
        left.failures >= member.failures,
        "what was counted stays: {left:?}"
    );
    assert!(matches!(node.leave().await, Err(Error::NotJoined)));
}

#[tokio::test(start_paused = true)]
async fn leave_that_was_interrupted_is_completed_at_the_start() {
    let test = ActorTest::with_token_file(TOKEN);
    test.store_membership();
    let left = Departure {
        cluster: "c".to_owned(),
        node: "n".to_owned(),
        cause: DepartureCause::Left,
    };
    test.store().save_departure(&left).unwrap();
    let (node, _running) = test.start().await;
    wait_until(
        &node,
        "it has left",
        |phase| matches!(phase, NodePhase::NotJoined { departure: Some(departure) } if *departure == left),
    )
    .await;
    assert_eq!(test.maker.removals.load(Ordering::Relaxed), 1);
    assert_eq!(names(&test.path()), ["departure.json"]);
}

#[tokio::test(start_paused = true)]
async fn removed_node_stays_so_after_a_restart_until_it_leaves() {
    let test = ActorTest::with_token_file(TOKEN);
    test.store_membership();
    let removed = Departure {
        cluster: "c".to_owned(),
        node: "n".to_owned(),
        cause: DepartureCause::Removed,
    };
    test.store().save_departure(&removed).unwrap();
    let (node, _running) = test.start().await;
    let ended = wait_until(&node, "it has ended", |phase| {
        matches!(phase, NodePhase::Ended { .. })
    })
    .await;
    assert!(
        ended.problems()[0].contains("was removed from the swarm"),
        "{ended:?}"
    );
    let again = node.join(request()).await.unwrap_err();
    assert!(
        again.report().contains("switchyard swarm leave"),
        "{again:?}"
    );
    node.leave().await.unwrap();
    assert_eq!(test.maker.removals.load(Ordering::Relaxed), 1);
    assert_eq!(names(&test.path()), ["departure.json"]);
}

/// The node cannot know whether the clock is wrong, which is set, or the certificate, which nobody renews.
#[tokio::test(start_paused = true)]
async fn certificate_outside_its_time_ends_the_membership_only_until_the_clock_is_right() {
    for (between, when) in [
        (
            ["20200101000000Z", "20200201000000Z"],
            SystemTime::UNIX_EPOCH + Duration::from_secs(1_578_000_000),
        ),
        (
            ["20900101000000Z", "20910101000000Z"],
            SystemTime::UNIX_EPOCH + Duration::from_secs(3_800_000_000),
        ),
    ] {
        let test = ActorTest::new();
        let valid = test.store_membership();
        let authority = TestAuthority::new(test.dir.path(), "other");
        let key = NodeKey::generate().unwrap();
        let request = key.certificate_request().unwrap();
        let chain =
            NodeChain::from_pem(&authority.issue_between(&request, "c", "n", between)).unwrap();
        let roots = RootBundle::from_pem(&authority.root()).unwrap();
        // Verified at a time at which it is valid; the authority's own certificate is only a name and a key.
        let invalid = Identity::new(roots, chain, key, when).unwrap();
        test.store().save_joined(&invalid).unwrap();
        let (node, _running) = test.start().await;
        let ended = wait_until(&node, "it has ended", |phase| {
            matches!(phase, NodePhase::Ended { .. })
        })
        .await;
        assert!(
            ended.problems()[0].contains("by the clock of this node"),
            "{ended:?}"
        );
        // As if the clock were set to where the certificate is valid.
        test.store().save_joined(&valid).unwrap();
        wait_until(&node, "it is a member", |phase| {
            matches!(phase, NodePhase::Member(_))
        })
        .await;
        assert_eq!(
            test.maker.removals.load(Ordering::Relaxed),
            0,
            "its tasks run on"
        );
    }
}

/// Its tasks run on meanwhile, and have one executor.
#[tokio::test(start_paused = true)]
async fn membership_that_ends_by_the_clock_and_goes_on_keeps_its_executor() {
    let test = ActorTest::new();
    let valid = test.store_membership();
    let authority = TestAuthority::new(test.dir.path(), "other");
    let key = NodeKey::generate().unwrap();
    let request = key.certificate_request().unwrap();
    let soon = SystemTime::now() + Duration::from_secs(4);
    let soon = prost_types::Timestamp {
        nanos: 0,
        ..soon.into()
    }
    .to_string()
    .replace(['-', ':', 'T'], "");
    let chain = authority.issue_between(&request, "c", "n", ["20200101000000Z", &soon]);
    let chain = NodeChain::from_pem(&chain).unwrap();
    let roots = RootBundle::from_pem(&authority.root()).unwrap();
    // The root is a moment old.
    let now = SystemTime::now() + Duration::from_secs(2);
    test.store()
        .save_joined(&Identity::new(roots, chain, key, now).unwrap())
        .unwrap();
    let (node, _running) = test.start().await;
    wait_until(&node, "it is a member", |phase| {
        matches!(phase, NodePhase::Member(_))
    })
    .await;
    // The clock of certificates is the real one.
    let limit = SystemTime::now() + Duration::from_secs(60);
    while !matches!(node.status().phase, NodePhase::Ended { .. }) {
        assert!(SystemTime::now() < limit, "{:?}", node.status());
        sleep(Duration::from_millis(10)).await;
    }
    test.store().save_joined(&valid).unwrap();
    wait_until(&node, "it is a member again", |phase| {
        matches!(phase, NodePhase::Member(_))
    })
    .await;
    assert_eq!(test.maker.made.load(Ordering::Relaxed), 1);
    assert_eq!(
        test.maker.removals.load(Ordering::Relaxed),
        0,
        "its tasks run on"
    );
}

#[tokio::test(start_paused = true)]
async fn damaged_membership_is_told_and_a_leave_ends_it() {
    let test = ActorTest::new();
    test.store_membership();
    fs::write(test.path().join("root-ca.crt"), "damaged").unwrap();
    let (node, _running) = test.start().await;
    let ended = wait_until(&node, "it has ended", |phase| {
        matches!(phase, NodePhase::Ended { .. })
    })
    .await;
    assert!(ended.problems()[0].contains("root-ca.crt"), "{ended:?}");
    node.leave().await.unwrap();
    assert_eq!(names(&test.path()), ["departure.json"]);
    fs::write(test.path().join("departure.json"), "damaged").unwrap();
    let (node, _running) = test.start().await;
    let ended = wait_until(&node, "it has ended", |phase| {
        matches!(phase, NodePhase::Ended { .. })
    })
    .await;
    assert!(ended.problems()[0].contains("departure.json"), "{ended:?}");
    node.leave().await.unwrap();
    assert!(test.store().load_departure().unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn unfinished_join_of_another_version_is_reported_and_kept_until_a_leave() {
    let test = ActorTest::new();
    fs::create_dir(test.path()).unwrap();
    let file = test.path().join("join.json");
    let later = "{\"version\": 2}";
    fs::write(&file, later).unwrap();
    let (node, _running) = test.start().await;
    let ended = wait_until(&node, "it has ended", |phase| {
        matches!(phase, NodePhase::Ended { .. })
    })
    .await;
    assert!(ended.problems()[0].contains("join.json"), "{ended:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), later);
    node.leave().await.unwrap();
    assert_eq!(names(&test.path()), ["departure.json"]);
}

#[tokio::test(start_paused = true)]
async fn unfinished_join_goes_on_after_a_restart() {
    let test = ActorTest::new();
    // What a kill has left of a write.
    fs::create_dir(test.path()).unwrap();
    fs::write(test.path().join("node.pem.new"), "a part of a key").unwrap();
    let key = NodeKey::generate().unwrap();
    let pending = crate::store::PendingJoin {
        node: "n".to_owned(),
        roots: TOKEN.parse::<crate::token::JoinToken>().unwrap().digest(),
        request: key.certificate_request().unwrap(),
        key,
    };
    test.store().save_join(&pending).unwrap();
    let (node, _running) = test.start().await;
    sleep(Duration::from_secs(60)).await;
    let told = node.status();
    assert!(
        matches!(told.phase, NodePhase::NotJoined { departure: None }),
        "{told:?}"
    );
    assert!(told.problems()[0].contains("no manager"), "{told:?}");
    let peer = Peer {
        node: String::new(),
        address: NOBODY.to_owned(),
    };
    test.store().save_managers(&Managers::of([peer])).unwrap();
    let (node, _running) = test.start().await;
    let told = wait_until(
        &node,
        "managers are tried",
        |phase| matches!(phase, NodePhase::Joining { error: Some(error) } if error.contains(NOBODY)),
    );
    told.await;
    assert_eq!(names(&test.path()), ["join.json", "managers.json"]);
    node.leave().await.unwrap();
    assert_eq!(names(&test.path()), ["departure.json"]);
}
