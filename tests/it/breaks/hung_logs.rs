//! The file system of a log hangs, like a network file system whose server is away.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;

use super::fuse::Fuse;
use super::{LIMIT, assert_recovers, retry};

/// The time of a write to a slow file system, shorter than what counts as a stall.
const SLOW: Duration = Duration::from_millis(50);

/// The files in the logkeeper's state directory.
fn kept(node: &TestNode) -> Vec<String> {
    let entries = fs::read_dir(node.root().run().join("logkeeper/state")).expect("it is there");
    entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn containers_and_pods_whose_logs_hang_are_removed() {
    let node = TestNode::start();
    let cri = node.cri();
    let pod = node.pod("hung");
    let fuse = Fuse::mount(PathBuf::from(&pod.config().log_directory).join("hung"));
    let [removed, of_pod] = ["removed", "pod"].map(|name| {
        pod.start_shell_with(name, "while :; do echo on; sleep 0.01; done", |config| {
            config.log_path = format!("hung/{name}.log");
        })
    });
    let printed = |name: &str| {
        fuse.contents()
            .iter()
            .any(|(path, text)| path.ends_with(name) && !text.is_empty())
    };
    assert!(
        eventually(LIMIT, || printed("removed.log") && printed("pod.log")),
        "{}",
        node.daemon().tail()
    );
    fuse.hang();
    let stalled = || {
        node.daemon()
            .get("/metrics")
            .1
            .contains("switchyard_log_stalled_file_systems 1")
    };
    assert!(
        eventually(LIMIT, stalled),
        "{}",
        node.daemon().get("/metrics").1
    );
    // A start fails, and leaves nothing that could not be removed either.
    let refused = pod.create(&{
        let mut config = node.container("refused", &["sleep", "1000"]);
        config.log_path = "hung/refused.log".to_owned();
        config
    });
    cri.start(&refused).expect_err("its log cannot be opened");
    cri.remove(&refused).expect("it can be removed");
    cri.stop(&removed, 0).expect("it can be stopped");
    retry("RemoveContainer", || cri.remove(&removed));
    cri.stop_pod(pod.id()).expect("it can be stopped");
    retry("RemovePodSandbox", || cri.remove_pod(pod.id()));
    let ids = [&removed, &of_pod, &refused];
    let left: Vec<_> = kept(&node)
        .into_iter()
        .filter(|name| ids.iter().any(|id| name.contains(*id)))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(node.has_logged("removed without the rest"));
    // Other logs continue meanwhile, and everything does when the file system answers.
    assert_eq!(node.pod("other").run_shell("echo other", |_| {}), "other");
    fuse.resume();
    let answers = || {
        node.daemon()
            .get("/metrics")
            .1
            .contains("switchyard_log_stalled_file_systems 0")
    };
    assert!(
        eventually(LIMIT, answers),
        "{}",
        node.daemon().get("/metrics").1
    );
    let left: Vec<_> = kept(&node)
        .into_iter()
        .filter(|name| ids.iter().any(|id| name.contains(*id)))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    drop(fuse);
    assert_recovers(&node);
}

#[test]
fn container_whose_output_waits_for_a_slow_log_is_named() {
    let node = TestNode::start();
    let pod = node.pod("slow");
    let fuse = Fuse::mount(PathBuf::from(&pod.config().log_directory).join("slow"));
    fuse.delay_writes(SLOW);
    let id = pod.start_shell_with("writer", "exec yes output", |config| {
        config.log_path = "slow/writer.log".to_owned();
    });
    // The pipe is empty for the moment after each write.
    for (words, named) in [
        (
            &["status"][..],
            ["full_pipe", "(tests/slow/writer): its log is on "],
        ),
        (
            &["inspect", id.as_str()][..],
            ["slow log ", "/slow is slower"],
        ),
    ] {
        let mut shown = String::new();
        let is_named = || {
            shown = node.output(words);
            named.iter().all(|part| shown.contains(part))
        };
        assert!(eventually(LIMIT, is_named), "{shown}");
    }
    fuse.delay_writes(Duration::ZERO);
    node.cri().stop(&id, 0).expect("it can be stopped");
    let is_over = || !node.output(&["status"]).contains("full_pipe");
    assert!(eventually(LIMIT, is_over), "{}", node.output(&["status"]));
    drop(fuse);
    assert_recovers(&node);
}
