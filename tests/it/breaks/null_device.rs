//! An OCI runtime that gives the node's null device to the user of a container, as crun before 1.24 does.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use switchyard_proto::cri::v1::NamespaceMode;
use switchyard_tests::cri::namespaces;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::prereq;
use switchyard_tests::root::PrivateRoot;

use super::LIMIT;

const NULL: &str = "/dev/null";

/// A user that nobody has.
const OWNER: u32 = 1_234_567;

/// Gives the device back when dropped, so that nothing else of this machine depends on the test.
struct GivenBack;

impl Drop for GivenBack {
    fn drop(&mut self) {
        // A test that has succeeded has no need of it.
        let _ = chown(NULL, Some(0), Some(0));
    }
}

/// The configuration with a runtime that does so before each creation and command, and is runc otherwise. It writes its
/// verbs into a file.
fn generous(root: &PrivateRoot) -> String {
    let runc = prereq::require("runc", "runc");
    let program = root.path().join("generous-runc");
    let script = format!(
        "#!/bin/sh\nfor verb in create exec; do case \" $* \" in *\" $verb \"*)\n\
         chown {OWNER}:{OWNER} {NULL} && echo $verb >> {}/given ;; esac; done\nexec {} \"$@\"\n",
        root.path().display(),
        runc.display()
    );
    fs::write(&program, script).expect("the root can be written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    format!("[containerd.runtimes.runc]\nbinary = {program:?}\n")
}

#[test]
fn null_device_is_given_back_after_each_step_of_a_runtime_that_gives_it_away() {
    let node = TestNode::start_configured(generous);
    let _given_back = GivenBack;
    let given = |verb: &str| {
        let calls = fs::read_to_string(node.root().path().join("given"));
        let calls = calls.unwrap_or_default();
        calls.lines().filter(|call| *call == verb).count()
    };
    // Daemons of other versions may do the same on this machine meanwhile.
    let is_root = || fs::metadata(NULL).is_ok_and(|device| device.uid() == 0);
    // An infra process, a task beside it, and a command.
    let pod = node.pod_with("generous", |config| {
        namespaces(config).set_pid(NamespaceMode::Pod);
    });
    assert!(given("create") >= 1, "there is no infra process");
    assert!(eventually(LIMIT, is_root), "after the infra process");
    let before = given("create");
    let id = pod.start(&node.container("main", &["sleep", "1000"]));
    assert_eq!(given("create"), before + 1);
    assert!(eventually(LIMIT, is_root), "after a task");
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    assert!(given("exec") >= 1);
    assert!(eventually(LIMIT, is_root), "after a command");
    // A daemon that was killed before it could.
    node.daemon().kill9();
    chown(NULL, Some(OWNER), Some(OWNER)).expect("this is root");
    node.daemon().restart();
    assert!(eventually(LIMIT, is_root), "after a start");
}
