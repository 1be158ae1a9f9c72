//! Tests of writes by an abandoned join, leave or renewal, and of what follows them.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::id::Owner;
use switchyard_core::operation::Operations;
use switchyard_core::reload::Reloadable;
use switchyard_crash_points::CrashPoint;
use switchyard_fake::Fake;
use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use tokio::task::JoinHandle;
use tokio::time::{advance, pause, sleep, timeout};

use super::manager::ScriptedManager;
use crate::error::Error;
use crate::node::{JoinByFile, NodeParts, NodePhase, NodeStatus, SwarmNode};
use crate::store::Store;
use crate::test_util::MakeIdle;
use crate::waiting::WaitingServices;

/// Time for which a test watches that something does not end.
const LOOK: Duration = Duration::from_millis(200);

/// Longer than the disk may take.
const DISK_LATE: Duration = Duration::from_secs(31);

/// A node whose actor runs.
struct ActingNode {
    node: SwarmNode,
    store: Store,
    acting: JoinHandle<()>,
}

impl ActingNode {
    async fn start(dir: &Path, join_by_file: Option<JoinByFile>) -> Self {
        let gateway = Gateway::new(Arc::new(Fake::new()), Limits::default());
        gateway.recover().await.unwrap();
        let (node, actor) = SwarmNode::new(NodeParts {
            dir: dir.join("swarm"),
            join_by_file,
            scope: gateway.scope(Owner::Swarm),
            operations: Operations::default(),
            maker: Arc::new(MakeIdle),
            image_retention: Reloadable::default(),
            waiting: WaitingServices::default(),
        });
        let store = actor.store().clone();
        Self {
            node,
            store,
            acting: tokio::spawn(actor.run()),
        }
    }

    fn join(&self, manager: &ScriptedManager) -> JoinHandle<Result<(), Error>> {
        let node = self.node.clone();
        let request = manager.request(Availability::Drain);
        tokio::spawn(async move { node.join(request).await })
    }

    fn leave(&self) -> JoinHandle<Result<(), Error>> {
        let node = self.node.clone();
        tokio::spawn(async move { node.leave().await })
    }

    async fn until(&self, what: &str, is_so: impl Fn(&NodePhase) -> bool) -> NodeStatus {
        let wait = async {
            while !is_so(&self.node.status().phase) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = timeout(Duration::from_secs(3600), wait).await;
        assert!(waited.is_ok(), "{what}: {:?}", self.node.status());
        self.node.status()
    }
}

impl Drop for ActingNode {
    fn drop(&mut self) {
        self.acting.abort();
    }
}

fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir.join("swarm"))
        .into_iter()
        .flatten()
        .flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn is_member(phase: &NodePhase) -> bool {
    matches!(phase, NodePhase::Member(_))
}

#[tokio::test]
async fn leave_comes_after_what_the_join_that_it_ends_still_writes() {
    for step in [
        CrashPoint::SwarmRootsSaved,
        CrashPoint::SwarmDepartureForgotten,
        CrashPoint::NodeCertificateSaved,
    ] {
        let manager = ScriptedManager::start(true).await;
        let dir = tempfile::tempdir().unwrap();
        let node = ActingNode::start(dir.path(), None).await;
        let mut held = node.store.hold(step);
        let joining = node.join(&manager);
        held.reached().await;
        let mut leaving = node.leave();
        assert!(
            matches!(joining.await.unwrap(), Err(Error::Abandoned)),
            "{step:?}"
        );
        let early = timeout(LOOK, &mut leaving).await;
        assert!(
            early.is_err(),
            "{step:?}: it has left while the join writes: {early:?}"
        );
        drop(held);
        leaving.await.unwrap().unwrap();
        assert_eq!(files(dir.path()), ["departure.json"], "{step:?}");
        drop(node);
        let restarted = ActingNode::start(dir.path(), None).await;
        restarted
            .until("it stays so", |phase| {
                matches!(phase, NodePhase::NotJoined { .. })
            })
            .await;
    }
}

