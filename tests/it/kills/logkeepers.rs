//! Kills of the logkeeper, which the daemon restarts: containers and clients must not be disturbed.

use std::fs;

use switchyard_crash_points::CrashPoint::*;
use switchyard_crash_points::Operation;
use switchyard_proto::cri::v1::Mount;
use switchyard_tests::host::random_name;
use switchyard_tests::node::TestPod;

use super::cases::KillCase;
use super::fixture::{KillFixture, KillPoint, assert_counted, assert_counts_on};

/// Prints long lines that begin with a number.
const COUNT: &str = "n=0; while :; do n=$((n+1)); printf '%d %0400d\\n' $n 0; sleep 0.01; done";

pub(super) const KILLS: &[KillCase] = &[
    KillCase::of(open, Operation::OpenLog).and(&[(SpoolMade, 2)]),
    KillCase::of(write, Operation::WriteLog).and(&[
        (OutputSpooled, 20),
        (LinesWritten, 20),
        (PositionStored, 20),
    ]),
    KillCase::of(reopen, Operation::ReopenLog),
    KillCase::of(finish, Operation::FinishLog),
    KillCase::of(recover, Operation::RecoverLog).and(&[(LogTakenUp, 2)]),
    KillCase::of(begin, Operation::StartLogkeeper),
];

fn log(pod: &TestPod<'_>, name: &str) -> String {
    pod.log_path(name)
        .to_str()
        .expect("the path is ASCII")
        .to_owned()
}

/// Stops a container that counts: its log is complete to the last line, and the bystander's log continues.
fn assert_whole(fixture: &KillFixture, kill: KillPoint, pod: TestPod<'_>, id: &str, logs: &[&str]) {
    assert_counts_on(
        &format!("{}/counting.log", fixture.bystander_logs()),
        &format!("{kill:?}: the bystander"),
    );
    fixture.node.cri().stop(id, 0).expect("it can be stopped");
    assert_counted(logs, &format!("{kill:?}"));
    drop(pod);
    fixture.assert_undisturbed(kill);
    fixture.assert_nothing_left(kill);
}

fn open(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("open");
    let id = pod.create(&fixture.node.container("main", &["sh", "-c", COUNT]));
    fixture
        .child_killed_during(&[(kill.step, kill.nth)], || fixture.node.cri().start(&id))
        .unwrap_or_else(|status| panic!("{kill:?}: {status}\n{}", fixture.node.daemon().tail()));
    let log = log(&pod, "main");
    assert_counts_on(&log, &format!("{kill:?}"));
    assert_whole(fixture, kill, pod, &id, &[&log]);
}

fn write(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("write");
    let id = pod.start_shell("main", COUNT);
    let log = log(&pod, "main");
    fixture.child_killed_during(&[(kill.step, kill.nth)], || {
        assert_counts_on(&log, "before")
    });
    assert_counts_on(&log, &format!("{kill:?}"));
    assert_whole(fixture, kill, pod, &id, &[&log]);
}

fn reopen(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("reopen");
    let id = pod.start_shell("main", COUNT);
    let log = log(&pod, "main");
    assert_counts_on(&log, "before");
    let old = format!("{log}.old");
    fs::rename(&log, &old).expect("the log is there");
    fixture
        .child_killed_during(&[(kill.step, kill.nth)], || {
            fixture.node.cri().reopen_log(&id)
        })
        .unwrap_or_else(|status| panic!("{kill:?}: {status}\n{}", fixture.node.daemon().tail()));
    pod.wait_log("main", |lines| lines.len() > 3);
    assert_whole(fixture, kill, pod, &id, &[&old, &log]);
}

fn finish(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("finish");
    let dir = fixture
        .node
        .root()
        .path()
        .join(format!("host-{}", random_name()));
    fs::create_dir(&dir).expect("the root can be written");
    let script = "n=0; while [ $n -lt 50 ]; do n=$((n+1)); echo $n; done; \
                  while [ ! -e /host/go ]; do sleep 0.02; done; echo 51; exit 7";
    let id = pod.start_shell_with("main", script, |config| {
        config.mounts = vec![Mount {
            host_path: dir.to_str().expect("the path is ASCII").to_owned(),
            container_path: "/host".to_owned(),
            ..Default::default()
        }];
    });
    let status = fixture.child_killed_during(&[(kill.step, kill.nth)], || {
        fs::write(dir.join("go"), "").expect("the root can be written");
        fixture.node.cri().wait_exit(&id)
    });
    assert_eq!(status.exit_code, 7, "{kill:?}");
    let lines = pod.wait_log("main", |lines| lines.len() >= 51);
    assert_eq!(lines.len(), 51, "{kill:?}");
    let log = log(&pod, "main");
    assert_whole(fixture, kill, pod, &id, &[&log]);
}

/// The logkeeper that takes over from a killed one is killed as well.
fn recover(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("takeup");
    let id = pod.start_shell("main", COUNT);
    let log = log(&pod, "main");
    assert_counts_on(&log, "before");
    fixture.child_killed_during(&[(LinesWritten, 1), (kill.step, kill.nth)], || ());
    assert_counts_on(&log, &format!("{kill:?}"));
    assert_whole(fixture, kill, pod, &id, &[&log]);
}

fn begin(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.pod("begin");
    let id = pod.start_shell("main", COUNT);
    let log = log(&pod, "main");
    assert_counts_on(&log, "before");
    fixture.child_killed_during(&[(kill.step, kill.nth)], || {
        fixture.node.kill_managed("logkeeper")
    });
    assert_counts_on(&log, &format!("{kill:?}"));
    assert_whole(fixture, kill, pod, &id, &[&log]);
}
