//! A directory of one test, with a short name. Dropping it removes everything that belongs to the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use crate::host::{self, cgroups, eventually, mounts, processes, runtimes};
use crate::network;

/// The prefix of the names: short, since the path of a unix socket has at most 107 bytes.
const PREFIX: &str = "/tmp/sw-";

/// A directory below `/tmp`, whose path has 16 bytes. Everything that a test creates elsewhere contains the
/// same eight digits.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    digits: String,
}

impl Scratch {
    /// Creates the directory. The first call in a process also removes what killed test runs left behind.
    ///
    /// # Panics
    /// When `/tmp` cannot be written.
    #[must_use]
    pub fn new() -> Self {
        static ABANDONED: Once = Once::new();
        ABANDONED.call_once(sweep_abandoned);
        let digits = host::random_name();
        let path = PathBuf::from(format!("{PREFIX}{digits}"));
        fs::create_dir(&path).expect("/tmp can be written, and eight random digits are new");
        let owner = processes::find(nix::unistd::getpid().as_raw()).expect("this process exists");
        fs::write(
            path.join("owner"),
            format!("{} {}", owner.pid, owner.started),
        )
        .expect("the directory is ours");
        Self { path, digits }
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The eight hex digits of its name.
    #[must_use]
    pub fn digits(&self) -> &str {
        &self.digits
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let left = clear(&self.path, &self.digits);
        // A second panic would abort the run and hide the first.
        assert!(
            left.is_empty() || std::thread::panicking(),
            "cannot clean up: {left:#?}"
        );
    }
}

/// Removes the directories of test processes that no longer exist.
///
/// A killed run has dropped nothing. Its directories record the process that owns them, so the next run
/// removes them.
pub fn sweep_abandoned() {
    let Ok(entries) = fs::read_dir("/tmp") else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(digits) = path.to_str().and_then(|text| text.strip_prefix(PREFIX)) else {
            continue;
        };
        let Ok(owner) = fs::read_to_string(path.join("owner")) else {
            continue;
        };
        let Some((pid, started)) = owner.split_once(' ') else {
            continue;
        };
        let (Ok(pid), Ok(started)) = (pid.parse(), started.parse::<u64>()) else {
            continue;
        };
        if processes::find(pid).is_none_or(|process| process.started != started) {
            // The next run tries again to remove what is left.
            let _ = clear(&path, digits);
        }
    }
}

/// Kills, unmounts and removes everything that belongs to the directory. Returns what could not be removed.
fn clear(path: &Path, digits: &str) -> Vec<String> {
    let mut left = Vec::new();
    left.extend(
        processes::clear(path)
            .iter()
            .map(|process| format!("process {}: {}", process.pid, process.command)),
    );
    left.extend(
        cgroups::clear(&cgroup_name(digits))
            .iter()
            .map(|dir| format!("cgroup {}", dir.display())),
    );
    left.extend(
        mounts::clear(path)
            .iter()
            .map(|mount| format!("mount {}", mount.point.display())),
    );
    left.extend(
        runtimes::clear(path)
            .iter()
            .map(|dir| format!("runtime state {}", dir.display())),
    );
    left.extend(network::clear(path, digits));
    // A process that was just killed may still create a file; after it is gone nothing creates one. Some
    // tests create trees that are too deep for the standard library's removal.
    let remove = || switchyard_tree::remove(path, &switchyard_tree::Cancel::default()).is_ok();
    let removed = eventually(Duration::from_secs(5), remove);
    if !removed {
        left.push(format!("directory {}", path.display()));
    }
    left
}

/// The name of the cgroup below which a test with these digits puts its pods.
#[must_use]
pub fn cgroup_name(digits: &str) -> String {
    // No dash: in the name of a slice systemd takes a dash for a level of its hierarchy.
    format!("swt{digits}")
}
