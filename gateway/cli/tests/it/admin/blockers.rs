//! Processes that hold up a task or a pull: in the inspection, among the operations, and on the command line.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use switchyard_core::backend::Blocker;
use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::operation::{OperationInFlight, OperationKind, Subject};
use switchyard_core::state::TaskState;
use switchyard_fake::Method;
use switchyard_linux::kernel_wait::KernelWait;
use switchyard_operator_api::InspectionView;

use super::node::{TestNode, endless};
use super::{Pages, run};
use crate::support::soon;

/// A process that waits in the kernel, or sleeps.
fn blocker(name: &str, state: char) -> Blocker {
    Blocker {
        wait: KernelWait {
            pid: 812,
            name: name.to_owned(),
            thread: 812,
            state,
            channel: Some("nfs_wait_bit_killable".to_owned()),
        },
        call: None,
        mount: None,
    }
}

/// An operation of Nomad's that has lasted for so many seconds.
fn in_flight(
    number: u64,
    kind: OperationKind,
    subject: Subject,
    seconds: u64,
) -> OperationInFlight {
    OperationInFlight {
        number,
        kind,
        owner: Some(Owner::Nomad),
        subject,
        caller: None,
        began_at: SystemTime::UNIX_EPOCH,
        age: Duration::from_secs(seconds),
        steps: Vec::new(),
        pull: None,
    }
}

async fn inspected(pages: &Pages, name: &str) -> Vec<String> {
    let (status, body) = pages.get(&format!("/v1/inspect?name={name}")).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let view: InspectionView = serde_json::from_str(&body).unwrap();
    view.blockers
}

#[tokio::test(flavor = "multi_thread")]
async fn task_that_does_not_end_is_shown_with_the_process_that_waits_in_the_kernel() {
    let node = TestNode::new().await;
    let _hold = node.fake.hold(Method::WaitTask);
    let task = node.run(endless(Owner::Nomad, "ledger")).await;
    let java = blocker("java", 'D');
    let all = vec![java.clone(), blocker("sh", 'S')];
    node.fake.set_task_blockers(task.id, all);
    let containerd = blocker("containerd", 'D');
    node.fake.set_runtime_blockers(vec![containerd.clone()]);
    let pages = Pages::serve(node).await;
    assert!(
        inspected(&pages, "ledger").await.is_empty(),
        "it runs: nothing is held up"
    );

    let scope = pages.node.gateway.scope(Owner::Nomad);
    let id = task.id.to_string();
    let stopping = {
        let scope = scope.clone();
        let id = id.clone();
        tokio::spawn(async move { scope.tasks().stop(&id, Duration::ZERO).await })
    };
    let begins = async {
        while !matches!(
            scope.tasks().find(&id).unwrap().state,
            TaskState::Stopping { .. }
        ) {
            tokio::task::yield_now().await;
        }
    };
    soon("the stop", begins).await;
    for name in [&id, &task.sandbox.to_string()] {
        assert_eq!(inspected(&pages, name).await, [java.to_string()], "{name}");
    }
    let output = run(&["inspect", &id, "--socket", &pages.socket()]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("\nheld up by   {java}\n")), "{text}");

    let (status, body) = pages.get("/v1/operations?blockers=true").await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let of_task = Subject {
        task: Some(task.id),
        ..Subject::default()
    };
    let of_new_sandbox = Subject {
        sandbox: Some(SandboxId::from_bytes([0; 32])),
        ..Subject::default()
    };
    let operations = [
        in_flight(1, OperationKind::StopTask, of_task.clone(), 6),
        in_flight(2, OperationKind::PullImage, Subject::default(), 6),
        in_flight(3, OperationKind::CreateSandbox, of_new_sandbox, 6),
        in_flight(4, OperationKind::StopTask, of_task, 0),
    ];
    let found = pages.node.node().blockers(&operations).await;
    let expected = BTreeMap::from([
        (1, vec![java.to_string()]),
        (2, vec![containerd.to_string()]),
        (3, vec![containerd.to_string()]),
    ]);
    assert_eq!(found, expected);
    let (status, _) = pages.get("/v1/operations?blockers=1").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    stopping.abort();
}
