//! Changes the OOM score adjustment of the processes of a cgroup.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::group::Group;
use crate::reader::Reader;

/// Maximum number of passes over the processes. A fork inherits the score of its parent, so the second pass
/// finds only processes that were forked during the first.
const PASSES: u32 = 16;

/// Maximum number of processes whose files are open.
const AT_ONCE: usize = 64;

/// The outcome of one pass over the processes, or of the visit of one; of several the greatest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PassOutcome {
    /// No process has the old score.
    Done,
    /// A process exited before its score was read: a child that it forked after the listing may have the old
    /// score.
    Missed,
    /// A process had the old score.
    Changed,
}

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
        match repeat_passes(|| self.rescore_once(group, from, to))? {
            // Where processes exit all the time, each pass misses some. The last one changed none: what is forked
            // now inherits the new score.
            PassOutcome::Done | PassOutcome::Missed => Ok(()),
            PassOutcome::Changed => Err(Error::Restless {
                group: group.to_string(),
            }),
        }
    }

    /// Makes one pass over the current processes.
    fn rescore_once(&self, group: &Group, from: i32, to: i32) -> Result<PassOutcome> {
        let mut outcome = PassOutcome::Done;
        for pids in self.procs(group)?.unwrap_or_default().chunks(AT_ONCE) {
            let mut open = Vec::with_capacity(pids.len());
            for pid in pids {
                open.extend(OomScoreFile::open(*pid)?.map(|score| (*pid, score)));
            }
            if open.len() < pids.len() {
                outcome = outcome.max(PassOutcome::Missed);
            }
            // An open file belongs to a process, not to a process id: if the id is still listed after the
            // open, it has not been reused by a process outside of the group.
            let listed = self.procs(group)?.unwrap_or_default();
            for (pid, mut score) in open {
                outcome = outcome.max(if listed.binary_search(&pid).is_ok() {
                    score.change(from, to)?
                } else {
                    PassOutcome::Missed
                });
            }
        }
        Ok(outcome)
    }
}

/// Repeats passes until one is done; after [`PASSES`] the outcome is that of the last one.
fn repeat_passes(mut pass: impl FnMut() -> Result<PassOutcome>) -> Result<PassOutcome> {
    let mut outcome = pass()?;
    for _ in 1..PASSES {
        if outcome == PassOutcome::Done {
            break;
        }
        outcome = pass()?;
    }
    Ok(outcome)
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

    /// Changes the score from `from` to `to`, unless it is another or the process has exited.
    fn change(&mut self, from: i32, to: i32) -> Result<PassOutcome> {
        let mut text = String::new();
        let changed = self.file.read_to_string(&mut text).and_then(|_| {
            if text.trim().parse() != Ok(from) {
                return Ok(PassOutcome::Done);
            }
            self.file.rewind()?;
            self.file.write_all(to.to_string().as_bytes())?;
            Ok(PassOutcome::Changed)
        });
        match changed {
            Err(fault) if is_ended(&fault) => Ok(PassOutcome::Missed),
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::hierarchy::Hierarchy;

    #[test]
    fn exited_process_is_missed_and_not_unchanged() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "").unwrap();
        fs::create_dir(root.path().join("group")).unwrap();
        let reader = Reader::new(Hierarchy::at(root.path()).unwrap());
        let group = Group::from_path(Path::new("group")).unwrap();
        let own = std::process::id();
        // No process has the greatest id, and this one does not have the score.
        for (procs, expected) in [
            (format!("{own}\n"), PassOutcome::Done),
            (format!("{own}\n{}\n", u32::MAX), PassOutcome::Missed),
            (String::new(), PassOutcome::Done),
        ] {
            fs::write(root.path().join("group/cgroup.procs"), &procs).unwrap();
            let outcome = reader.rescore_once(&group, 2000, 0).unwrap();
            assert_eq!(outcome, expected, "{procs}");
        }
    }

    #[test]
    fn passes_are_repeated_until_one_is_done() {
        let check = |outcomes: &[PassOutcome], expected| {
            let mut left = outcomes.iter().copied();
            let last = repeat_passes(|| Ok(left.next().expect("the passes are bounded")));
            assert_eq!((last.unwrap(), left.len()), (expected, 0), "{outcomes:?}");
        };
        use PassOutcome::{Changed, Done, Missed};
        check(&[Done], Done);
        check(&[Missed, Changed, Missed, Done], Done);
        check(&[Missed; PASSES as usize], Missed);
        check(&[Changed; PASSES as usize], Changed);
    }
}
