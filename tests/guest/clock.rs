//! The clock jumps by hours between calls, and by years during calls, forwards and backwards.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1::ContainerStatus;
use switchyard_tests::host::eventually;
use switchyard_tests::image::{LayerBuilder, busybox, digest};
use switchyard_tests::leak_scan;
use switchyard_tests::registry::Registry;
use switchyard_tests::registry_proxy::{Access, RegistryFault};

use crate::node::{CONTAINERD, GuestFact, GuestNode, GuestPod, LIMIT, run};

pub(crate) const FACTS: &[GuestFact] = &[
    ("clock_jumps_have_no_effect", clock_jumps_have_no_effect),
    (
        "clock_jumps_by_years_during_pull_stop_and_exec_have_no_effect",
        by_years,
    ),
];

/// The hours to jump by, which add up to zero: to a time before everything, and back.
const JUMPS: [i64; 2] = [-6, 6];

fn clock_jumps_have_no_effect(node: &GuestNode) {
    let pod = node.pod("clock");
    let _ = pod.start_shell(
        "counting",
        "n=0; while :; do n=$((n+1)); echo $n; sleep 0.1; done",
    );
    for (number, hours) in JUMPS.into_iter().enumerate() {
        let before = pod.start_shell(&format!("before-{number}"), "exec sleep 1000");
        let waiting = node.cri.create(
            &pod.id,
            &node.container(&format!("waiting-{number}"), "true"),
            &pod.config,
        );
        jump(hours);
        node.wait_ready();
        assert_on_record(hours);
        // A container started before the jump, one created before it, and one in a pod that was created after
        // it.
        node.cri.stop(&before, 1).expect("it can be stopped");
        check(&node.wait_exit(&before), hours);
        let waiting = waiting.expect("it can be made");
        node.cri.start(&waiting).expect("it can be started");
        check(&node.wait_exit(&waiting), hours);
        let later = node.pod("later");
        let id = later.start_shell("main", "echo runs; exec sleep 1000");
        later.wait_log_lines("main", |lines| lines == ["runs"]);
        assert_eq!(node.cri.sh(&id, "echo reached"), "reached");
        let so_far = pod.log_lines("counting").len();
        let lines = pod.wait_log_lines("counting", |lines| lines.len() > so_far + 5);
        let complete = &lines[..lines.len() - 1];
        assert!(
            complete
                .iter()
                .enumerate()
                .all(|(index, line)| *line == (index + 1).to_string()),
            "{lines:?}"
        );
        assert!(node.cri.stats(&id).is_ok(), "it has stats");
        assert!(node.cri.pods().expect("they can be listed").len() >= 2);
        assert!(node.cri.containers().expect("they can be listed").len() >= 2);
        drop(later);
        // A restarted daemon reports the same.
        if hours < 0 {
            run(&["systemctl", "restart", "switchyard"]);
            node.wait_ready();
            check(&node.cri.status(&before).expect("it has a status"), hours);
        }
    }
}

/// Longer than any timeout and any retention time.
const YEARS: i64 = 2 * 365 * 24;
/// Files in this directory release what is in progress; containers see it at the same path.
const SIGNAL_DIR: &str = "/run/guest-clock";
/// The grace period of the stop: longer than everything that is done meanwhile.
const GRACE: i64 = 120;
/// Leases whose deletion makes containerd collect all garbage at once, one for each jump.
const SPARE: [&str; 2] = ["guest-1", "guest-2"];

