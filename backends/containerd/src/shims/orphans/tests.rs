//! Tests of which processes count as shims, which of those are orphans, and how orphans are terminated.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use switchyard_linux::process::ProcessId;
use tokio::sync::Notify;

use super::*;
use crate::shims::processes::*;

const AA: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn stat(pid: i32, parent: i32) -> Stat {
    Stat {
        id: ProcessId { pid, started: 1 },
        parent,
        ended: false,
        status: None,
    }
}

fn said(pid: i32, command: &str) -> RootProcess {
    let command = command.split(' ').map(str::to_owned).collect();
    RootProcess {
        process: stat(pid, 1).id,
        command,
        cwd_deleted: true,
    }
}

fn shim(pid: i32, id: &str, address: &str) -> RootProcess {
    said(
        pid,
        &format!("/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id {id} -address {address}"),
    )
}

fn known(id: &str, parent: Option<i32>) -> ListedTask {
    ListedTask {
        id: id.to_owned(),
        parent,
    }
}

/// The pids of the orphans, and whether the scan is conclusive.
fn judge(said: &[RootProcess], tasks: &[ListedTask], busy: &[&str]) -> (Vec<i32>, bool) {
    let shims = own_shims(
        &[stat(10, 1), stat(11, 10)],
        said,
        Path::new("/run/c.sock"),
        "k8s.io",
    );
    let found = orphan_shims(
        shims,
        tasks,
        &busy.iter().map(ToString::to_string).collect(),
    );
    (
        found
            .shims
            .iter()
            .map(|orphan| orphan.process.pid)
            .collect(),
        found.conclusive,
    )
}

#[track_caller]
fn check(said: &[RootProcess], tasks: &[ListedTask], expected: &[i32]) {
    assert_eq!(judge(said, tasks, &[]), (expected.to_vec(), true));
}

#[test]
fn a_shim_is_forgotten_if_neither_its_id_nor_a_child_is_a_known_task() {
    let all = [shim(10, AA, "/run/c.sock"), said(11, "sleep 5")];
    check(&all, &[], &[10]);
    check(&all, &[known(AA, None)], &[]);
    check(&all, &[known("other", Some(10))], &[]);
    check(&all, &[known("other", Some(1))], &[10]);
}

#[test]
fn none_is_judged_for_sure_while_it_is_not_seen_who_serves_a_task() {
    let of_pod = [shim(10, AA, "/run/c.sock")];
    // The task has exited, or its shim is slow: a shim that was started for another container may serve it.
    assert_eq!(
        judge(&of_pod, &[known("ended", None)], &[]),
        (vec![10], false)
    );
    // The same holds for a task whose create is in progress.
    assert_eq!(judge(&of_pod, &[], &["made"]), (vec![10], false));
    assert_eq!(
        judge(&of_pod, &[known("made", Some(12))], &["made"]),
        (vec![10], true)
    );
    let both = [
        shim(10, AA, "/run/c.sock"),
        shim(12, &AA.replace('a', "b"), "/run/c.sock"),
    ];
    let other = AA.replace('a', "b");
    assert_eq!(judge(&both, &[known(&other, None)], &[]), (vec![10], true));
    assert_eq!(judge(&both, &[], &[&other]), (vec![10, 12], true));
}

#[test]
fn a_shim_of_an_orphan_task_is_an_orphan_at_once_only_before_requests_are_served() {
    let facts = OrphanFacts {
        time: ScanTime::AtStart,
        conclusive: true,
        managed: true,
        bundle_deleted: false,
        serves_orphan: true,
        again: false,
        busy: false,
    };
    assert!(is_certain(facts));
    for unsure in [
        // It may have been removed while the scan looked.
        OrphanFacts {
            time: ScanTime::Serving,
            ..facts
        },
        // A predecessor may still be creating a task in it.
        OrphanFacts {
            busy: true,
            ..facts
        },
        OrphanFacts {
            conclusive: false,
            ..facts
        },
        OrphanFacts {
            managed: false,
            ..facts
        },
        // Nothing but one scan speaks for it.
        OrphanFacts {
            serves_orphan: false,
            ..facts
        },
    ] {
        assert!(!is_certain(unsure), "{unsure:?}");
    }
    let again = OrphanFacts {
        time: ScanTime::Serving,
        again: true,
        ..facts
    };
    assert!(
        is_certain(again)
            && is_certain(OrphanFacts {
                serves_orphan: false,
                ..again
            })
    );
    assert!(!is_certain(OrphanFacts {
        busy: true,
        ..again
    }));
    assert!(is_certain(OrphanFacts {
        bundle_deleted: true,
        managed: false,
        ..facts
    }));
}

