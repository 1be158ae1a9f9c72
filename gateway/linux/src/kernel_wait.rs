//! The wait of a process in the kernel, and the mounts that it uses, as `/proc` shows them (proc(5)).
//!
//! No file system of the process is asked: `stat`, `comm`, `wchan` and the list of mounts are values of the kernel, and the
//! target of a link below `/proc/<pid>/fd` is a name that the kernel has in memory. To follow such a link is another
//! matter: a stat or an open of its target may ask a server, also with `O_PATH` or `AT_STATX_DONT_SYNC`, because the path
//! is looked up or revalidated first; and an answer from a cache says nothing of the server. [`await_answer`] alone asks.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use nix::libc::{self, c_long};
use nix::sys::statvfs::statvfs;

use crate::mounts::{Mount, MountTable};
use crate::text::beginning;

/// The most bytes that are read of a file, except of the list of mounts, whose length the kernel limits.
const TEXT_MAX: u64 = 4096;

/// The most threads of a process that are looked at.
const THREADS_MAX: usize = 4096;

/// The most descriptors of a process whose files are looked up.
const DESCRIPTORS_MAX: usize = 1024;

/// The most mounts of a process.
const MOUNTS_MAX: usize = 32;

/// The most characters of a name that others choose.
const NAME_MAX: usize = 256;

/// File systems without a device or server that could fail to answer. An automount point would be mounted by a question.
const PSEUDO: [&str; 23] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "ramfs",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tmpfs",
    "tracefs",
];

/// Types of file systems with a server, beside those that begin with `fuse.`.
const REMOTE: [&str; 12] = [
    "9p", "afs", "ceph", "cifs", "fuse", "gpfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs",
    "wekafs",
];

/// System calls that may wait for a file system, or for the end of something else, with their names; `true` if the first
/// argument is a descriptor.
const CALLS: &[(c_long, &str, bool)] = &[
    (libc::SYS_close, "close", true),
    (libc::SYS_copy_file_range, "copy_file_range", true),
    (libc::SYS_execve, "execve", false),
    (libc::SYS_exit, "exit", false),
    (libc::SYS_exit_group, "exit_group", false),
    (libc::SYS_faccessat, "faccessat", false),
    (libc::SYS_fallocate, "fallocate", true),
    (libc::SYS_fchmod, "fchmod", true),
    (libc::SYS_fchown, "fchown", true),
    (libc::SYS_fcntl, "fcntl", true),
    (libc::SYS_fdatasync, "fdatasync", true),
    (libc::SYS_flock, "flock", true),
    (libc::SYS_fstat, "fstat", true),
    (libc::SYS_fstatfs, "fstatfs", true),
    (libc::SYS_fsync, "fsync", true),
    (libc::SYS_ftruncate, "ftruncate", true),
    (libc::SYS_futex, "futex", false),
    (libc::SYS_getdents64, "getdents64", true),
    (libc::SYS_io_uring_enter, "io_uring_enter", false),
    (libc::SYS_ioctl, "ioctl", true),
    (libc::SYS_linkat, "linkat", false),
    (libc::SYS_lseek, "lseek", true),
    (libc::SYS_mkdirat, "mkdirat", false),
    (libc::SYS_mmap, "mmap", false),
    (libc::SYS_mount, "mount", false),
    (libc::SYS_msync, "msync", false),
    (libc::SYS_munmap, "munmap", false),
    (libc::SYS_newfstatat, "newfstatat", false),
    (libc::SYS_openat, "openat", false),
    (libc::SYS_openat2, "openat2", false),
    (libc::SYS_pread64, "pread64", true),
    (libc::SYS_preadv, "preadv", true),
    (libc::SYS_pwrite64, "pwrite64", true),
    (libc::SYS_pwritev, "pwritev", true),
    (libc::SYS_read, "read", true),
    (libc::SYS_readlinkat, "readlinkat", false),
    (libc::SYS_readv, "readv", true),
    (libc::SYS_renameat2, "renameat2", false),
    (libc::SYS_sendfile, "sendfile", true),
    (libc::SYS_statfs, "statfs", false),
    (libc::SYS_statx, "statx", false),
    (libc::SYS_sync, "sync", false),
    (libc::SYS_syncfs, "syncfs", true),
    (libc::SYS_truncate, "truncate", false),
    (libc::SYS_umount2, "umount2", false),
    (libc::SYS_unlinkat, "unlinkat", false),
    (libc::SYS_wait4, "wait4", false),
    (libc::SYS_write, "write", true),
    (libc::SYS_writev, "writev", true),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_access, "access", false),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_lstat, "lstat", false),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, "mkdir", false),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, "open", false),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rename, "rename", false),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rmdir, "rmdir", false),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_stat, "stat", false),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_unlink, "unlink", false),
];

