//! A shim that several containers of a pod share, and that exits slowly.

use super::*;

/// Two containers of a pod: the first runs, and the second is about to be started by the same shim.
struct SharedShimPod<'n> {
    pod: TestPod<'n>,
    first: String,
    second: String,
    /// The shim's process.
    shim: i32,
}

impl<'n> SharedShimPod<'n> {
    fn make(node: &'n TestNode) -> Self {
        let pod = node.pod("shared");
        let first = pod.start_shell("first", "exec sleep 31440");
        let second =
            pod.create(&node.container("second", &["sh", "-c", "echo runs; exec sleep 31441"]));
        let shim = shim(node, &first);
        Self {
            pod,
            first,
            second,
            shim,
        }
    }

    /// Starts the second container. `meanwhile` runs when its shim has been chosen, before containerd calls
    /// the shim.
    fn start_second(&self, node: &TestNode, dir: &Path, meanwhile: impl FnOnce() + Send) {
        std::fs::write(dir.join("hold"), "").expect("it can be written");
        std::thread::scope(|scope| {
            let start = scope.spawn(|| node.cri().start(&self.second));
            let held = eventually(LIMIT, || dir.join("held").exists());
            if held {
                meanwhile();
            }
            std::fs::remove_file(dir.join("hold")).expect("it is there");
            assert!(held, "no shim was chosen");
            start
                .join()
                .expect("a call does not panic")
                .expect("it is started");
        });
        self.pod.wait_log("second", |lines| {
            lines.len() == 1 && lines[0].ends_with(" F runs")
        });
        let status = node.cri().status(&self.second).expect("it has a status");
        assert_eq!(
            status.state(),
            ContainerState::ContainerRunning,
            "{status:?}"
        );
    }

    fn shim_runs(&self) -> bool {
        processes::find(self.shim).is_some_and(|process| !process.zombie)
    }
}

/// A node whose shims report their start only once the file `hold` in the directory is gone.
pub(crate) fn node_of_slow_shims() -> (TestNode, PathBuf) {
    let mut dir = PathBuf::new();
    let node = TestNode::start_configured(|root| {
        dir = root.path().join("shims");
        format!("[containerd]\nbinary = {:?}\n", slow_shims(&dir))
    });
    (node, dir)
}

fn retried(node: &TestNode) -> bool {
    let log = std::fs::read_to_string(node.root().daemon_log()).expect("the daemon writes a log");
    log.contains("the pod's shim exited during the creation")
}

#[test]
fn container_start_succeeds_while_the_pod_shim_exits() {
    let (node, dir) = node_of_slow_shims();
    let shared = SharedShimPod::make(&node);
    shared.start_second(&node, &dir, || {
        kill(Pid::from_raw(shared.shim), Signal::SIGKILL).expect("it runs");
        assert!(eventually(LIMIT, || !shared.shim_runs()), "it was killed");
    });
    assert!(
        eventually(LIMIT, || retried(&node)),
        "{}",
        node.daemon().tail()
    );
}

/// A shim exits with the last of its tasks: the daemon must not delete that task while another one is being
/// created in the shim.
#[test]
fn pod_shim_does_not_exit_during_a_container_start() {
    let (node, dir) = node_of_slow_shims();
    let shared = SharedShimPod::make(&node);
    std::thread::scope(|scope| {
        let mut stop = None;
        shared.start_second(&node, &dir, || {
            stop = Some(scope.spawn(|| node.cri().stop(&shared.first, 0)));
            let ended = || processes::running(node.root().path(), "sleep 31440").is_none();
            assert!(eventually(LIMIT, ended), "its process is not killed");
            // Many times longer than containerd needs to delete a task.
            std::thread::sleep(Duration::from_millis(500));
            assert!(shared.shim_runs(), "it has ended with the first");
        });
        let stop = stop
            .expect("it was begun")
            .join()
            .expect("a call does not panic");
        stop.expect("it can be stopped");
    });
    assert!(shared.shim_runs(), "it serves the second");
    assert!(!retried(&node), "{}", node.daemon().tail());
}

/// A containerd whose shims report their start, with their address, only once the file `hold` in `dir` is
/// gone; its path.
fn slow_shims(dir: &Path) -> PathBuf {
    let real = |name: &str| prereq::require(name, "containerd").display().to_string();
    std::fs::create_dir(dir).expect("it can be made");
    let shim = format!(
        "#!/bin/sh\nfor verb; do :; done\n[ \"$verb\" = start ] || exec {real} \"$@\"\nanswer=$({real} \"$@\") || exit\n\
         while [ -e {dir}/hold ]; do : >{dir}/held; sleep 0.05; done\nprintf %s \"$answer\"\n",
        real = real("containerd-shim-runc-v2"),
        dir = dir.display(),
    );
    let containerd = format!(
        "#!/bin/sh\nPATH={}:$PATH exec {} \"$@\"\n",
        dir.display(),
        real("containerd")
    );
    for (name, text) in [
        ("containerd-shim-runc-v2", shim),
        ("containerd", containerd),
    ] {
        let path = dir.join(name);
        std::fs::write(&path, text).expect("it can be written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("it can be run");
    }
    dir.join("containerd")
}
