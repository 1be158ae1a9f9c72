//! The state directory: what the next logkeeper needs to recover every container after a kill.
//!
//! The running logkeeper holds `lock`. A container has the entry `<id>.json`, and beside it `<id>.pos`,
//! `<id>.stdout.spool` and `<id>.stderr.spool`, which have no meaning without the entry.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use serde::{Deserialize, Serialize};

use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::files::{self, Durable, if_present};

use crate::Error;
use crate::format::Stream;
use crate::protocol::{LogSpec, MAX_LINE};
use crate::spool::{PAGE, Spool};

/// The version of `<id>.json`.
const VERSION: u32 = 1;

/// A state directory that this logkeeper has locked.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
}

/// The lock of a state directory. It is a separate value, so that a container whose log hangs, and which
/// refers to the directory, does not keep the lock from the next logkeeper.
#[derive(Debug)]
pub(crate) struct StateLock {
    _lock: Flock<File>,
}

/// The files of one container.
#[derive(Debug)]
pub(crate) struct EntryPaths {
    entry: PathBuf,
    pub(crate) position: PathBuf,
    pub(crate) spools: [PathBuf; 2],
}

/// The content of `<id>.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    version: u32,
    #[serde(deserialize_with = "StoredSpec::deserialize")]
    container: LogSpec,
}

/// [`LogSpec`] as it is read from a file: a field that a later version has added is ignored. A request with such a field
/// is refused, since it may ask for something else.
#[derive(Deserialize)]
#[serde(remote = "LogSpec")]
struct StoredSpec {
    id: String,
    stdout: Option<PathBuf>,
    stderr: Option<PathBuf>,
    log: Option<PathBuf>,
    tty: bool,
    max_line: u32,
}

// === impl StateDir ===

impl StateDir {
    /// Creates the directory if necessary, locks it, and checks that its file system supports what is needed.
    pub(crate) fn open(path: &Path) -> Result<(Self, StateLock), Error> {
        let create = DirBuilder::new().recursive(true).mode(0o700).create(path);
        create.map_err(Error::file("create", path))?;
        let lock_path = path.join("lock");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path);
        let file = file.map_err(Error::file("open", &lock_path))?;
        let lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((_, Errno::EWOULDBLOCK)) => return Err(Error::StateInUse(path.into())),
            Err((_, errno)) => return Err(Error::file("lock", &lock_path)(errno.into())),
        };
        probe(&path.join("probe")).map_err(|source| Error::UnfitStateDir {
            path: path.into(),
            source,
        })?;
        Ok((Self { path: path.into() }, StateLock { _lock: lock }))
    }

    /// A path in the directory at which no file exists.
    pub(crate) fn unused_path(&self) -> PathBuf {
        self.path.join("none")
    }

    /// The files of a container whose id has been checked.
    pub(crate) fn paths(&self, id: &str) -> EntryPaths {
        EntryPaths {
            entry: self.path.join(format!("{id}.json")),
            position: self.path.join(format!("{id}.pos")),
            spools: Stream::ALL
                .map(|stream| self.path.join(format!("{id}.{}.spool", stream.as_str()))),
        }
    }

    /// Writes the entry of a container, atomically and before the request is answered.
    pub(crate) fn write(&self, spec: &LogSpec) -> io::Result<()> {
        let entry = self.paths(&spec.id).entry;
        let text = serde_json::to_vec(&Stored {
            version: VERSION,
            container: spec.clone(),
        })?;
        // An entry whose name a power cut has undone is of a container that has ended with the boot.
        files::replace(&entry, &text, 0o600, Durable::Content, || {
            reach(CrashPoint::EntryDrafted)
        })?;
        reach(CrashPoint::EntryStored);
        Ok(())
    }

    /// Reads the entry of a container; `None` if there is none.
    pub(crate) fn read(&self, id: &str) -> io::Result<Option<LogSpec>> {
        if_present(read_entry(&self.paths(id).entry))
    }

    /// Returns whether a container has an entry.
    pub(crate) fn contains(&self, id: &str) -> bool {
        self.paths(id).entry.exists()
    }

    /// Removes a container. Once its entry is gone, the other files have no meaning, so their removal may
    /// fail.
    pub(crate) fn remove(&self, id: &str) -> io::Result<()> {
        let EntryPaths {
            entry,
            position,
            spools,
        } = self.paths(id);
        // The entry goes first: after a kill, the next start removes files that have none.
        if_present(fs::remove_file(&entry))?;
        reach(CrashPoint::EntryForgotten);
        for path in [position].into_iter().chain(spools) {
            if let Err(error) = if_present(fs::remove_file(&path)) {
                tracing::warn!(path = %path.display(), %error, "cannot remove a file of a finished container");
            }
        }
        reach(CrashPoint::EntryGone);
        Ok(())
    }

    /// Reads all entries, and removes files that belong to none. An entry that cannot be decoded is left
    /// alone.
    pub(crate) fn load(&self) -> Result<Vec<LogSpec>, Error> {
        let failed = || Error::file("list", &self.path);
        let mut names = Vec::new();
        for entry in self.path.read_dir().map_err(failed())? {
            // All names that we create are valid UTF-8.
            names.extend(entry.map_err(failed())?.file_name().into_string());
        }
        let ids: BTreeSet<_> = names
            .iter()
            .filter_map(|name| name.strip_suffix(".json"))
            .collect();
        let suffixes = [".json.new", ".pos", ".stdout.spool", ".stderr.spool"];
        for name in &names {
            let owner = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
            // A kill has cut off the creation or the removal of its container.
            if owner.is_some_and(|id| name.ends_with(".new") || !ids.contains(id)) {
                let path = self.path.join(name);
                if_present(fs::remove_file(&path)).map_err(Error::file("remove", &path))?;
            }
        }
        let specs = ids.into_iter().filter_map(|id| {
            let path = self.paths(id).entry;
            let stored = read_entry(&path).and_then(|spec| {
                if spec.id == id {
                    Ok(spec)
                } else {
                    Err(io::Error::other("the entry is of another id"))
                }
            });
            stored
                .inspect_err(
                    |error| tracing::error!(path = %path.display(), %error, "cannot read an entry"),
                )
                .ok()
        });
        Ok(specs.collect())
    }
}