/// A process, and the wait of one of its threads: of one that no signal wakes, if it has such a thread. The main thread of a
/// process that was killed may have ended, while another one keeps the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelWait {
    /// The process id.
    pub pid: u32,
    /// The name of its program, which it may have changed.
    pub name: String,
    /// The thread.
    pub thread: u32,
    /// The state of the thread, in the letter of `/proc/<pid>/stat`.
    pub state: char,
    /// The function of the kernel in which it waits; `None` if it does not wait, or the kernel does not say.
    pub channel: Option<String>,
}

/// A system call in which a thread waits. Of a 32-bit program the number is of another table than that of the names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemCall {
    number: c_long,
    first_argument: u64,
}

/// A mount that a process uses. Containers choose mount points: the texts are short and printable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedMount {
    /// The device number of its file system.
    pub device: String,
    /// The mount point, as the process sees it.
    pub point: String,
    /// The type of the file system.
    pub fs_type: String,
    /// The device or server.
    pub source: String,
}

// === impl KernelWait ===

impl KernelWait {
    /// The wait of the process that has this id now; `None` if there is none. It does not block.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let threads = numbers(&process.join("task"), THREADS_MAX).into_iter();
        let states = threads
            .filter_map(|thread| Some((thread, state(&text(&thread_dir(pid, thread), "stat")?)?)));
        let (thread, state) = states.min_by_key(|(_, state)| rank(*state))?;
        Some(Self {
            pid,
            name: printable(text(&process, "comm")?.trim_end()),
            thread,
            state,
            channel: text(&thread_dir(pid, thread), "wchan").and_then(|text| channel(&text)),
        })
    }

    /// Returns whether no signal ends the wait; SIGKILL ends some of these.
    #[must_use]
    pub const fn is_uninterruptible(&self) -> bool {
        self.state == 'D'
    }

    /// The system call in which the thread waits; `None` if it runs, waits outside of one, or has ended. It may block: before
    /// Linux 5.7 the kernel takes a lock for it that a process holds while it reads its program from a file system.
    #[must_use]
    pub fn system_call(&self) -> Option<SystemCall> {
        SystemCall::parse(&text(&self.dir(), "syscall")?)
    }

    /// The mount of the file that a call of this thread is about; `None` if that is no file on a device or server, or not known.
    #[must_use]
    pub fn mount_of(&self, call: SystemCall) -> Option<UsedMount> {
        let descriptor = call.descriptor()?.to_string();
        let file = fs::read_link(self.dir().join("fd").join(descriptor)).ok()?;
        used(&MountTable::of_process(self.thread).ok()?, &file)
    }

    /// The mounts that the process uses, one for each device or server: first those of its open files, then that of its working
    /// directory; `with_unused` adds the others that it sees.
    #[must_use]
    pub fn mounts(&self, with_unused: bool) -> Vec<UsedMount> {
        let Ok(table) = MountTable::of_process(self.thread) else {
            return Vec::new();
        };
        let dir = self.dir();
        let descriptors = numbers(&dir.join("fd"), DESCRIPTORS_MAX).into_iter();
        let links = descriptors
            .map(|descriptor| dir.join("fd").join(descriptor.to_string()))
            .chain([dir.join("cwd")]);
        let in_use = links.filter_map(|link| used(&table, &fs::read_link(link).ok()?));
        let others = table.iter().filter(|_| with_unused);
        let others = others.filter_map(|mount| UsedMount::of(&mount));
        let mut found: Vec<UsedMount> = Vec::new();
        for mount in in_use.chain(others) {
            if found.len() == MOUNTS_MAX {
                break;
            }
            if found.iter().all(|known| known.device != mount.device) {
                found.push(mount);
            }
        }
        found
    }

    fn dir(&self) -> PathBuf {
        thread_dir(self.pid, self.thread)
    }
}

