//! Processes that imitate shims and predecessors: they cannot make the daemon delete or kill anything.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;

use super::{LIMIT, assert_recovers};

/// Configuration that makes the daemon scan for orphaned shims all the time.
const CONF: &str = "[recovery]\nlook_seconds = 1\ngrace_milliseconds = 200\n";

/// Configuration that makes the daemon scan once a day, except for a time after its start and after a restart
/// of containerd.
const RARE_SCANS: &str = "[recovery]\nlook_seconds = 86400\ngrace_milliseconds = 200\n";

/// A process with the command line of a shim of a node's containerd.
struct FakeShim(Child);

impl FakeShim {
    fn start(node: &TestNode, uid: u32, id: &str, dir: &Path) -> Self {
        let address = node
            .root()
            .containerd_socket()
            .expect("the node has a containerd");
        let mut command = Command::new("sh");
        command.arg0("containerd-shim-runc-v2").args([
            "-c",
            "read nothing",
            "-namespace",
            "k8s.io",
            "-id",
            id,
        ]);
        command
            .arg("-address")
            .arg(address)
            .uid(uid)
            .current_dir(dir)
            .stdin(Stdio::piped());
        Self(command.spawn().expect("a shell starts"))
    }

    fn runs(&mut self) -> bool {
        self.0.try_wait().expect("it is a child").is_none()
    }
}

impl Drop for FakeShim {
    fn drop(&mut self) {
        let _ = self.0.stdin.take().map(|mut stdin| stdin.write_all(b"\n"));
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn fake_shim_process_causes_no_deletion_or_kill() {
    let node = TestNode::start_with(CONF, |_| {});
    let pod = node.pod("others");
    let other = pod.start_shell("other", "exec sleep 1000");
    // The two victims are at the paths that a bundle with such a name would have.
    let victim = node.root().run().join("containerd/victim");
    let [gone, named, absolute] =
        ["gone", "named (deleted)", "victim"].map(|name| node.root().path().join(name));
    for dir in [&gone, &named, &victim, &absolute] {
        fs::create_dir(dir).expect("a directory");
    }
    fs::write(victim.join("file"), "kept").expect("a file");
    let absolute_id = absolute.to_str().expect("a path in letters");
    let unknown = "ab".repeat(32);
    let users = "cd".repeat(32);
    let mut strangers = [
        FakeShim::start(&node, 0, "../../../victim", &gone),
        FakeShim::start(&node, 0, absolute_id, &gone),
        FakeShim::start(&node, 0, "../../../victim", &named),
        FakeShim::start(&node, 65_534, &users, &gone),
        FakeShim::start(&node, 65_534, "../../../victim", &named),
    ];
    // This one is indistinguishable from a real shim: once it is killed, the scan has checked all of them.
    let mut forgotten = FakeShim::start(&node, 0, &unknown, &gone);
    fs::remove_dir(&gone).expect("it is empty");
    assert!(
        eventually(LIMIT, || !forgotten.runs()),
        "{}",
        node.daemon().tail()
    );
    // And the scan has also checked those that come after it.
    let mut next = FakeShim::start(&node, 0, &unknown, &named);
    assert!(
        eventually(LIMIT, || !next.runs()),
        "{}",
        node.daemon().tail()
    );
    assert_eq!(
        fs::read_to_string(victim.join("file")).expect("it is there"),
        "kept"
    );
    assert!(absolute.is_dir());
    for stranger in &mut strangers {
        assert!(stranger.runs(), "a stranger was killed");
    }
    assert_eq!(node.cri().sh(&other, "echo reached"), "reached");
    fs::remove_dir_all(&victim).expect("it can be removed");
}

/// Remains of a kill may become visible only after the first scan: a shim that was being started, and one
/// that containerd has not forgotten yet.
#[test]
fn orphaned_shim_that_appears_after_start_is_killed() {
    let node = TestNode::start_with(RARE_SCANS, |_| {});
    let pod = node.pod("others");
    // The daemon, which waits for this container's exit, is the first to notice that containerd is gone.
    let _other = pod.start_shell("other", "exec sleep 1000");
    let show = |name: &str, id: &str| {
        let container_dir = node.root().path().join(name);
        fs::create_dir(&container_dir).expect("a directory");
        let mut forgotten = FakeShim::start(&node, 0, &id.repeat(32), &container_dir);
        fs::remove_dir(&container_dir).expect("it is empty");
        assert!(
            eventually(LIMIT, || !forgotten.runs()),
            "{name}: {}",
            node.daemon().tail()
        );
    };
    show("after-start", "ab");
    node.daemon().kill9();
    node.daemon().restart();
    show("after-restart", "cd");
    node.kill_managed("containerd");
    assert_recovers(&node);
    show("after-containerd", "ef");
}
