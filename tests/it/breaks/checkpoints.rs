//! A criu that hangs: the checkpoint is given up, criu is killed, and the container keeps running.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;

use switchyard_proto::cri::v1 as cri;
use switchyard_tests::host::{eventually, processes};
use switchyard_tests::node::TestNode;
use switchyard_tests::prereq;
use switchyard_tests::root::PrivateRoot;
use tonic::{Code, Status};

use super::LIMIT;

/// A runtime with a criu that hangs, and runc otherwise.
struct HangingCriu {
    /// The directory where that criu records its calls, and where a file makes it resume the container before
    /// it hangs.
    dir: PathBuf,
}

impl HangingCriu {
    fn install(root: &PrivateRoot) -> Self {
        // The daemon searches criu in its own PATH.
        let runc = prereq::require("runc", "runc");
        let _ = prereq::require("criu", "criu");
        let dir = root.path().join("criu-that-hangs");
        fs::create_dir(&dir).expect("the root can be written");
        let at = dir.display();
        let criu = format!(
            "#!/bin/sh\necho >> {at}/asked\n\
             if [ -e {at}/thaw ]; then\n\
             id=$(tr '\\0' '\\n' < /proc/$PPID/cmdline | tail -n 1)\n\
             for file in $(find /sys/fs/cgroup -path \"*$id/*\" -name freezer.state); do echo THAWED > $file; done\n\
             for file in $(find /sys/fs/cgroup -path \"*$id/*\" -name cgroup.freeze); do echo 0 > $file; done\n\
             echo > {at}/thawed\nfi\nexec {at}/hangs 1000\n"
        );
        let runtime = format!(
            "#!/bin/sh\nPATH={at}:$PATH exec {} \"$@\"\n",
            runc.display()
        );
        for (name, script) in [("criu", criu), ("runc-with-criu", runtime)] {
            fs::write(dir.join(name), script).expect("the root can be written");
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755))
                .expect("it is ours");
        }
        // The name under which its process is found.
        symlink("/bin/sleep", dir.join("hangs")).expect("the root can be written");
        Self { dir }
    }

    /// Returns whether criu runs.
    fn hangs(&self) -> bool {
        let command = format!("{} 1000", self.dir.join("hangs").display());
        processes::all()
            .iter()
            .any(|process| !process.zombie && process.command == command)
    }

    fn config(&self) -> String {
        let binary = self.dir.join("runc-with-criu");
        format!(
            "[containerd]\nshim_timeout_seconds = 2\n[containerd.runtimes.runc]\nbinary = {binary:?}\n"
        )
    }

    /// The number of calls of criu.
    fn asked(&self) -> usize {
        fs::read_to_string(self.dir.join("asked"))
            .unwrap_or_default()
            .lines()
            .count()
    }
}

fn checkpoint(
    node: &TestNode,
    container: &str,
    location: &Path,
    timeout: i64,
) -> Result<(), Status> {
    let request = cri::CheckpointContainerRequest {
        container_id: container.to_owned(),
        location: location.display().to_string(),
        timeout,
    };
    node.cri()
        .with_timeout(LIMIT)
        .runtime(async |mut client| client.checkpoint_container(request).await)
        .map(drop)
}

#[test]
fn hung_criu_is_killed_and_container_keeps_running() {
    let runtime = RefCell::new(None);
    let node = TestNode::start_configured(|root| {
        runtime
            .borrow_mut()
            .insert(HangingCriu::install(root))
            .config()
    });
    let runtime = runtime.take().expect("it was installed with the node");
    let pod = node.pod("still");
    let id = pod.start(&node.container("main", &["sleep", "1000"]));
    let archive = node.root().path().join("archive.tar");
    let reached = || {
        node.cri()
            .exec(&id, &["true"], 10)
            .is_ok_and(|answer| answer.exit_code == 0)
    };

    for (time, also) in ["nothing", "thaw"].into_iter().enumerate() {
        fs::write(runtime.dir.join(also), "").expect("the root can be written");
        thread::scope(|scope| {
            let made = scope.spawn(|| checkpoint(&node, &id, &archive, 5));
            assert!(
                eventually(LIMIT, || runtime.asked() > time && runtime.hangs()),
                "criu is not asked"
            );
            // A probe gets an error that does not count against the container. It waits for as long as the shim
            // timeout, whatever time its command has.
            thread::scope(|probes| {
                for timeout in [1, 0] {
                    let (node, id) = (&node, &id);
                    probes.spawn(move || {
                        let status = node
                            .cri()
                            .exec(id, &["true"], timeout)
                            .expect_err("it stands still");
                        assert_eq!(status.code(), Code::Unavailable, "{status}");
                        let why = status.message();
                        assert!(
                            why.contains("is frozen") && why.contains("checkpoint"),
                            "{status}"
                        );
                    });
                }
            });
            let status = made
                .join()
                .expect("a call does not panic")
                .expect_err("criu hangs");
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        });
        assert_eq!(node.cri().sh(&id, "echo reached"), "reached", "{also}");
        assert!(!runtime.hangs(), "{also}: criu is left behind");
        assert!(!archive.exists() && !mark(&node, &id).exists(), "{also}");
    }
    assert!(runtime.dir.join("thawed").exists());

    thread::scope(|scope| {
        let cut = scope.spawn(|| checkpoint(&node, &id, &archive, 0));
        assert!(
            eventually(LIMIT, || runtime.asked() > 2),
            "criu is not asked"
        );
        node.daemon().kill9();
        cut.join()
            .expect("a call does not panic")
            .expect_err("nobody answers");
    });
    node.daemon().restart();
    assert!(
        eventually(LIMIT, reached),
        "it stands still after a restart of the daemon"
    );
    assert!(
        eventually(LIMIT, || !mark(&node, &id).exists()) && !runtime.hangs() && !archive.exists()
    );
}

/// The directory that exists while a checkpoint is made.
fn mark(node: &TestNode, container: &str) -> PathBuf {
    node.root()
        .state()
        .join("tasks")
        .join(container)
        .join("checkpoint")
}
