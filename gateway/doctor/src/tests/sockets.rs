//! SY803: sockets of the daemon and the logkeeper at which clients reach nobody.

use super::*;

#[test]
fn sockets_that_nobody_listens_on() {
    let stale = |path: &'static str| move |node: &mut TestNode| node.socket(path, false);
    check(stale("/run/switchyard/nomad.sock"), &["SY803 error"]);
    let found = check(
        stale("/run/switchyard/logkeeper/logkeeper.sock"),
        &["SY803 error"],
    );
    assert_eq!(
        found[0].command.as_deref(),
        Some("systemctl restart switchyard-logkeeper")
    );
}

#[test]
fn sockets_whose_file_is_gone_while_the_daemon_runs() {
    for (path, expected) in [
        ("/run/switchyard/cri.sock", "systemctl restart switchyard"),
        ("/run/switchyard/nomad.sock", "systemctl restart switchyard"),
        // Nobody can ask the daemon then.
        ("/run/switchyard/admin.sock", "systemctl restart switchyard"),
        (
            "/run/switchyard/logkeeper/logkeeper.sock",
            "systemctl restart switchyard-logkeeper",
        ),
    ] {
        let found = check(|node| node.remove(path), &["SY803 error"]);
        let [finding] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert!(
            finding
                .found
                .starts_with(&format!("{path}: the file is gone")),
            "{finding:?}"
        );
        assert_eq!(finding.command.as_deref(), Some(expected), "{path}");
    }
    // A client that nobody is to serve misses nothing.
    check(
        |node| {
            node.config("[nomad]\nenabled = false");
            node.remove("/etc/nomad.d/switchyard.hcl");
            node.remove("/run/switchyard/nomad.sock");
        },
        &[],
    );
    // Nor does one of a daemon that has ended.
    check(
        |node| {
            node.kill_daemon();
            for name in ["admin", "cri", "nomad"] {
                node.remove(&format!("/run/switchyard/{name}.sock"));
            }
        },
        &["SY801 error"],
    );
}