#[test]
fn tasks_of_a_shim_are_those_it_was_started_for_and_those_it_is_the_parent_of() {
    let shims = own_shims(
        &[],
        &[shim(10, AA, "/run/c.sock")],
        Path::new("/run/c.sock"),
        "k8s.io",
    );
    let tasks = [
        known(AA, None),
        known("other", Some(10)),
        known("elsewhere", Some(12)),
    ];
    assert_eq!(served(&shims[0], &tasks), [AA, "other"]);
}

#[test]
fn the_shims_of_others_and_what_is_no_shim_are_left_alone() {
    let other = shim(10, AA, "/run/containerd/containerd.sock");
    let word = |words: &str| format!("{words} -id {AA} -address /run/c.sock");
    let foreign = said(
        12,
        &word("/usr/bin/containerd-shim-runc-v2 -namespace moby"),
    );
    let helper = said(
        13,
        &format!(
            "{} delete",
            word("/usr/bin/containerd-shim-runc-v2 -namespace k8s.io")
        ),
    );
    let editor = said(14, &word("vi -namespace k8s.io"));
    check(&[other, foreign, helper, editor], &[], &[]);
}

#[test]
fn a_shim_for_what_is_no_container_of_ours_is_none_of_ours() {
    for id in ["/etc", "../../..", "nginx", "..", &AA[1..]] {
        check(&[shim(10, id, "/run/c.sock")], &[], &[]);
    }
}

/// A process that calls itself a shim. It is killed when this is dropped.
struct Pretender(Child);

impl Pretender {
    fn start(uid: u32, dir: &Path) -> Self {
        let mut command = Command::new("sh");
        let words = ["-namespace", "k8s.io", "-id", AA, "-address", "/run/c.sock"];
        command
            .args(["-c", "read nothing"])
            .args(words)
            .arg0("containerd-shim-runc-v2");
        Self(
            command
                .uid(uid)
                .current_dir(dir)
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap(),
        )
    }

    /// The shims that the scan takes this process for.
    fn taken_for(&self) -> Vec<ShimProcess> {
        let process = ProcessId::of(i32::try_from(self.0.id()).unwrap()).unwrap();
        let said: Vec<_> = read_root_process(process).into_iter().collect();
        own_shims(&[], &said, Path::new("/run/c.sock"), "k8s.io")
    }
}

impl Drop for Pretender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_users_process_is_not_believed_and_a_name_makes_no_directory_deleted() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(
        dir.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let named = dir.path().join("named (deleted)");
    let gone = dir.path().join("gone");
    for path in [&named, &gone] {
        fs::create_dir(path).unwrap();
    }
    assert_eq!(Pretender::start(65_534, &gone).taken_for(), []);
    let bundle_deleted = |pretender: &Pretender| match &pretender.taken_for()[..] {
        [shim] => shim.bundle_deleted,
        others => panic!("{others:?}"),
    };
    let in_named = Pretender::start(0, &named);
    let in_gone = Pretender::start(0, &gone);
    assert!(!bundle_deleted(&in_named) && !bundle_deleted(&in_gone));
    fs::remove_dir(&gone).unwrap();
    assert!(!bundle_deleted(&in_named) && bundle_deleted(&in_gone));
}

#[test]
fn a_number_that_another_process_bears_by_now_is_not_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut stranger = Pretender::start(0, dir.path());
    let pid = i32::try_from(stranger.0.id()).unwrap();
    let ended = ProcessId {
        pid,
        started: ProcessId::of(pid).unwrap().started.wrapping_sub(1),
    };
    let shim = ShimProcess {
        process: ended,
        id: AA.parse().unwrap(),
        children: vec![ended],
        bundle_deleted: true,
    };
    terminate(&shim).unwrap();
    shim.kill().unwrap();
    assert!(
        stranger.0.try_wait().unwrap().is_none(),
        "a stranger was killed"
    );
}