/// A pull that its registry delays, a stop within its grace period and an exec are not affected, and complete
/// normally.
fn by_years(node: &GuestNode) {
    fs::create_dir_all(SIGNAL_DIR).expect("it can be made");
    let registry = Registry::start_behind_proxy(Access::Open);
    let layer = LayerBuilder::default()
        .file("data", b"years".repeat(20_000), 0o644)
        .build_uncompressed();
    let part = format!("/blobs/{}", digest(&layer.bytes));
    registry.push("years:latest", &busybox().layer(layer).build());
    let image = registry.reference("years:latest");
    let pod = node.pod("years");
    let shell = |name: &str, script: &str| {
        pod.start_shell_with(name, script, |config| config.mounts.push(signal_mount()))
    };
    let slow = shell(
        "slow",
        &format!(
            "trap 'echo told' TERM; until [ -e {SIGNAL_DIR}/end ]; do echo on; sleep 0.3; done; exit 5"
        ),
    );
    let busy = shell("busy", "exec sleep 1000");
    pod.wait_log_lines("slow", |lines| !lines.is_empty());
    for lease in SPARE {
        let _ = ctr(&["leases", "create", "--expires", "0", "--id", lease]);
    }
    let cri = node
        .cri
        .with_timeout(Duration::from_secs(GRACE.unsigned_abs()));
    let wait = format!(
        "touch {SIGNAL_DIR}/begun; until [ -e {SIGNAL_DIR}/end ]; do sleep 0.3; done; echo done"
    );
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| cri.stop(&slow, GRACE));
        let exec = scope.spawn(|| cri.exec(&busy, &["sh", "-c", &wait], GRACE));
        pod.wait_log_lines("slow", |lines| lines.iter().any(|line| line == "told"));
        assert!(
            eventually(LIMIT, || Path::new(SIGNAL_DIR).join("begun").exists()),
            "the exec begins"
        );
        registry.proxy().add_fault(&part, RegistryFault::Hold);
        let pull = scope.spawn(|| cri.pull(&image, None));
        assert!(
            eventually(LIMIT, || registry.proxy().count(&part) > 0),
            "the pull comes to the layer"
        );
        assert_jumps_end_nothing(node, &pod, || {
            [stop.is_finished(), exec.is_finished(), pull.is_finished()]
        });
        fs::write(Path::new(SIGNAL_DIR).join("end"), "").expect("it can be written");
        registry.proxy().release();
        stop.join()
            .expect("it does not panic")
            .expect("it is stopped");
        let answer = exec
            .join()
            .expect("it does not panic")
            .expect("it reaches its end");
        assert_eq!(
            (answer.exit_code, answer.stdout.as_slice()),
            (0, b"done\n".as_slice())
        );
        pull.join()
            .expect("it does not panic")
            .expect("it is pulled");
    });
    // Nothing was downloaded twice, as it would be if content had been garbage-collected.
    assert_eq!(
        registry.proxy().count(&part),
        1,
        "{:?}",
        registry.proxy().requests()
    );
    let status = node.wait_exit(&slow);
    assert_eq!(status.exit_code, 5, "it was not killed before its time");
    check(&status, 0);
    assert_image_is_whole(node, &pod, &image);
    fs::remove_dir_all(SIGNAL_DIR).expect("it is there");
}

fn assert_image_is_whole(node: &GuestNode, pod: &GuestPod<'_>, image: &str) {
    let mut config = node.container("pulled", "exec cat /data");
    config.image = Some(switchyard_tests::cri::image_spec(image));
    let id = node
        .cri
        .create(&pod.id, &config, &pod.config)
        .expect("it can be made");
    node.cri.start(&id).expect("it can be started");
    assert_eq!(node.wait_exit(&id).exit_code, 0);
    assert_eq!(pod.log_lines("pulled").concat(), "years".repeat(20_000));
}

/// Sets the clock forward and back again during a stop, an exec and a pull, and looks which of them have ended.
fn assert_jumps_end_nothing(node: &GuestNode, pod: &GuestPod<'_>, ended: impl Fn() -> [bool; 3]) {
    for (hours, spare) in [YEARS, -YEARS].into_iter().zip(SPARE) {
        jump(hours);
        node.wait_ready();
        let _ = ctr(&["leases", "delete", "--sync", spare]);
        let leases = ctr(&["leases", "ls", "-q"]);
        assert!(
            leases.iter().any(|lease| lease.contains("-pull-")),
            "its lease is gone: {leases:?}"
        );
        let so_far = pod.log_lines("slow").len();
        pod.wait_log_lines("slow", |lines| lines.len() > so_far + 2);
        assert_eq!(
            ended(),
            [false; 3],
            "a stop, an exec, a pull ended after a jump of {hours} h"
        );
    }
}

/// The mount of the directory in which containers see the release files.
fn signal_mount() -> cri::Mount {
    cri::Mount {
        container_path: SIGNAL_DIR.to_owned(),
        host_path: SIGNAL_DIR.to_owned(),
        ..Default::default()
    }
}

#[track_caller]
fn ctr(words: &[&str]) -> Vec<String> {
    let lines = leak_scan::ctr(Path::new(CONTAINERD), leak_scan::NAMESPACE, words);
    assert!(
        !lines.iter().any(|line| line.starts_with("unknown: ")),
        "{lines:?}"
    );
    lines
}

#[track_caller]
fn check(status: &ContainerStatus, hours: i64) {
    let ContainerStatus {
        created_at,
        started_at,
        finished_at,
        ..
    } = *status;
    assert!(
        created_at <= started_at && started_at <= finished_at,
        "after a jump of {hours} h: {created_at}, {started_at}, {finished_at}"
    );
}

/// Checks that the history names a jump by some hours.
#[track_caller]
fn assert_on_record(hours: i64) {
    let direction = if hours < 0 { "back" } else { "forward" };
    // The clock is set to a full second.
    let by = hours.unsigned_abs() * 36;
    let texts = [by, by - 1].map(|by| format!("the clock was set {direction} by {by}"));
    let mut shown = String::new();
    let is_on_record = || {
        shown = run(&["switchyard", "history"]);
        shown.lines().any(|line| {
            line.contains("clock_jumped") && texts.iter().any(|text| line.contains(text))
        })
    };
    assert!(eventually(LIMIT, is_on_record), "{shown}");
}

fn jump(hours: i64) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs();
    let then = now
        .checked_add_signed(hours * 3600)
        .expect("the clock of the guest is set");
    run(&["date", "--set", &format!("@{then}")]);
}
