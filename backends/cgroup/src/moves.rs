//! Having the kernel ready for a process that is about to be put into a cgroup.
//!
//! Putting a process into a cgroup takes a lock that is cheap for everybody else, who fork and exit all the time, and dear for who
//! moves: the kernel first waits until every processor has come by (an RCU grace period, 5 to 20 ms). For as long after a move it stays
//! ready, and the next move takes 20 µs. A runtime that makes a container moves it while its caller waits. So who knows that one will
//! be made moves itself to where it is, which changes nothing, while the runtime is still starting, and again until it has moved.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::group::Group;
use crate::hierarchy::Hierarchy;

/// Between two moves: shorter than the kernel stays ready.
const MOVE_INTERVAL: Duration = Duration::from_millis(5);
/// How long a move is waited for; what takes longer than this is not worth it.
const MAX_WAIT: Duration = Duration::from_millis(250);

/// The moves that are about to come.
#[derive(Debug)]
pub struct Moves {
    hierarchy: Hierarchy,
    expected: AtomicUsize,
    keeping_ready: AtomicBool,
}

/// A move that is about to come; it has come, or will not, when this is dropped.
#[derive(Debug)]
pub struct ExpectedMove {
    moves: Arc<Moves>,
}

impl Moves {
    /// None yet, in these hierarchies.
    #[must_use]
    pub const fn new(hierarchy: Hierarchy) -> Self {
        Self { hierarchy, expected: AtomicUsize::new(0), keeping_ready: AtomicBool::new(false) }
    }

    /// Notes that a move is about to come. [`Moves::keep_ready`] does the work.
    #[must_use]
    pub fn expect(self: &Arc<Self>) -> ExpectedMove {
        self.expected.fetch_add(1, Ordering::AcqRel);
        ExpectedMove { moves: Arc::clone(self) }
    }

    /// Keeps the kernel ready while a move is expected, for a quarter of a second at most. Blocks; returns at once if another thread
    /// is at it already. What the kernel says to the moves does not matter: it gets ready before it looks at them.
    pub fn keep_ready(&self) {
        let Some(file) = own_processes(&self.hierarchy) else { return };
        let begin = Instant::now();
        let due = || self.expected.load(Ordering::Acquire) > 0 && begin.elapsed() < MAX_WAIT;
        // Asked again after the work is laid down, for who came between its last look and that.
        while due() && !self.keeping_ready.swap(true, Ordering::AcqRel) {
            while due() {
                // 0 is who writes.
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

/// The list of processes of a cgroup that this process is in, in any one hierarchy. Asked each time: who writes to one that it has
/// been taken out of goes back into it.
fn own_processes(hierarchy: &Hierarchy) -> Option<PathBuf> {
    processes_of(hierarchy, &fs::read_to_string("/proc/self/cgroup").ok()?)
}

/// The same, from what `/proc/self/cgroup` says.
fn processes_of(hierarchy: &Hierarchy, text: &str) -> Option<PathBuf> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = Path::new(fields.next()?);
        let mount = hierarchy
            .mounts()
            .iter()
            .find(|mount| mount.root == Path::new("/") && mount.controllers.join(",") == controllers)?;
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
    use super::*;

    #[test]
    fn the_own_cgroup_is_found_in_a_hierarchy_that_is_mounted() {
        let v1 = "1 0 0:1 / /cg/memory rw - cgroup c rw,memory\n2 0 0:2 / /cg/cpu,cpuacct rw - cgroup c rw,cpu,cpuacct\n";
        let hierarchy = Hierarchy::from_mountinfo(v1).unwrap();
        let text = "9:pids:/x\n3:cpu,cpuacct:/\n2:memory:/a/b\n0::/\n";
        assert_eq!(processes_of(&hierarchy, text).unwrap(), Path::new("/cg/cpu,cpuacct/cgroup.procs"));
        let text = "2:memory:/a/b\n";
        assert_eq!(processes_of(&hierarchy, text).unwrap(), Path::new("/cg/memory/a/b/cgroup.procs"));
        assert_eq!(processes_of(&hierarchy, "2:memory:/../b\nnonsense\n"), None);
        let v2 = Hierarchy::from_mountinfo("30 23 0:26 / /cg rw - cgroup2 c rw").unwrap();
        assert_eq!(processes_of(&v2, "0::/s.slice/x\n").unwrap(), Path::new("/cg/s.slice/x/cgroup.procs"));
    }

    #[test]
    fn this_process_stays_where_it_is() {
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