/// The disk hangs while the membership is stored, at any point, and continues after the join was refused.
#[tokio::test]
async fn node_whose_join_was_refused_for_a_slow_disk_is_what_the_disk_says() {
    for step in [
        CrashPoint::SwarmManagersSaved,
        CrashPoint::SwarmRootsSaved,
        CrashPoint::NodeCertificateSaved,
    ] {
        let manager = ScriptedManager::start(true).await;
        let dir = tempfile::tempdir().unwrap();
        let node = ActingNode::start(dir.path(), None).await;
        // The managers are stored with the join that waits for its certificate as well.
        let mut held = node.store.hold(step);
        let joining = node.join(&manager);
        held.reached().await;
        pause();
        advance(DISK_LATE).await;
        let refused = joining.await.unwrap().unwrap_err();
        assert!(
            matches!(refused, Error::DiskLate { .. }),
            "{step:?}: {refused:?}"
        );
        let told = node.node.status();
        assert!(
            told.problems().contains(&refused.report()),
            "{step:?}: {told:?}"
        );
        assert!(
            !matches!(told.phase, NodePhase::NotJoined { .. }),
            "{step:?}: it is not known: {told:?}"
        );
        drop(held);
        advance(DISK_LATE).await;
        tokio::time::resume();
        node.until("it is a member", is_member).await;
        let again = node.join(&manager).await.unwrap();
        assert!(
            matches!(again, Err(Error::AlreadyJoined { .. })),
            "{step:?}: {again:?}"
        );
        node.leave().await.unwrap().unwrap();
        assert_eq!(files(dir.path()), ["departure.json"], "{step:?}");
    }
}

#[tokio::test]
async fn join_by_file_goes_on_as_a_member_when_a_slow_disk_has_stored_it() {
    let manager = ScriptedManager::start(true).await;
    let dir = tempfile::tempdir().unwrap();
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, manager.token().as_sent()).unwrap();
    std::fs::set_permissions(&token_file, Permissions::from_mode(0o600)).unwrap();
    let managers = vec![manager.address.to_string()];
    let by_file = JoinByFile {
        token_file,
        managers,
        availability: Availability::Drain,
    };
    let node = ActingNode::start(dir.path(), Some(by_file)).await;
    let mut held = node.store.hold(CrashPoint::NodeCertificateSaved);
    held.reached().await;
    pause();
    advance(DISK_LATE).await;
    let late = |phase: &NodePhase| matches!(phase, NodePhase::Joining { error: Some(error) } if error.contains("disk"));
    // No time passes while a thread is held.
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
    assert!(late(&node.node.status().phase), "{:?}", node.node.status());
    drop(held);
    node.until("it is a member", is_member).await;
}

#[tokio::test]
async fn files_are_used_one_after_the_other_also_by_those_who_are_gone() {
    let manager = ScriptedManager::start(true).await;
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().join("swarm"));
    let request = manager.request(Availability::Drain);
    let identity = crate::join::join(&store, &request).await.unwrap();
    let spawned = store.clone();
    // A renewal that is given up while it writes.
    let mut held = store.hold(CrashPoint::SwarmFileDrafted);
    let renewing = tokio::spawn(async move {
        spawned
            .run(move |store| store.save_certificate(&identity))
            .await
    });
    held.reached().await;
    renewing.abort();
    // Another one, which is given up while it waits.
    let begun = Arc::new(AtomicBool::new(false));
    let spawned = store.clone();
    let tells = Arc::clone(&begun);
    let mut waiting = tokio::spawn(async move {
        spawned
            .run(move |_| Ok(tells.swap(true, Ordering::SeqCst)))
            .await
    });
    assert!(timeout(LOOK, &mut waiting).await.is_err());
    waiting.abort();
    let spawned = store.clone();
    let mut leaving = tokio::spawn(async move { spawned.run(Store::wipe).await });
    assert!(
        timeout(LOOK, &mut leaving).await.is_err(),
        "it is done beside another one"
    );
    drop(held);
    leaving.await.unwrap().unwrap();
    assert_eq!(files(dir.path()), Vec::<String>::new());
    assert!(
        store
            .run(|store| store.load(SystemTime::now()))
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        !begun.load(Ordering::SeqCst),
        "nobody waits for it any more"
    );
}
