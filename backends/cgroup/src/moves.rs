//! Keeps the kernel ready for moving a process into a cgroup.
//!
//! Moving a process into a cgroup takes a lock that is cheap for readers (every fork and exit) and expensive
//! for the mover: the kernel first waits for an RCU grace period, 5 to 20 ms. After a move it stays ready for
//! about as long, and the next move takes 20 µs. A runtime that creates a container moves its process while
//! the caller waits. So when a container is about to be created, this process moves itself to the cgroup
//! where it already is, which changes nothing, while the runtime is still starting, and repeats that until
//! the runtime has moved its process.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::group::Group;
use crate::hierarchy::Hierarchy;

/// The interval between two moves: shorter than the kernel stays ready.
const MOVE_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum time for which the kernel is kept ready; after that the gain is not worth the effort.
const MAX_WAIT: Duration = Duration::from_millis(250);

/// Counts the expected moves, and keeps the kernel ready for them.
#[derive(Debug)]
pub struct Moves {
    hierarchy: Hierarchy,
    expected: AtomicUsize,
    keeping_ready: AtomicBool,
}

/// An expected move; drop this once the move was made or will not be made.
#[derive(Debug)]
pub struct ExpectedMove {
    moves: Arc<Moves>,
}

impl Moves {
    /// Without expected moves, in these hierarchies.
    #[must_use]
    pub const fn new(hierarchy: Hierarchy) -> Self {
        Self {
            hierarchy,
            expected: AtomicUsize::new(0),
            keeping_ready: AtomicBool::new(false),
        }
    }

    /// Registers an expected move. The caller must also run [`Moves::keep_ready`].
    #[must_use]
    pub fn expect(self: &Arc<Self>) -> ExpectedMove {
        self.expected.fetch_add(1, Ordering::AcqRel);
        ExpectedMove {
            moves: Arc::clone(self),
        }
    }

    /// Keeps the kernel ready while a move is expected, for a quarter of a second at most. Blocks; returns at
    /// once if another thread does that already. Errors of the writes do not matter: the kernel waits for the
    /// grace period before it checks the request.
    pub fn keep_ready(&self) {
        let Some(file) = own_processes(&self.hierarchy) else {
            return;
        };
        let begin = Instant::now();
        let due = || self.expected.load(Ordering::Acquire) > 0 && begin.elapsed() < MAX_WAIT;
        // Checked again after `keeping_ready` is reset, for a move that was registered between the last check
        // and the reset.
        while due() && !self.keeping_ready.swap(true, Ordering::AcqRel) {
            while due() {
                // 0 stands for the writing process.
                let _ = fs::write(&file, "0");
                thread::sleep(MOVE_INTERVAL);
            }
            self.keeping_ready.store(false, Ordering::Release);
        }
    }
}

impl Drop for ExpectedMove {
    fn drop(&mut self) {
        self.moves.expected.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The `cgroup.procs` file of this process's own cgroup, in any hierarchy. Looked up each time: writing to
/// that of a cgroup which this process has left would move it back.
fn own_processes(hierarchy: &Hierarchy) -> Option<PathBuf> {
    processes_of(hierarchy, &fs::read_to_string("/proc/self/cgroup").ok()?)
}

/// As [`own_processes`], from the text of `/proc/self/cgroup`.
fn processes_of(hierarchy: &Hierarchy, text: &str) -> Option<PathBuf> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = Path::new(fields.next()?);
        let mount = hierarchy.mounts().iter().find(|mount| {
            mount.root == Path::new("/") && mount.controllers.join(",") == controllers
        })?;
        let dir = if path == Path::new("/") {
            mount.path.clone()
        } else {
            mount.dir(&Group::from_path(path).ok()?)
        };
        Some(dir.join("cgroup.procs"))
    })
}

#[cfg(test)]
mod tests {
    use switchyard_linux::mounts::MountTable;

    use super::*;

    #[test]
    fn own_cgroup_is_found_in_a_mounted_hierarchy() {
        let v1 = "1 0 0:1 / /cg/memory rw - cgroup c rw,memory\n2 0 0:2 / /cg/cpu,cpuacct rw - cgroup c rw,cpu,cpuacct\n";
        let hierarchy = Hierarchy::of_mounts(&MountTable::from_text(v1), false).unwrap();
        let text = "9:pids:/x\n3:cpu,cpuacct:/\n2:memory:/a/b\n0::/\n";
        assert_eq!(
            processes_of(&hierarchy, text).unwrap(),
            Path::new("/cg/cpu,cpuacct/cgroup.procs")
        );
        let text = "2:memory:/a/b\n";
        assert_eq!(
            processes_of(&hierarchy, text).unwrap(),
            Path::new("/cg/memory/a/b/cgroup.procs")
        );
        assert_eq!(processes_of(&hierarchy, "2:memory:/../b\nnonsense\n"), None);
        let v2 = Hierarchy::of_mounts(
            &MountTable::from_text("30 23 0:26 / /cg rw - cgroup2 c rw"),
            true,
        )
        .unwrap();
        assert_eq!(
            processes_of(&v2, "0::/s.slice/x\n").unwrap(),
            Path::new("/cg/s.slice/x/cgroup.procs")
        );
    }

    #[test]
    fn own_process_is_not_moved() {
        let hierarchy = Hierarchy::detect().unwrap();
        let file = own_processes(&hierarchy).expect("there is a hierarchy");
        assert!(file.is_file(), "{}", file.display());
        let before = fs::read_to_string("/proc/self/cgroup").unwrap();
        let moves = Arc::new(Moves::new(hierarchy));
        let expected = moves.expect();
        let worker = {
            let moves = Arc::clone(&moves);
            thread::spawn(move || moves.keep_ready())
        };
        drop(expected);
        worker.join().unwrap();
        assert_eq!(fs::read_to_string("/proc/self/cgroup").unwrap(), before);
        assert_eq!(moves.expected.load(Ordering::Acquire), 0);
    }
}
