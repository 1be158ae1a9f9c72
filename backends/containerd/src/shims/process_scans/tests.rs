//! Tests of who shares a scan, and of what is kept of one.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use futures::poll;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::*;

const SOCKET: &str = "/run/c.sock";

/// Process groups that are killed when the test ends.
struct ProcessGroups(Vec<Child>);

impl Drop for ProcessGroups {
    fn drop(&mut self) {
        for leader in &mut self.0 {
            killpg(Pid::from_raw(leader.id().cast_signed()), Signal::SIGKILL).unwrap();
            leader.wait().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_who_ask_during_a_scan_share_the_next_one() {
    let scans: SharedScans<u32> = SharedScans::default();
    assert_eq!(scans.latest(), None);
    let runs = Arc::new(AtomicU32::new(0));
    let count = || {
        let runs = Arc::clone(&runs);
        move || runs.fetch_add(1, Ordering::Relaxed) + 1
    };
    let (begun, begins) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let counted = count();
    let mut first = Box::pin(scans.next(move || {
        begun.send(()).unwrap();
        ends.recv().unwrap();
        counted()
    }));
    assert!(poll!(&mut first).is_pending());
    begins.recv().unwrap();
    let mut others: Vec<_> = (0..20).map(|_| Box::pin(scans.next(count()))).collect();
    for other in &mut others {
        assert!(poll!(other).is_pending());
    }
    // One that gives up takes the scan from nobody.
    drop(others.remove(0));
    end.send(()).unwrap();
    assert_eq!(*first.await.unwrap(), 1);
    assert_eq!(scans.latest().as_deref(), Some(&1));
    for other in others {
        assert_eq!(*other.await.unwrap(), 2);
    }
    // What was there before this call is not what it asks for.
    assert_eq!(*scans.next(count()).await.unwrap(), 3);
    assert_eq!(runs.load(Ordering::Relaxed), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn scan_whose_caller_has_gone_ends_before_the_next_one_begins() {
    let scans = SharedScans::default();
    let (begun, begins) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    {
        let mut gone = Box::pin(scans.next(move || {
            begun.send(()).unwrap();
            ends.recv().unwrap();
            "first"
        }));
        assert!(poll!(&mut gone).is_pending());
        begins.recv().unwrap();
    }
    let mut next = Box::pin(scans.next(|| "second"));
    assert!(poll!(&mut next).is_pending());
    end.send(()).unwrap();
    assert_eq!(*next.await.unwrap(), "second");
}

#[tokio::test]
async fn nobody_scans_during_the_pause_after_a_long_scan() {
    let scans: SharedScans<()> = SharedScans::default();
    let long = std::time::Duration::from_secs(60);
    scans.turn.lock().await.ran(long, Instant::now());
    let mut waits = Box::pin(scans.next(|| unreachable!("there is a pause")));
    for _ in 0..3 {
        assert!(poll!(&mut waits).is_pending());
        tokio::task::yield_now().await;
    }
}

fn process(pid: i32, parent: i32, command: &str) -> (Stat, RootProcess) {
    let id = ProcessId { pid, started: 1 };
    let stat = Stat {
        id,
        parent,
        ended: false,
        status: None,
    };
    let root = RootProcess {
        process: id,
        command: command.split(' ').map(str::to_owned).collect(),
        cwd_deleted: false,
    };
    (stat, root)
}

#[test]
fn shims_of_this_containerd_are_kept_with_their_children_and_nothing_else() {
    let shim = |namespace: &str, socket: &str, rest: &str| {
        format!(
            "/usr/bin/containerd-shim-runc-v2 -namespace {namespace} -id a -address {socket}{rest}"
        )
    };
    let processes = [
        process(1, 0, "init"),
        process(10, 1, &shim("n", SOCKET, "")),
        process(11, 10, "sleep 1000"),
        process(12, 11, "a process of the container"),
        process(20, 1, &shim("n", SOCKET, " delete")),
        process(21, 20, "runc delete a"),
        process(30, 1, &shim("moby", SOCKET, "")),
        process(31, 30, "sleep 1000"),
        process(40, 1, &shim("n", "/run/other.sock", "")),
        process(50, 1, "containerd"),
    ];
    let (all, mut root_processes): (Vec<_>, Vec<_>) = processes.into_iter().unzip();
    // A process of a container: its command line is not believed.
    root_processes.retain(|root| root.process.pid != 11);
    let found = ShimScan {
        all,
        root_processes,
    };
    let found = found.of_shims(Path::new(SOCKET), "n");
    let pids: Vec<i32> = found.all.iter().map(|stat| stat.id.pid).collect();
    assert_eq!(pids, [10, 11, 20, 21]);
    let believed = found.root_processes.iter().map(|root| root.process.pid);
    assert_eq!(believed.collect::<Vec<_>>(), [10, 20, 21]);
}

#[tokio::test(flavor = "multi_thread")]
async fn few_scans_of_many_processes_serve_all_who_ask() {
    let mut groups = ProcessGroups(Vec::new());
    for _ in 0..10 {
        let mut command = Command::new("sh");
        command.args(["-c", "for i in $(seq 50); do sleep 1000 & done; wait"]);
        groups.0.push(command.process_group(0).spawn().unwrap());
    }
    let shells = groups.0.iter().map(|shell| shell.id().cast_signed());
    let shells: HashSet<i32> = shells.collect();
    while children_of(&shells) < 500 {
        tokio::task::yield_now().await;
    }
    let scans = Arc::new(SharedScans::default());
    let runs = Arc::new(AtomicU32::new(0));
    let asked = (0..40).map(|_| {
        let scans = Arc::clone(&scans);
        let runs = Arc::clone(&runs);
        let shells = shells.clone();
        async move {
            let scan = move || {
                runs.fetch_add(1, Ordering::Relaxed);
                children_of(&shells)
            };
            *scans.next(scan).await.unwrap()
        }
    });
    let found = futures::future::join_all(asked).await;
    assert_eq!(found, [500; 40]);
    // The first may have begun before the others asked.
    assert!(runs.load(Ordering::Relaxed) <= 2);
    let none = ShimScan::take(Path::new(SOCKET), "no such namespace");
    assert_eq!(none, ShimScan::default(), "none of them is a shim of ours");
}

fn children_of(parents: &HashSet<i32>) -> usize {
    let all = process::all().into_iter();
    all.filter(|stat| parents.contains(&stat.parent)).count()
}

#[test]
fn look_at_children_shows_what_a_scan_of_all_processes_shows() {
    // A helper of a shim as containerd runs one: this process is its parent.
    let mut helper = Command::new("sh");
    helper
        .arg0("/usr/bin/containerd-shim-runc-v2")
        .args(["-c", "read line", "sh", "-namespace", "look"])
        .args(["-address", SOCKET, "-id", "a", "delete"])
        .stdin(Stdio::piped())
        .process_group(0);
    let _groups = ProcessGroups(vec![helper.spawn().unwrap()]);
    let containerd = ProcessId::of(std::process::id().cast_signed()).unwrap();
    let full = ShimScan::take(Path::new(SOCKET), "look");
    let again = ShimScan::default().again(containerd, Path::new(SOCKET), "look");
    // Command lines are believed of root alone, and not every kernel lists children.
    assert_eq!(again, process::lists_children().then_some(full));
    let gone = ProcessId {
        started: containerd.started + 1,
        ..containerd
    };
    let none = ShimScan::default().again(gone, Path::new(SOCKET), "look");
    assert_eq!(none, None, "a new containerd has other children");
}
