//! A short-named directory of one test, which takes everything that belongs to it away when it is dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use crate::host::{self, cgroups, eventually, mounts, processes, runtimes};
use crate::network;

/// The front of the names: short, since the path of a unix socket holds at most 107 bytes.
const PREFIX: &str = "/tmp/sw-";

/// A directory below `/tmp`, of 16 bytes in all. Everything a test makes outside of it carries the same eight digits.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    digits: String,
}

impl Scratch {
    /// Makes the directory. The first call in a process also removes what killed test runs left.
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
        fs::write(path.join("owner"), format!("{} {}", owner.pid, owner.started))
            .expect("the directory is ours");
        Self { path, digits }
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The eight hex digits that are its own.
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
        assert!(left.is_empty() || std::thread::panicking(), "cannot clean up: {left:#?}");
    }
}

/// Clears the directories of test processes that are gone.
///
/// A run that was killed has dropped nothing; its directories say whose they are, so the next run takes them away.
pub fn sweep_abandoned() {
    let Ok(entries) = fs::read_dir("/tmp") else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(digits) = path.to_str().and_then(|text| text.strip_prefix(PREFIX)) else { continue };
        let Ok(owner) = fs::read_to_string(path.join("owner")) else { continue };
        let Some((pid, started)) = owner.split_once(' ') else { continue };
        let (Ok(pid), Ok(started)) = (pid.parse(), started.parse::<u64>()) else { continue };
        if processes::find(pid).is_none_or(|process| process.started != started) {
            // What cannot be removed is tried again by the next run.
            let _ = clear(&path, digits);
        }
    }
}

/// Ends, unmounts and removes everything that belongs to the directory; says what could not be.
fn clear(path: &Path, digits: &str) -> Vec<String> {
    let mut left = Vec::new();
    left.extend(
        processes::clear(path).iter().map(|process| format!("process {}: {}", process.pid, process.command)),
    );
    left.extend(cgroups::clear(&cgroup_name(digits)).iter().map(|dir| format!("cgroup {}", dir.display())));
    left.extend(mounts::clear(path).iter().map(|mount| format!("mount {}", mount.point.display())));
    left.extend(runtimes::clear(path).iter().map(|dir| format!("runtime state {}", dir.display())));
    left.extend(network::clear(path, digits));
    // A file may still be made by a process that just died; nothing makes one after that. Some tests make trees that the standard library
    // does not survive.
    let remove = || switchyard_tree::remove(path, &switchyard_tree::Cancel::default()).is_ok();
    let removed = eventually(Duration::from_secs(5), remove);
    if !removed {
        left.push(format!("directory {}", path.display()));
    }
    left
}

/// The name of the control group below which a test with these digits puts its pods.
#[must_use]
pub fn cgroup_name(digits: &str) -> String {
    // No dash: systemd reads one in the name of a slice as a level of its tree.
    format!("swt{digits}")
}
