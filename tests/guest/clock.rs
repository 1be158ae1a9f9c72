//! The clock jumps by hours, forwards and backwards.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use switchyard_proto::cri::v1::ContainerStatus;

use crate::Fact;
use crate::node::{GuestNode, run};

pub(crate) const FACTS: &[Fact] = &[("the_clock_may_jump", the_clock_may_jump)];

/// Hours to jump by, which are none in all: forwards, to before all that there is, and back.
const JUMPS: [i64; 3] = [5, -11, 6];

fn the_clock_may_jump(node: &GuestNode) {
    let pod = node.pod("clock");
    let _ = pod.shell("counting", "n=0; while :; do n=$((n+1)); echo $n; sleep 0.1; done");
    for (number, hours) in JUMPS.into_iter().enumerate() {
        let before = pod.shell(&format!("before-{number}"), "exec sleep 1000");
        let waiting =
            node.cri.create(&pod.id, &node.container(&format!("waiting-{number}"), "true"), &pod.config);
        jump(hours);
        node.wait_ready();
        // One that was started before the jump, one that was made before it, and one of a pod of after it.
        node.cri.stop(&before, 1).expect("it can be stopped");
        check(&node.wait_exit(&before), hours);
        let waiting = waiting.expect("it can be made");
        node.cri.start(&waiting).expect("it can be started");
        check(&node.wait_exit(&waiting), hours);
        let later = node.pod("later");
        let id = later.shell("main", "echo runs; exec sleep 1000");
        later.wait_lines("main", |lines| lines == ["runs"]);
        assert_eq!(node.cri.sh(&id, "echo reached"), "reached");
        let so_far = pod.lines("counting").len();
        let lines = pod.wait_lines("counting", |lines| lines.len() > so_far + 5);
        let complete = &lines[..lines.len() - 1];
        assert!(
            complete.iter().enumerate().all(|(index, line)| *line == (index + 1).to_string()),
            "{lines:?}"
        );
        assert!(node.cri.stats(&id).is_ok(), "it has stats");
        assert!(node.cri.pods().expect("they can be listed").len() >= 2);
        assert!(node.cri.containers().expect("they can be listed").len() >= 2);
        drop(later);
        // Another daemon finds the same.
        if hours < 0 {
            run(&["systemctl", "restart", "switchyard"]);
            node.wait_ready();
            check(&node.cri.status(&before).expect("it has a status"), hours);
        }
    }
}

#[track_caller]
fn check(status: &ContainerStatus, hours: i64) {
    let ContainerStatus { created_at, started_at, finished_at, .. } = *status;
    assert!(
        created_at <= started_at && started_at <= finished_at,
        "after a jump of {hours} h: {created_at}, {started_at}, {finished_at}"
    );
}

fn jump(hours: i64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let then = now.checked_add_signed(hours * 3600).expect("the clock of the guest is set");
    run(&["date", "--set", &format!("@{then}")]);
}
