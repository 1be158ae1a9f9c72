//! Changes the OOM score adjustment of the processes of a cgroup.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::group::Group;
use crate::reader::Reader;

/// Number of passes over the processes while one is left to change. A fork inherits the score of its parent,
/// so the second pass finds only processes that were forked during the first.
const PASSES: u32 = 16;

/// Maximum number of processes whose files are open.
const AT_ONCE: usize = 64;

impl Reader {
    /// Sets the score `to` on every process of `group` with the score `from`, and on those that they fork
    /// meanwhile. A process that has set another score itself keeps it. Idempotent; does nothing if the group
    /// does not exist. Blocks for the time of the passes.
    ///
    /// # Errors
    /// [`Error::File`] if a score cannot be written, for example a lower one without `CAP_SYS_RESOURCE`;
    /// [`Error::Restless`] if processes are forked faster than they can be changed.
    pub fn rescore(&self, group: &Group, from: i32, to: i32) -> Result<()> {
        if from == to {
            return Ok(());
        }
        for _ in 0..PASSES {
            if self.rescore_once(group, from, to)? == 0 {
                return Ok(());
            }
        }
        Err(Error::Restless {
            group: group.to_string(),
        })
    }

    /// Makes one pass over the current processes, and returns how many it has changed.
    fn rescore_once(&self, group: &Group, from: i32, to: i32) -> Result<usize> {
        let mut changed = 0;
        for pids in self.procs(group)?.unwrap_or_default().chunks(AT_ONCE) {
            let mut open = Vec::with_capacity(pids.len());
            for pid in pids {
                open.extend(OomScoreFile::open(*pid)?.map(|score| (*pid, score)));
            }
            // An open file belongs to a process, not to a process id: if the id is still listed after the
            // open, it has not been reused by a process outside of the group.
            let listed = self.procs(group)?.unwrap_or_default();
            for (_, mut score) in open
                .into_iter()
                .filter(|(pid, _)| listed.binary_search(pid).is_ok())
            {
                changed += usize::from(score.change(from, to)?);
            }
        }
        Ok(changed)
    }
}

/// The open `oom_score_adj` of a process.
struct OomScoreFile {
    file: File,
    path: PathBuf,
}

// === impl OomScoreFile ===

impl OomScoreFile {
    /// Opens the file; `None` if the process has exited.
    fn open(pid: u32) -> Result<Option<Self>> {
        let path = PathBuf::from(format!("/proc/{pid}/oom_score_adj"));
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => Ok(Some(Self { file, path })),
            Err(fault) if is_ended(&fault) => Ok(None),
            Err(source) => Err(Error::File { path, source }),
        }
    }

    /// Changes the score from `from` to `to`; `false` if it is another, or the process has exited.
    fn change(&mut self, from: i32, to: i32) -> Result<bool> {
        let mut text = String::new();
        let changed = self.file.read_to_string(&mut text).and_then(|_| {
            if text.trim().parse() != Ok(from) {
                return Ok(false);
            }
            self.file.rewind()?;
            self.file.write_all(to.to_string().as_bytes())?;
            Ok(true)
        });
        match changed {
            Err(fault) if is_ended(&fault) => Ok(false),
            Err(source) => Err(Error::File {
                path: self.path.clone(),
                source,
            }),
            Ok(changed) => Ok(changed),
        }
    }
}

/// Returns whether an error means that the process has exited.
fn is_ended(fault: &io::Error) -> bool {
    matches!(
        fault.raw_os_error().map(Errno::from_raw),
        Some(Errno::ENOENT | Errno::ESRCH)
    )
}
