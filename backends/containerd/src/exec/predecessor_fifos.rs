//! The FIFOs of the execs that a predecessor left.

use std::collections::HashMap;
use std::fs::{File, read_dir};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::task::keep_open;

/// The prefix of the ids and directories of execs.
pub(super) const EXEC_DIR_PREFIX: &str = "exec-";

/// The FIFOs of the execs of a predecessor, held open at both ends, by the directory of each exec.
///
/// A shim that is starting an exec blocks until the other ends of the FIFOs are open, and answers no call
/// meanwhile. When containerd starts, it kills a shim that does not answer, and with it the containers of its
/// pod. So the FIFOs are opened before containerd is started, and stay open until the exec has ended.
#[derive(Debug, Default)]
pub(crate) struct PredecessorFifos(Mutex<HashMap<PathBuf, Vec<File>>>);

impl PredecessorFifos {
    /// Opens all FIFOs of execs below the directory of all tasks. Does not block; what cannot be opened is
    /// skipped.
    pub(crate) fn open(all_tasks: &Path) -> Self {
        let tasks = read_dir(all_tasks).into_iter().flatten().flatten();
        let execs = tasks.flat_map(|task| exec_dirs(&task.path()));
        Self(Mutex::new(
            execs.map(|dir| (dir.clone(), open_fifos(&dir))).collect(),
        ))
    }

    /// Removes the FIFOs of one exec and returns them, for the code that ends the exec.
    pub(super) fn take(&self, dir: &Path) -> Vec<File> {
        self.0.lock().remove(dir).unwrap_or_default()
    }

    /// Closes the FIFOs that were not taken: their tasks have ended.
    pub(crate) fn close(&self) {
        self.0.lock().clear();
    }
}

/// The directories of execs in the directory of a task.
pub(super) fn exec_dirs(task: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = read_dir(task).into_iter().flatten().flatten();
    let execs = entries.filter(|entry| {
        entry
            .file_name()
            .to_string_lossy()
            .starts_with(EXEC_DIR_PREFIX)
    });
    execs.map(|entry| entry.path())
}

/// Opens the FIFOs of an exec at both ends, so that a shim that opens one of them does not block.
pub(super) fn open_fifos(dir: &Path) -> Vec<File> {
    keep_open(&["stdin", "stdout", "stderr"].map(|name| dir.join(name)))
}

#[cfg(test)]
mod tests {
    use std::fs::{OpenOptions, create_dir_all};
    use std::os::unix::fs::OpenOptionsExt;

    use nix::fcntl::OFlag;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn the_fifos_of_a_predecessors_execs_have_a_reader_until_they_are_closed() {
        let all = tempfile::tempdir().unwrap();
        let exec = all.path().join("task/exec-1");
        create_dir_all(&exec).unwrap();
        for name in ["task/stdout", "task/exec-1/stdout"] {
            mkfifo(&all.path().join(name), Mode::S_IRWXU).unwrap();
        }
        let has_reader = |name: &str| {
            let mut write = OpenOptions::new();
            write
                .write(true)
                .custom_flags(OFlag::O_NONBLOCK.bits())
                .open(all.path().join(name))
                .is_ok()
        };
        let held = PredecessorFifos::open(all.path());
        assert!(has_reader("task/exec-1/stdout") && !has_reader("task/stdout"));
        let taken = held.take(&exec);
        held.close();
        assert!(has_reader("task/exec-1/stdout"));
        drop(taken);
        assert!(!has_reader("task/exec-1/stdout"));
    }
}
