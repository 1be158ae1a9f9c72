//! Processes that call themselves what they are not: nobody is deceived into deleting or killing anything.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;

use super::{LIMIT, assert_recovers};

/// Shims that containerd has forgotten are looked for all the time.
const CONF: &str = "[recovery]\nlook_seconds = 1\ngrace_milliseconds = 200\n";

/// They are looked for once a day, but for the time after a start and after the return of containerd.
const RARE_SCANS: &str = "[recovery]\nlook_seconds = 86400\ngrace_milliseconds = 200\n";

/// A process whose words are those of a shim of a node's containerd.
struct FakeShim(Child);

impl FakeShim {
    fn start(node: &TestNode, uid: u32, id: &str, dir: &Path) -> Self {
        let address = node.root().containerd_socket().expect("the node has a containerd");
        let mut command = Command::new("sh");
        command.arg0("containerd-shim-runc-v2").args([
            "-c",
            "read nothing",
            "-namespace",
            "k8s.io",
            "-id",
            id,
        ]);
        command.arg("-address").arg(address).uid(uid).current_dir(dir).stdin(Stdio::piped());
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
fn a_process_that_calls_itself_a_shim_has_nobody_delete_a_directory_or_kill_a_process() {
    let node = TestNode::start_with(CONF, |_| {});
    let pod = node.pod("others");
    let other = pod.start_shell("other", "exec sleep 1000");
    // Both victims are where a name like theirs would lead to, if it were that of a bundle.
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
    // This one is what it says, as far as can be seen: once it is ended, all of them have been looked at.
    let mut forgotten = FakeShim::start(&node, 0, &unknown, &gone);
    fs::remove_dir(&gone).expect("it is empty");
    assert!(eventually(LIMIT, || !forgotten.runs()), "{}", node.daemon().tail());
    // And so have been those that come after it.
    let mut next = FakeShim::start(&node, 0, &unknown, &named);
    assert!(eventually(LIMIT, || !next.runs()), "{}", node.daemon().tail());
    assert_eq!(fs::read_to_string(victim.join("file")).expect("it is there"), "kept");
    assert!(absolute.is_dir());
    for stranger in &mut strangers {
        assert!(stranger.runs(), "a stranger was killed");
    }
    assert_eq!(node.cri().sh(&other, "echo reached"), "reached");
    fs::remove_dir_all(&victim).expect("it can be removed");
}

/// What a kill leaves may show only after the first look: a shim that was being started, and one whose containerd has yet to forget it.
#[test]
fn a_forgotten_shim_that_shows_after_a_start_is_ended_however_seldom_is_looked() {
    let node = TestNode::start_with(RARE_SCANS, |_| {});
    let pod = node.pod("others");
    // Who waits for its end is the first to notice that containerd is gone.
    let _other = pod.start_shell("other", "exec sleep 1000");
    let show = |name: &str, id: &str| {
        let home = node.root().path().join(name);
        fs::create_dir(&home).expect("a directory");
        let mut forgotten = FakeShim::start(&node, 0, &id.repeat(32), &home);
        fs::remove_dir(&home).expect("it is empty");
        assert!(eventually(LIMIT, || !forgotten.runs()), "{name}: {}", node.daemon().tail());
    };
    show("after-start", "ab");
    node.daemon().kill9();
    node.daemon().restart();
    show("after-restart", "cd");
    node.kill_managed("containerd");
    assert_recovers(&node);
    show("after-containerd", "ef");
}
