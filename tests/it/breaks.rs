//! Failing parts: each gives a clear error within a deadline, leaves nothing behind, is reported, and
//! recovers by itself.

mod checkpoints;
mod clients;
mod containerd_hangs;
mod disks;
mod execs;
mod failing_databases;
/// The file system of the logkeeper's own tests.
#[allow(
    clippy::unwrap_used,
    dead_code,
    reason = "helpers of other tests too, which may fail"
)]
#[path = "../../gateway/logkeeper/tests/it/fuse.rs"]
mod fuse;
mod hung_logs;
mod impostors;
mod late_answers;
mod logkeeper;
mod lost_files;
mod network;
mod null_device;
mod read_only_disks;
mod registries;
mod runtimes;
mod shim_answers;
mod shim_wakes;
mod shims;
mod snapshotters;
mod starts;
mod unended;
mod versions;

use std::fmt::Debug;
use std::time::Duration;

use switchyard_tests::host::{SuspendedProcess, eventually};
use switchyard_tests::leak_scan::LeakScan;
use switchyard_tests::node::TestNode;
use tonic::{Code, Status};

/// Time until a fault is noticed, or until a part has recovered.
const LIMIT: Duration = Duration::from_secs(40);
/// Time for a call that uses only the daemon's own memory, or that is refused at once.
const FAST_CALL_LIMIT: Duration = Duration::from_secs(3);

/// The process that the daemon has recorded as its containerd or logkeeper.
fn managed(node: &TestNode, name: &str) -> i32 {
    node.root()
        .managed(name)
        .expect("the daemon writes down whom it started")
        .as_raw()
}

/// The shim of a container.
fn shim(node: &TestNode, container: &str) -> i32 {
    node.shim(container).as_raw()
}

/// Waits until every status interface of the node reports that it is not ready, for a reason that contains
/// `why`.
#[track_caller]
fn assert_not_ready(node: &TestNode, condition: &str, reason: &str, why: &str) {
    let cri = node.cri().with_timeout(FAST_CALL_LIMIT);
    let mut last = None;
    let reported = eventually(LIMIT, || {
        let now = cri
            .condition(condition)
            .expect("Status answers at once, whatever is away");
        let matches = !now.status && now.reason == reason && now.message.contains(why);
        last = Some(now);
        matches
    });
    assert!(
        reported,
        "{condition} is not reported to be false for {reason} and {why:?}: {last:?}"
    );
}

/// Waits until every status interface of the node reports that it is ready again.
#[track_caller]
fn assert_recovers(node: &TestNode) {
    let mut last = String::new();
    let ready = eventually(LIMIT, || {
        let (status, body) = node.daemon().get("/readyz?verbose");
        last = body;
        let holds = |name| node.cri().condition(name).expect("Status answers").status;
        status == 200 && holds("RuntimeReady") && holds("NetworkReady")
    });
    assert!(
        ready,
        "it does not recover: {last}\n{}",
        node.daemon().tail()
    );
}

/// The status of a call that must fail with one of these codes.
#[track_caller]
fn refused<T: Debug>(what: &str, answer: Result<T, Status>, codes: &[Code]) -> Status {
    let status = answer.expect_err(what);
    assert!(codes.contains(&status.code()), "{what}: {status}");
    assert!(!status.message().is_empty(), "{what}: it does not say why");
    status
}

/// Waits until nothing is left that was not in `before`.
#[track_caller]
fn assert_no_leaks_since(node: &TestNode, before: &LeakScan) {
    let mut new = Vec::new();
    let clean = eventually(LIMIT, || {
        new = node.leak_scan().new_since(before);
        new.is_empty()
    });
    assert!(clean, "left behind: {new:#?}\n{}", node.daemon().tail());
}

/// Repeats a call until it succeeds, as clients do.
#[track_caller]
fn retry<T>(what: &str, call: impl FnMut() -> Result<T, Status>) -> T {
    switchyard_tests::cri::retry(LIMIT, what, call)
}
