//! Processes that hold up a task or a pull: in the inspection, among the operations, and on the command line.

use std::time::Duration;

use http::StatusCode;
use switchyard_core::backend::Blocker;
use switchyard_core::id::Owner;
use switchyard_core::state::TaskState;
use switchyard_fake::Method;
use switchyard_linux::kernel_wait::KernelWait;
use switchyard_operator_api::{InspectionView, OperationView};

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

/// A stop that has lasted for six seconds.
fn stop_in_flight(task: String) -> OperationView {
    OperationView {
        number: 1,
        operation: "stop_task".to_owned(),
        owner: "nomad".to_owned(),
        sandbox: None,
        task: Some(task),
        subject: "ledger".to_owned(),
        caller: String::new(),
        began_at: String::new(),
        seconds: 6.0,
        steps: Vec::new(),
        pull: None,
        blockers: Vec::new(),
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
    let stop = stop_in_flight(id);
    let pull = OperationView {
        operation: "pull_image".to_owned(),
        task: None,
        ..stop.clone()
    };
    let create = OperationView {
        operation: "create_sandbox".to_owned(),
        task: None,
        sandbox: Some("0".repeat(64)),
        ..stop.clone()
    };
    let begun = OperationView {
        seconds: 0.1,
        blockers: Vec::new(),
        ..stop.clone()
    };
    let mut operations = [stop, pull, create, begun];
    pages.node.node().explain(&mut operations).await;
    let found = operations.map(|operation| operation.blockers);
    assert_eq!(
        found,
        [
            vec![java.to_string()],
            vec![containerd.to_string()],
            vec![containerd.to_string()],
            vec![]
        ]
    );
    let (status, _) = pages.get("/v1/operations?blockers=1").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    stopping.abort();
}
