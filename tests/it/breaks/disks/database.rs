//! A database of containerd that has no space, while all disks have some.

use std::cell::RefCell;

use switchyard_proto::cri::v1::NamespaceMode;
use switchyard_tests::cri::namespaces;

use super::*;
use crate::breaks::versions::node_behind_proxy;

/// A database may have space for one change and not for another, depending on where its free pages are: here
/// it has none for any change.
#[test]
fn full_containerd_database_still_reports_exits_and_stops_pods() {
    let behind = RefCell::new(None);
    let node = node_behind_proxy(&behind);
    let fill = |parts: &[&str]| {
        behind
            .borrow()
            .as_ref()
            .expect("it was started with the node")
            .1
            .set_full(parts)
    };
    let cri = node.cri().with_timeout(SOON);
    let pod = node.pod("stopped");
    let removed = node.pod("removed");
    // It has no namespace that would be missed.
    let bare = node.pod_with("bare", |config| {
        namespaces(config).set_network(NamespaceMode::Node);
        namespaces(config).set_ipc(NamespaceMode::Node);
    });
    let pods = [&pod, &removed, &bare];
    let ids = pods.map(|pod| pod.start_shell("main", "exec sleep 1000"));
    let ended = pod.start_shell("ended", "exit 0");
    assert_eq!(exit_info(&node, &ended).0, 0);
    let exhausted = &[Code::ResourceExhausted];
    fill(&["Containers/Create", "Containers/Update"]);

    cri.stop(&ids[0], 0).expect("it can be stopped");
    cri.stop_pod(pod.id())
        .expect("what is left of it shows that it was");
    cri.remove_pod(removed.id())
        .expect("there is space for that");
    assert_full(&refused(
        "StopPodSandbox",
        cri.stop_pod(bare.id()),
        exhausted,
    ));
    let reported = [&ids[0], &ids[2]].map(|id| (id.clone(), exit_info(&node, id)));
    for (id, (code, ..)) in &reported {
        assert!(*code == 137 && is_exit_unrecorded(&node, id), "{code}");
    }
    assert!(!is_exit_unrecorded(&node, &ids[1]), "it is gone");
    assert_next_daemon_reports(&node, &reported);
    assert!(reported.iter().all(|(id, _)| is_exit_unrecorded(&node, id)));
    assert_eq!(exit_info(&node, &ended).0, 0);
    assert_eq!(pod.status().state(), PodSandboxState::SandboxNotready);
    assert_eq!(
        cri.status(&ids[1]).expect_err("it is gone").code(),
        Code::NotFound
    );

    fill(&[
        "Containers/Create",
        "Containers/Update",
        "Containers/Delete",
        "Snapshots/Remove",
    ]);
    assert_full(&refused("RemoveContainer", cri.remove(&ids[0]), exhausted));
    // The removal has deleted the process, of which containerd knew the exit.
    node.daemon().kill9();
    node.daemon().restart();
    assert_eq!(
        exit_info(&node, &ids[0]),
        reported[0].1,
        "the next daemon reports another exit"
    );
    assert_full(&refused(
        "RemovePodSandbox",
        cri.remove_pod(pod.id()),
        exhausted,
    ));
    fill(&[]);
    assert_exits_are_recorded(&node, &reported);
    node.daemon().kill9();
    node.daemon().restart();
    assert_eq!(exit_info(&node, &reported[1].0), reported[1].1);
    for pod in [&pod, &bare] {
        cri.stop_pod(pod.id()).expect("it can be stopped again");
        cri.remove_pod(pod.id()).expect("it can be removed");
    }
}
