//! Kills during the start of the daemon and of the processes that it supervises.

use std::fs;
use std::io::ErrorKind;
use std::net::Ipv6Addr;
use std::os::unix::net::UnixStream;
use std::process::Command;

use switchyard_crash_points::CrashPoint::{self, *};
use switchyard_crash_points::Operation;
use switchyard_tests::daemon::Daemon;
use switchyard_tests::host::{forward_ipv6, random_bytes, run};
use switchyard_tests::root::PrivateRoot;

use super::cases::KillCase;
use super::fixture::{KillFixture, KillPoint};

/// A log longer than this is rotated, in bytes.
const LONG: u64 = 17 << 20;

pub(super) const KILLS: &[KillCase] = &[
    KillCase::of(start, Operation::StartDaemon).and(&[
        (DirLocked, 2),
        (SocketBound, 2),
        (SocketBound, 3),
    ]),
    KillCase::of(start_alone, Operation::StartManaged).and(&[(ProcessSpawned, 2)]),
    KillCase::of(detach, Operation::Detach),
    KillCase::at(next_logkeeper, &[(SocketsLeft, 1)]),
];

fn start(fixture: &KillFixture, kill: KillPoint) {
    fixture.node.daemon().kill9();
    fixture.node.daemon().kill_at(&[(kill.step, kill.nth)]);
    restart_twice(fixture, kill);
}

/// Neither containerd nor the logkeeper runs, their logs are long, and containerd's configuration is another one.
fn start_alone(fixture: &KillFixture, kill: KillPoint) {
    fixture.node.daemon().kill9();
    let state = fixture.node.root().state();
    for (name, log) in [
        ("containerd", "containerd/containerd.log"),
        ("logkeeper", "logkeeper.log"),
    ] {
        fixture.node.kill_managed(name);
        let file = fs::File::options()
            .write(true)
            .open(state.join(log))
            .expect("it has a log");
        file.set_len(LONG).expect("the log can be written");
    }
    fs::write(state.join("containerd/config.toml"), "version = 2\n").expect("it can be written");
    fixture.node.daemon().kill_at(&[(kill.step, kill.nth)]);
    restart_twice(fixture, kill);
}

#[track_caller]
fn restart_twice(fixture: &KillFixture, kill: KillPoint) {
    fixture.node.daemon().spawn();
    fixture.node.daemon().wait_killed();
    fixture.node.daemon().restart();
    fixture.assert_undisturbed(kill);
    fixture.with_pod("after", |pod| {
        assert_eq!(pod.run_shell("echo works", |_| {}), "works", "{kill:?}")
    });
    fixture.assert_nothing_left(kill);
}

/// The child process dies before it executes containerd: the daemon starts another.
fn detach(fixture: &KillFixture, kill: KillPoint) {
    fixture.child_killed_during(&[(kill.step, kill.nth)], || {
        fixture.node.kill_managed("containerd")
    });
    fixture.assert_undisturbed(kill);
    fixture.with_pod("after", |pod| {
        assert_eq!(pod.run_shell("echo works", |_| {}), "works", "{kill:?}")
    });
    fixture.assert_nothing_left(kill);
}

/// The daemon leaves the files of its sockets while the next logkeeper has none of their listeners: the next daemon binds
/// sockets in their place.
fn next_logkeeper(fixture: &KillFixture, kill: KillPoint) {
    fixture.node.daemon().kill_at(&[(kill.step, kill.nth)]);
    fixture.node.kill_managed("logkeeper");
    fixture.node.daemon().wait_killed();
    for name in ["cri.sock", "nomad.sock", "admin.sock"] {
        let socket = fixture.node.root().run().join(name);
        let refused = UnixStream::connect(&socket).expect_err("nobody has the listener");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{name}");
    }
    fixture.node.daemon().restart();
    fixture.assert_undisturbed(kill);
    fixture.with_pod("after", |pod| {
        assert_eq!(pod.run_shell("echo works", |_| {}), "works", "{kill:?}")
    });
    fixture.assert_nothing_left(kill);
}

/// The first daemon in a directory dies; the second works.
pub(super) fn first_start(step: CrashPoint) {
    let root = PrivateRoot::new();
    let record = root.network_defaults();
    fs::remove_file(&record).expect("it was written");
    let mut daemon = Daemon::prepare(&root, "");
    daemon.kill_at(&[(step, 1)]);
    daemon.spawn();
    daemon.wait_killed();
    daemon.restart();
    let name = fs::read_to_string(root.state().join("instance")).expect("the gateway has a name");
    daemon.kill9();
    daemon.restart();
    let again = fs::read_to_string(root.state().join("instance")).expect("the gateway has a name");
    assert_eq!(name, again, "{step:?}: a gateway does not change its name");
    let decided = fs::read_to_string(record).expect("the node has defaults");
    assert!(
        decided.contains("driver = \"native\""),
        "{step:?}: a node that began with this version does not become one of a former version: {decided}"
    );
    switchyard_tests::leak_scan::LeakScan::of(&root).assert_clean();
}

/// The daemon that decides which range of IPv6 its bridge has dies before it makes anything of it; the next one has the range that is on record.
pub(super) fn own_ipv6(step: CrashPoint) {
    forward_ipv6();
    let root = PrivateRoot::new();
    let record = format!("network/{}.ipv6", root.bridge().bridge());
    let record = root.state().join(record);
    let bridge = "[network.bridge]\ndriver = \"native\"\nipv6 = true\n";
    let mut daemon = Daemon::prepare(&root, bridge);
    daemon.kill_at(&[(step, 1)]);
    daemon.spawn();
    daemon.wait_killed();
    let noted = fs::read_to_string(&record).expect("it is on record");
    assert!(noted.ends_with("/64\n"), "{step:?}: {noted}");
    // A daemon that decides afresh would come to the same range.
    let mut octets = [0; 16];
    octets[..8].copy_from_slice(&random_bytes::<8>());
    octets[0] = 0xfd;
    let other = format!("{}/64", Ipv6Addr::from(octets));
    fs::write(&record, format!("{other}\n")).expect("root may");
    daemon.restart();
    let again = fs::read_to_string(&record).expect("it is on record still");
    assert_eq!(again, format!("{other}\n"), "{step:?}");
    let mut status = Command::new(daemon.program());
    let socket = root.run().join("admin.sock");
    let status = run(status.args(["status", "--verbose", "--socket"]).arg(socket));
    assert!(status.contains(&other), "{step:?}: {status}");
    switchyard_tests::leak_scan::LeakScan::of(&root).assert_clean();
}
