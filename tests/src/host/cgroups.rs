//! The cgroup hierarchies of v1 and v2: finds cgroups by name, and removes them with their processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{eventually, mounts};

/// The groups, in every mounted hierarchy, whose name contains `fragment`; parents come before their
/// children.
#[must_use]
pub fn named(fragment: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for mount in mounts::all() {
        if mount.kind == "cgroup" || mount.kind == "cgroup2" {
            walk(&mount.point, &mut |dir| {
                if dir
                    .file_name()
                    .is_some_and(|name| name.to_string_lossy().contains(fragment))
                {
                    found.push(dir.to_owned());
                }
            });
        }
    }
    found
}

/// The text of the first of these files that exists in a container's cgroups, without its last newline. crun
/// puts limits into its own cgroup below the one that systemd creates.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn value(container: &str, names: [&str; 2]) -> String {
    let groups = named(container);
    let dirs = groups
        .iter()
        .flat_map(|group| [group.join("container"), group.clone()]);
    let file = dirs
        .flat_map(|dir| names.map(|name| dir.join(name)))
        .find(|file| file.exists());
    let file = file.unwrap_or_else(|| panic!("neither of {names:?} in {groups:?}"));
    fs::read_to_string(file)
        .expect("it was just found")
        .trim()
        .to_owned()
}

/// Makes a group by its path below the root, in the hierarchy of memory or in the unified one; its directory.
///
/// # Panics
/// When it cannot be made.
#[must_use]
pub fn create(path: &str) -> PathBuf {
    let v1 = Path::new("/sys/fs/cgroup/memory");
    let root = if v1.is_dir() {
        v1
    } else {
        Path::new("/sys/fs/cgroup")
    };
    let dir = root.join(path);
    fs::create_dir_all(&dir).expect("root can make control groups");
    dir
}

/// The groups at and below each group whose name contains `fragment`, children before their parents.
#[must_use]
pub fn trees_named(fragment: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for top in named(fragment) {
        found.push(top.clone());
        walk(&top, &mut |dir| found.push(dir.to_owned()));
    }
    found.sort();
    found.dedup();
    found.reverse();
    found
}

/// The ids of the processes in the groups at and below those whose name contains `fragment`.
#[must_use]
pub fn members(fragment: &str) -> Vec<i32> {
    members_of(&trees_named(fragment))
}

/// The ids of the processes in these groups.
#[must_use]
pub fn members_of(groups: &[PathBuf]) -> Vec<i32> {
    let mut pids: Vec<i32> = groups
        .iter()
        .filter_map(|dir| fs::read_to_string(dir.join("cgroup.procs")).ok())
        .flat_map(|text| {
            text.lines()
                .filter_map(|line| line.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Kills the processes in the cgroups whose name contains `fragment`, and removes them. Returns what remains.
#[must_use]
pub fn clear(fragment: &str) -> Vec<PathBuf> {
    eventually(Duration::from_secs(10), || {
        let groups = trees_named(fragment);
        for dir in &groups {
            // A frozen process does not die of a signal on v1; both files may be absent.
            let _ = fs::write(dir.join("freezer.state"), "THAWED");
            let _ = fs::write(dir.join("cgroup.freeze"), "0");
        }
        for pid in members_of(&groups) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        for dir in &groups {
            let _ = fs::remove_dir(dir);
        }
        groups.is_empty()
    });
    trees_named(fragment)
}

fn walk(dir: &Path, visit: &mut impl FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            visit(&entry.path());
            walk(&entry.path(), visit);
        }
    }
}

/// A process that belongs to no container, kept in a cgroup of a container until this is dropped.
#[derive(Debug)]
pub struct ForeignProcess(Child);

impl ForeignProcess {
    /// Starts a process and moves it into the cgroup.
    ///
    /// # Panics
    /// When the process cannot be started or moved.
    #[must_use]
    pub fn begin(group: &Path) -> Self {
        let stray = Self(
            Command::new("sleep")
                .arg("600")
                .spawn()
                .expect("coreutils has it"),
        );
        fs::write(group.join("cgroup.procs"), stray.0.id().to_string())
            .expect("root can move a process");
        stray
    }
}

impl Drop for ForeignProcess {
    fn drop(&mut self) {
        // The process may have been killed with the others.
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}
