//! Changes the score for the out-of-memory killer that the processes of a cgroup have.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::group::Group;
use crate::reader::Reader;

/// How often the processes are gone through while there is still one to change. A fork takes the score of its parent, so that the
/// second time finds only those that were forked amid the first.
const PASSES: u32 = 16;

/// How many processes are held at once.
const AT_ONCE: usize = 64;

impl Reader {
    /// Gives the score `to` to every process of `group` that has the score `from`, and to those that they fork meanwhile. One that has
    /// given itself another keeps it. Idempotent; a group that is gone has no processes. Blocks, for as long as a pass takes.
    ///
    /// # Errors
    /// [`Error::File`] if a score cannot be written, as a lower one without `CAP_SYS_RESOURCE`; [`Error::Restless`] if processes are
    /// forked faster than they can be changed.
    pub fn rescore(&self, group: &Group, from: i32, to: i32) -> Result<()> {
        if from == to {
            return Ok(());
        }
        for _ in 0..PASSES {
            if self.rescore_once(group, from, to)? == 0 {
                return Ok(());
            }
        }
        Err(Error::Restless { group: group.to_string() })
    }

    /// Goes through the processes that are there now; how many it has changed.
    fn rescore_once(&self, group: &Group, from: i32, to: i32) -> Result<usize> {
        let mut changed = 0;
        for pids in self.procs(group)?.unwrap_or_default().chunks(AT_ONCE) {
            let mut held = Vec::with_capacity(pids.len());
            for pid in pids {
                held.extend(OomScoreFile::open(*pid)?.map(|score| (*pid, score)));
            }
            // What is open is a process, not a number: one that is listed still is not somebody else's with a number used anew.
            let listed = self.procs(group)?.unwrap_or_default();
            for (_, mut score) in held.into_iter().filter(|(pid, _)| listed.binary_search(pid).is_ok()) {
                changed += usize::from(score.change(from, to)?);
            }
        }
        Ok(changed)
    }
}

/// The score of a process that is held.
struct OomScoreFile {
    file: File,
    path: PathBuf,
}

// === impl Score ===

impl OomScoreFile {
    /// `None` if the process is gone.
    fn open(pid: u32) -> Result<Option<Self>> {
        let path = PathBuf::from(format!("/proc/{pid}/oom_score_adj"));
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => Ok(Some(Self { file, path })),
            Err(fault) if is_ended(&fault) => Ok(None),
            Err(source) => Err(Error::File { path, source }),
        }
    }

    /// Whether it was `from`, and is `to` now.
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
            Err(source) => Err(Error::File { path: self.path.clone(), source }),
            Ok(changed) => Ok(changed),
        }
    }
}

/// Whether the kernel says that a process is no more.
fn is_ended(fault: &io::Error) -> bool {
    matches!(fault.raw_os_error().map(Errno::from_raw), Some(Errno::ENOENT | Errno::ESRCH))
}
