//! The logkeeper, which reads the output of every container: what an attacker who controls it cannot do.

use std::fs;

use switchyard_tests::node::TestNode;

/// The values of a field of `/proc/<pid>/task/*/status`.
fn of_threads(pid: i32, name: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let values = tasks.filter_map(|task| {
        let status = task.expect("a task has a name").path().join("status");
        // A thread for short calls ends when it has nothing to do.
        let status = fs::read_to_string(status).ok()?;
        let value = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        Some(value.expect("the kernel says it").to_owned())
    });
    values.collect()
}

#[track_caller]
fn check(conf: &str, filtered: bool) {
    let node = TestNode::start_with(conf, |_| {});
    assert_eq!(node.pod("logged").run_shell("echo works", |_| {}), "works");
    let pid = node
        .root()
        .managed("logkeeper")
        .expect("the daemon writes down whom it started")
        .as_raw();
    let (seccomp, privileges) = if filtered { ("2", "1") } else { ("0", "0") };
    assert!(
        of_threads(pid, "Seccomp")
            .iter()
            .all(|mode| mode == seccomp),
        "{:?}",
        of_threads(pid, "Seccomp")
    );
    assert!(
        of_threads(pid, "NoNewPrivs")
            .iter()
            .all(|set| set == privileges)
    );
}

#[test]
fn a_managed_logkeeper_confines_itself() {
    check("", true);
}

#[test]
fn logkeeper_confinement_can_be_disabled() {
    check("[logkeeper]\nsandbox = false\n", false);
}