// === impl SystemCall ===

impl SystemCall {
    /// Parses the text of a `/proc/<pid>/syscall`. Pure.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        // `running`; or -1, outside of a call.
        let number: c_long = words.next()?.parse().ok()?;
        let first = words.next()?.strip_prefix("0x")?;
        let first_argument = u64::from_str_radix(first, 16).ok()?;
        (number >= 0).then_some(Self {
            number,
            first_argument,
        })
    }

    fn known(&self) -> Option<&'static (c_long, &'static str, bool)> {
        CALLS.iter().find(|(number, ..)| *number == self.number)
    }

    /// The descriptor that the call is about.
    fn descriptor(&self) -> Option<u64> {
        self.known()
            .filter(|(_, _, has_descriptor)| *has_descriptor)
            .map(|_| self.first_argument)
    }
}

impl fmt::Display for SystemCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((_, name, _)) => f.write_str(name),
            None => write!(f, "{}", self.number),
        }
    }
}

// === impl UsedMount ===

impl UsedMount {
    /// The view of a mount; `None` if it has no device or server.
    fn of(mount: &Mount<'_>) -> Option<Self> {
        let fs_type: &str = &mount.fs_type;
        (!PSEUDO.contains(&fs_type)).then(|| Self {
            device: mount.device.to_owned(),
            point: printable(&mount.point.to_string_lossy()),
            fs_type: printable(fs_type),
            source: printable(&mount.source.to_string_lossy()),
        })
    }

    /// Returns whether a server has the files.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.fs_type.starts_with("fuse.") || REMOTE.contains(&self.fs_type.as_str())
    }

    /// A mount point at which this process reaches the same file system; `None` if it does not see it.
    #[must_use]
    pub fn own_point(&self) -> Option<PathBuf> {
        let table = MountTable::of_this_process().ok()?;
        let mut same = table.iter().filter(|mount| mount.device == self.device);
        // One that another mount covers leads to that one.
        same.find(|mount| {
            table
                .containing(&mount.point)
                .is_some_and(|top| top.id == mount.id)
        })
        .map(|mount| mount.point.into_owned())
    }
}

/// Asks a file system how much space it has, for which it asks its server. Returns when it answers, whatever it answers. Of one
/// that hangs it does not return, but a SIGKILL ends the wait for most servers: nothing is written, because a write to a frozen
/// disk cannot be ended.
pub fn await_answer(point: &Path) {
    // An error is an answer too.
    let _ = statvfs(point);
}

/// The mount that a file is on.
fn used(table: &MountTable, file: &Path) -> Option<UsedMount> {
    // A pipe or socket has a name that is no path.
    let mount = file.is_absolute().then(|| table.containing(file))??;
    UsedMount::of(&mount)
}

fn thread_dir(pid: u32, thread: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/task/{thread}"))
}

/// The beginning of a file of `/proc`.
fn text(dir: &Path, name: &str) -> Option<String> {
    let file = File::open(dir.join(name)).ok()?;
    let mut bytes = Vec::new();
    file.take(TEXT_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The names in a directory that are numbers: threads, or descriptors.
fn numbers(dir: &Path, most: usize) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .filter_map(|name| name.to_str()?.parse().ok())
        .take(most)
        .collect()
}

/// The state in a `/proc/<pid>/stat`. Pure.
fn state(stat: &str) -> Option<char> {
    crate::process::stat_fields(stat).first()?.chars().next()
}

/// The place of a state among those of the threads of one process: the least one says why the process is there.
const fn rank(state: char) -> u8 {
    match state {
        'D' => 0,
        'Z' | 'X' | 'x' => 2,
        _ => 1,
    }
}

/// The function in a `/proc/<pid>/wchan`. Pure.
fn channel(wchan: &str) -> Option<String> {
    let name = wchan.trim();
    (!name.is_empty() && name != "0").then(|| printable(name))
}

/// A name of others, short and without control characters.
fn printable(name: &str) -> String {
    beginning(name, NAME_MAX)
        .chars()
        .map(|letter| if letter.is_control() { '?' } else { letter })
        .collect()
}

#[cfg(test)]
mod tests;