#[tokio::test]
async fn shims_that_take_long_to_end_do_so_at_the_same_time() {
    const SHIMS: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    // Each ends when all have got SIGTERM; one after the other, they would be killed.
    let told = (0..SHIMS)
        .map(|other| format!("[ -e told-{other} ]"))
        .collect::<Vec<_>>()
        .join(" && ");
    let mut processes: Vec<_> = (0..SHIMS)
        .map(|number| {
            let script = format!(
                "trap ': > told-{number}' TERM; : > ready-{number}; until {told}; do :; done; exit 7"
            );
            Command::new("sh").args(["-c", &script]).current_dir(dir.path()).spawn().unwrap()
        })
        .collect();
    while !(0..SHIMS).all(|number| dir.path().join(format!("ready-{number}")).exists()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let shims = processes.iter().map(|process| ShimProcess {
        process: ProcessId::of(i32::try_from(process.id()).unwrap()).unwrap(),
        id: AA.parse().unwrap(),
        children: Vec::new(),
        bundle_deleted: true,
    });
    let end = |shim| async move { blocking(move || terminate(&shim)).await.map(drop) };
    let tracker = TaskTracker::new();
    let ended: Vec<_> = end_all(&tracker, shims.collect(), end).collect().await;
    assert!(
        ended.len() == SHIMS && ended.iter().all(|(_, end)| end.is_ok()),
        "{ended:?}"
    );
    for process in &mut processes {
        assert_eq!(process.wait().unwrap().code(), Some(7), "it was killed");
    }
}

#[tokio::test]
async fn end_that_has_begun_goes_on_when_its_scan_is_dropped() {
    let shim = ShimProcess {
        process: ProcessId {
            pid: 10,
            started: 1,
        },
        id: AA.parse().unwrap(),
        children: Vec::new(),
        bundle_deleted: true,
    };
    let begun = Arc::new(Notify::new());
    let go_on = Arc::new(Notify::new());
    let ended = Arc::new(AtomicBool::new(false));
    let end = |_| {
        let (begun, go_on, ended) = (Arc::clone(&begun), Arc::clone(&go_on), Arc::clone(&ended));
        async move {
            begun.notify_one();
            go_on.notified().await;
            ended.store(true, Ordering::Release);
            Ok(())
        }
    };
    let tracker = TaskTracker::new();
    let mut ends = Box::pin(end_all(&tracker, vec![shim], end));
    tokio::select! {
        _ = ends.next() => panic!("it waits"),
        () = begun.notified() => {}
    }
    drop(ends);
    go_on.notify_one();
    tracker.close();
    tracker.wait().await;
    assert!(ended.load(Ordering::Acquire), "the end was given up");
}

#[test]
fn a_shim_that_has_begun_something_since_it_was_looked_at_is_left_alone() {
    let mut parent = Command::new("sh")
        .args(["-c", "sleep 1000; :"])
        .spawn()
        .unwrap();
    let process = ProcessId::of(i32::try_from(parent.id()).unwrap()).unwrap();
    let child = || {
        switchyard_linux::process::all()
            .into_iter()
            .find(|stat| stat.parent == process.pid)
    };
    assert!((0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        child().is_some()
    }));
    let shim = ShimProcess {
        process,
        id: AA.parse().unwrap(),
        children: Vec::new(),
        bundle_deleted: true,
    };
    assert!(
        shim.has_started_since_scan(),
        "so that a shim that does not answer is not killed either"
    );
    assert_eq!(
        terminate(&shim).unwrap_err().kind(),
        switchyard_core::ErrorKind::Unavailable
    );
    assert!(process.is_alive() && child().is_some());
    let shim = ShimProcess {
        children: vec![child().unwrap().id],
        ..shim
    };
    assert!(!shim.has_started_since_scan());
    terminate(&shim).unwrap();
    parent.wait().unwrap();
    assert!(!shim.has_started_since_scan(), "it is gone");
}
