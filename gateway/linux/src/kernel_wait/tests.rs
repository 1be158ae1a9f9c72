//! The table of system calls, and the shape of what the kernel shows of a wait.

use std::os::fd::AsRawFd;
use std::process::{Child, Command};
use std::time::Duration;

use super::*;

/// A program that sleeps, until this is dropped.
struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn call(number: c_long, first_argument: u64) -> SystemCall {
    SystemCall {
        number,
        first_argument,
    }
}

#[test]
fn process_that_sleeps_is_described() {
    let sleeper = Sleeper(Command::new("sleep").arg("1000").spawn().unwrap());
    let pid = sleeper.0.id();
    let found = (0..1000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(5));
        let sleeps = |wait: &KernelWait| wait.name == "sleep" && wait.state == 'S';
        KernelWait::of(pid).filter(|wait| sleeps(wait) && wait.channel.is_some())
    });
    let wait = found.expect("it sleeps in a function of the kernel");
    assert_eq!((wait.pid, wait.thread, wait.state), (pid, pid, 'S'));
    assert!(!wait.is_uninterruptible());
    // clock_nanosleep is none of the calls with a name.
    let call = wait.system_call().expect("it waits in a call");
    assert_eq!(call.to_string(), libc::SYS_clock_nanosleep.to_string());
    drop(sleeper);
    assert_eq!(KernelWait::of(pid), None);
}

#[test]
fn mount_of_the_file_of_a_call_is_found_without_opening_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file (deleted)");
    let file = File::create(&path).unwrap();
    let table = MountTable::of_this_process().unwrap();
    let expected = table.containing(&path.canonicalize().unwrap()).unwrap();
    // Other tests' threads come and go.
    let wait = KernelWait {
        thread: std::process::id(),
        ..KernelWait::of(std::process::id()).unwrap()
    };
    let descriptor = u64::try_from(file.as_raw_fd()).unwrap();
    fs::remove_file(&path).unwrap();
    let found = wait.mount_of(call(libc::SYS_write, descriptor));
    assert_eq!(found, UsedMount::of(&expected));
    if let Some(found) = found {
        let all = wait.mounts(false);
        assert!(all.iter().any(|mount| mount.device == found.device));
        let own = found.own_point().expect("this process has the mount");
        await_answer(&own);
    }
    // The first argument of these is no descriptor of a file.
    assert_eq!(wait.mount_of(call(libc::SYS_munmap, descriptor)), None);
    assert_eq!(wait.mount_of(call(libc::SYS_write, 1 << 40)), None);
}

#[test]
fn calls_are_parsed_as_the_kernel_writes_them() {
    let write = format!(
        "{} 0x3 0x7ffc52b4 0x10 0x0 0x0 0x0 0x7ffc 0x7f90\n",
        libc::SYS_write
    );
    let parsed = SystemCall::parse(&write).unwrap();
    assert_eq!(parsed, call(libc::SYS_write, 3));
    assert_eq!(parsed.to_string(), "write");
    for none in ["running\n", "-1 0x7ffc 0x7f90\n", "", "1", "1 3", "x 0x3"] {
        assert_eq!(SystemCall::parse(none), None, "{none:?}");
    }
    assert_eq!(call(99_999, 0).to_string(), "99999");
}

#[test]
fn threads_that_no_signal_wakes_come_first_and_those_that_have_ended_last() {
    let of = |states: &str| states.chars().min_by_key(|state| rank(*state));
    assert_eq!(of("ZSDS"), Some('D'));
    assert_eq!(of("ZS"), Some('S'));
    assert_eq!(of("Z"), Some('Z'));
    assert_eq!(state("7 (a) b (c) D 1 7 7 0"), Some('D'));
    assert_eq!(state("7 (a"), None);
    assert_eq!(
        channel("nfs_wait_bit_killable").unwrap(),
        "nfs_wait_bit_killable"
    );
    assert_eq!((channel("0"), channel("")), (None, None));
}

#[test]
fn mounts_without_a_device_or_server_are_left_out_and_names_are_printable() {
    let table = MountTable::from_text(
        "1 0 0:1 / / rw - overlay overlay rw\n\
         2 1 0:2 / /proc rw - proc proc rw\n\
         3 1 0:3 / /da\\012ta rw - nfs4 nas:/export rw\n\
         4 1 7:1 / /disk rw - ext4 /dev/loop1 rw\n\
         5 1 0:4 / /s3 rw - fuse.s3fs bucket rw\n",
    );
    let mounts: Vec<_> = table
        .iter()
        .filter_map(|mount| UsedMount::of(&mount))
        .collect();
    let points: Vec<_> = mounts.iter().map(|mount| mount.point.as_str()).collect();
    assert_eq!(points, ["/", "/da?ta", "/disk", "/s3"]);
    let remote: Vec<_> = mounts.iter().map(UsedMount::is_remote).collect();
    assert_eq!(remote, [false, true, false, true]);
    assert_eq!(used(&table, Path::new("socket:[17]")), None);
    assert_eq!(used(&table, Path::new("/proc/1/mem")), None);
    let file = used(&table, Path::new("/disk/a (deleted)")).unwrap();
    assert_eq!(
        (file.device.as_str(), file.source.as_str()),
        ("7:1", "/dev/loop1")
    );
}