fn read_entry(path: &Path) -> io::Result<LogSpec> {
    let mut text = Vec::new();
    // A longer file was not written from a request.
    File::open(path)?
        .take(MAX_LINE as u64)
        .read_to_end(&mut text)?;
    decode(&text)
}

fn decode(text: &[u8]) -> io::Result<LogSpec> {
    let Stored { version, container } = serde_json::from_slice(text)?;
    if version == VERSION {
        Ok(container)
    } else {
        Err(io::Error::other(format!(
            "version {version} is not {VERSION}"
        )))
    }
}

/// Checks that any bytes that decode can be encoded again and then decode to the same.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn check_entry(data: &[u8]) {
    if let Ok(container) = decode(data) {
        let text = serde_json::to_vec(&Stored {
            version: VERSION,
            container: container.clone(),
        });
        let again = text.map_err(io::Error::from).and_then(|text| decode(&text));
        assert_eq!(again.expect("what was encoded is understood"), container);
    }
}

/// Sends two pages through a spool and punches a hole for the first one.
///
/// A full file system passes, since the logkeeper can work without spools, though with less safety.
fn probe(path: &Path) -> io::Result<()> {
    let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    let reader = File::from(reader);
    let mut writer = File::from(writer);
    let page = [0; 4096];
    writer.write_all(&page)?;
    writer.write_all(&page)?;
    let probed = Spool::create(path).and_then(|mut spool| {
        // Not until the end of the pipe, which does not come while a process that another thread has just started holds
        // the writer.
        while spool.pending() < 2 * PAGE {
            spool.receive(&reader, page.len())?;
        }
        spool.advance(PAGE);
        spool.release(0, PAGE)
    });
    if_present(fs::remove_file(path))?;
    match probed {
        Err(error) if error.raw_os_error() == Some(Errno::ENOSPC as i32) => Ok(()),
        probed => probed,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    /// Starts programs that live for a moment, and inherit what is not closed for them.
    fn start_programs(until: &AtomicBool) {
        while !until.load(Ordering::Relaxed) {
            let mut program = Command::new("sleep").arg("1").spawn().unwrap();
            program.kill().unwrap();
            program.wait().unwrap();
        }
    }

    #[test]
    fn directory_is_fit_while_another_thread_starts_programs() {
        let dir = tempfile::tempdir().unwrap();
        let over = AtomicBool::new(false);
        let probed: io::Result<()> = thread::scope(|scope| {
            scope.spawn(|| start_programs(&over));
            let probed = (0..10_000).try_for_each(|_| probe(&dir.path().join("probe")));
            over.store(true, Ordering::Relaxed);
            probed
        });
        probed.unwrap();
    }
}
