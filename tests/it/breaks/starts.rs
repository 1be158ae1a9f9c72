//! Starts that take longer than their callers wait.

use std::time::Duration;

use switchyard_proto::cri::v1::{ContainerMetadata, ContainerState, StartContainerRequest};
use switchyard_tests::host::eventually;
use tonic::Status;

use super::LIMIT;
use super::shims::node_of_slow_shims;

/// A kubelet whose StartContainer has exceeded its deadline takes the start for failed.
#[test]
fn start_that_its_caller_gave_up_never_runs_beside_the_next_attempt() {
    let (node, dir) = node_of_slow_shims();
    let pod = node.pod("given-up");
    let command = ["sh", "-c", "echo runs; exec sleep 31442"];
    let first = pod.create(&node.container("first", &command));
    std::fs::write(dir.join("hold"), "").expect("it can be written");
    let given_up = node.cri().runtime(async |mut client| {
        let request = StartContainerRequest {
            container_id: first.clone(),
        };
        let held = async {
            while !dir.join("held").exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            answer = client.start_container(request) => answer,
            () = held => Err(Status::cancelled("given up")),
        }
    });
    assert_eq!(
        given_up.expect_err("its shim is held").message(),
        "given up"
    );
    let state = |id: &str| node.cri().status(id).expect("it has a status").state();
    assert!(
        eventually(LIMIT, || state(&first) == ContainerState::ContainerUnknown),
        "{:?}",
        state(&first)
    );
    let mut next = node.container("next", &command);
    next.metadata = Some(ContainerMetadata {
        name: "first".to_owned(),
        attempt: 1,
    });
    let next = pod.create(&next);
    std::thread::scope(|scope| {
        let start = scope.spawn(|| node.cri().start(&next));
        // A kubelet kills an unknown container first. That waits for the end of its start.
        let stop = scope.spawn(|| node.cri().stop(&first, 0));
        std::fs::remove_file(dir.join("hold")).expect("it is there");
        stop.join()
            .expect("a call does not panic")
            .expect("it can be stopped");
        start
            .join()
            .expect("a call does not panic")
            .expect("it can be started");
    });
    let ended = node.cri().status(&first).expect("it has a status");
    assert_eq!(
        (ended.state(), ended.reason.as_str()),
        (ContainerState::ContainerExited, "StartError")
    );
    assert!(ended.message.contains("gone away"), "{ended:?}");
    pod.wait_log("next", |lines| lines.len() == 1);
    assert_eq!(
        (state(&next), pod.log_text("first")),
        (ContainerState::ContainerRunning, String::new())
    );
    node.cri().remove(&first).expect("it can be removed");
    drop(pod);
    node.assert_clean();
}
