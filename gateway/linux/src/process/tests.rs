//! Processes are identified, trusted and signalled correctly.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use super::*;

/// A process that is killed when this is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    fn id(&self) -> ProcessId {
        ProcessId::of(i32::try_from(self.0.id()).unwrap()).unwrap()
    }

    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sleep() -> Command {
    let mut command = Command::new("sleep");
    command.arg("1000");
    command
}

#[test]
fn exited_process_is_not_alive_even_unreaped() {
    let mut child = Sleeper::start(&mut sleep());
    let id = child.id();
    assert!(id.is_alive());
    assert_eq!(id.to_string().parse::<ProcessId>().unwrap(), id);
    let before = ProcessId {
        started: id.started.wrapping_sub(1),
        ..id
    };
    assert!(!before.is_alive());
    child.end();
    assert!(!id.is_alive());
}

#[test]
fn signal_reaches_only_the_original_process_of_a_pid() {
    let mut child = Sleeper::start(&mut sleep());
    let id = child.id();
    let before = ProcessId {
        started: id.started.wrapping_sub(1),
        ..id
    };
    before.signal(Signal::SIGKILL).unwrap();
    assert!(
        child.0.try_wait().unwrap().is_none() && id.is_alive(),
        "a stranger was killed"
    );
    id.signal(Signal::SIGKILL).unwrap();
    child.0.wait().unwrap();
    id.signal(Signal::SIGKILL).unwrap();
}

#[test]
fn process_name_with_brackets_does_not_shift_stat_fields() {
    assert_eq!(stat_fields("7 (a) b (c)) S 1 2"), ["S", "1", "2"]);
}

#[test]
fn exit_code_follows_shell_convention() {
    let code = |state: &str, status: i32| {
        let text = format!("7 (a) b) {state} 5 {} {status}", ["0"; 47].join(" "));
        Stat::parse(7, &text).unwrap().code()
    };
    assert_eq!(code("Z", 9), Some(137));
    assert_eq!(code("Z", 0x700), Some(7));
    assert_eq!(code("Z", 0x8b), Some(139), "with a core");
    assert_eq!(code("S", 0), None);
    assert_eq!(Stat::parse(7, ""), None);
}

#[test]
fn only_root_of_the_host_namespace_is_trusted() {
    let is_root =
        |uid: &str, pid: &str| is_root_here(&format!("Name:\tx\nUid:\t{uid}\nNSpid:\t{pid}\n"));
    assert!(is_root("0\t0\t0\t0", "7"));
    assert!(!is_root("0\t0\t0\t0", "7\t1"), "a container's");
    assert!(!is_root("100000\t100000\t100000\t100000", "7"));
    assert!(
        !is_root("1000\t0\t0\t0", "7"),
        "a program that is set to run as root"
    );
    assert!(
        !is_root_here("Uid:\t0\t0\t0\t0\n"),
        "nothing is known of its namespace"
    );
    assert!(!is_root_here(""));
}

/// Needs to run as root, like all tests of real processes.
#[test]
fn processes_of_other_users_or_roots_are_not_own() {
    let own = Sleeper::start(&mut sleep());
    assert!(is_own_root(own.id().pid));
    let other = Sleeper::start(sleep().uid(65_534));
    assert!(!is_own_root(other.id().pid));
    let inside = Sleeper::start(Command::new("unshare").args(["--pid", "--fork", "sleep", "1000"]));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let child = loop {
        let child = all()
            .into_iter()
            .find(|stat| stat.parent == inside.id().pid && !stat.ended);
        if let Some(child) = child {
            break child.id;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "unshare starts no process"
        );
        std::thread::yield_now();
    };
    assert!(!is_own_root(child.pid));
    child.signal(Signal::SIGKILL).unwrap();

    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/proc/self/fd", dir.path().join("x")).unwrap();
    assert!(!is_same(dir.path(), Path::new("/")));
    assert!(is_same(Path::new("/proc/self/root"), Path::new("/")));
    assert!(!is_same(&dir.path().join("none"), &dir.path().join("none")));
}

#[test]
fn another_mount_namespace_is_trusted_only_with_all_capabilities() {
    // As the shims of a daemon whose unit has PrivateTmp, of which each start has a namespace of its own.
    let private = in_another_mount_namespace(&["sleep", "1000"]);
    assert!(is_own_root(private.id().pid));
    // As a container that shares the node's pid namespace, and has changed its root to a mount of the node's.
    let contained =
        in_another_mount_namespace(&["setpriv", "--bounding-set=-sys_admin", "sleep", "1000"]);
    assert!(!is_own_root(contained.id().pid));
    // Without the namespace it is one of the node's services, which need not have all capabilities.
    let mut service = Command::new("setpriv");
    let service = Sleeper::start(service.args(["--bounding-set=-sys_admin", "sleep", "1000"]));
    wait_for_sleep(&service);
    assert!(is_own_root(service.id().pid));
}

#[test]
fn capabilities_are_those_of_the_bounding_set() {
    let has = |theirs: &str| {
        has_capabilities_of(
            theirs,
            "CapEff:\t0000000000000000\nCapBnd:\t00000000000000f0\n",
        )
    };
    assert!(has("CapBnd:\t00000000000000f0\n") && has("CapBnd:\t00000000000001f8\n"));
    assert!(!has(
        "CapEff:\t00000000000000f0\nCapBnd:\t00000000000000e0\n"
    ));
    assert!(!has("") && !has("CapBnd:\tnone\n"), "nothing is known");
}

/// A program that `unshare` has replaced itself by, so that the process is the one that was started.
fn in_another_mount_namespace(command: &[&str]) -> Sleeper {
    let sleeper = Sleeper::start(Command::new("unshare").arg("--mount").args(command));
    wait_for_sleep(&sleeper);
    sleeper
}

/// Waits until the programs that only prepare have become `sleep`.
fn wait_for_sleep(sleeper: &Sleeper) {
    let name = format!("/proc/{}/comm", sleeper.id().pid);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while fs::read_to_string(&name).unwrap().trim_end() != "sleep" {
        assert!(
            std::time::Instant::now() < deadline,
            "{name} is never sleep"
        );
        std::thread::yield_now();
    }
}

#[test]
fn children_are_those_of_all_threads_where_the_kernel_lists_them() {
    let cases: [(&str, &[i32]); 4] = [
        ("", &[]),
        ("7 ", &[7]),
        ("7 8 4194304 ", &[7, 8, 4_194_304]),
        ("7 x 9", &[7, 9]),
    ];
    for (list, expected) in cases {
        assert_eq!(parse_children(list), expected, "{list:?}");
    }
    let of_thread = std::thread::spawn(|| Sleeper::start(&mut sleep()));
    let own = Sleeper::start(&mut sleep());
    let found = children(std::process::id().cast_signed());
    assert_eq!(found.contains(&own.id().pid), lists_children());
    let mut of_thread = of_thread.join().unwrap();
    let pid = of_thread.id().pid;
    let is_child = || children(std::process::id().cast_signed()).contains(&pid);
    // The thread may be about to end, and its child to become that of another one.
    while lists_children() && !is_child() {
        std::thread::yield_now();
    }
    of_thread.end();
    assert!(!is_child());
    assert!(children(pid).is_empty(), "it is gone");
}
