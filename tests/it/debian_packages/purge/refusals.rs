//! Steps of a purge that fail: it ends, rather than removing what is in use.

use std::process::Command;

use super::super::{read, repository};
use super::{Node, sorted_lines};

#[test]
fn purge_that_cannot_look_for_containers_removes_nothing() {
    let postrm = read(&repository().join("deploy/debian/postrm"));
    let (_, cases) = postrm.split_once("\ncase $1 in\n").expect("it has cases");
    let purge = |failing: &str| {
        let node = Node::new();
        let calls = format!(
            "{failing}\nend_processes() {{ echo continues; exit 0; }}\nset -- purge\ncase $1 in\n{cases}"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &node.script(&calls)]);
        command.output().expect("every system has a shell")
    };
    for function in ["served_bundles", "pids_of_unnamed", "pids_of_lost"] {
        let output = purge(&format!("{function}() {{ return 2; }}"));
        let is_refused = !output.status.success() && output.stdout.is_empty();
        assert!(is_refused, "{function}: {output:?}");
    }
    let output = purge("running_pids() { :; }");
    assert_eq!(sorted_lines(&output), ["continues"]);
}

/// A bind mount has the file system of what it shows, so that `rm` does not stop there.
#[test]
fn purge_removes_nothing_through_a_mount_that_stays() {
    let node = Node::new();
    let call = "mkdir $run/precious $state/mounted; : >$run/precious/file; mount --bind $run/precious $state/mounted; \
                umount() { return 1; }; (remove_state) 2>/dev/null || echo refused; ls $run/precious";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &node.script(call)]);
    let output = command.output().expect("every system has it");
    assert_eq!(sorted_lines(&output), ["file", "refused"]);
}
