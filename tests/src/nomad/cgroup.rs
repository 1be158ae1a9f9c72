//! The cgroups that an agent creates for a task before it starts the task, and removes afterwards, for cgroup
//! v1 and v2.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::host::eventually;

/// The controllers of version 1 that an agent makes groups of beside the set of processors.
const CONTROLLERS: [&str; 3] = ["freezer", "memory", "cpu"];

/// Limit for the last process to leave a group.
const EMPTY: Duration = Duration::from_secs(5);

/// The groups of one task.
#[derive(Debug)]
pub struct TaskCgroups {
    /// The value for the driver: the absolute path of the cgroup, or of the cpuset.
    pub cpuset_cgroup: String,
    created: Vec<PathBuf>,
}

// === impl TaskCgroups ===

impl TaskCgroups {
    /// Makes them below `parent`, the agent's own, for a task that shares its processors with others. What
    /// tasks share stays.
    ///
    /// # Panics
    /// When they cannot be made.
    #[track_caller]
    #[must_use]
    pub fn make(parent: &str, alloc: &str, task: &str) -> Self {
        let root = Path::new("/sys/fs/cgroup");
        let name = format!("{alloc}.{task}");
        if root.join("cgroup.controllers").exists() {
            let share = root.join(parent).join("share.slice");
            let leaf = share.join(format!("{name}.scope"));
            fs::create_dir_all(&leaf).expect("root can make control groups");
            for dir in [root, &root.join(parent), &share] {
                delegate(dir);
            }
            return Self {
                cpuset_cgroup: text(&leaf),
                created: vec![leaf],
            };
        }
        let share = root.join("cpuset").join(parent).join("share");
        fs::create_dir_all(&share).expect("root can make control groups");
        for dir in [&root.join("cpuset").join(parent), &share] {
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let above = fs::read_to_string(dir.join("..").join(file)).expect("it is there");
                fs::write(dir.join(file), above.trim()).expect("a group takes what its parent has");
            }
        }
        let own = CONTROLLERS
            .map(|controller| root.join(controller).join(parent).join(&name))
            .to_vec();
        for dir in &own {
            fs::create_dir_all(dir).expect("root can make control groups");
        }
        Self {
            cpuset_cgroup: text(&share),
            created: own,
        }
    }

    /// Removes them as an agent does when the task is gone.
    ///
    /// # Errors
    /// The first that cannot be removed: something is in it.
    pub fn remove(&mut self) -> io::Result<()> {
        for dir in &self.created {
            let mut outcome = Ok(());
            eventually(EMPTY, || {
                outcome = gone(fs::remove_dir(dir));
                outcome.is_ok()
            });
            outcome.map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", dir.display()))
            })?;
        }
        Ok(())
    }
}

impl Drop for TaskCgroups {
    fn drop(&mut self) {
        // Remains are found by the test's last leak scan.
        let _ = self.remove();
    }
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Enables all controllers of a cgroup for its children.
fn delegate(dir: &Path) {
    let controllers = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
    for controller in controllers.split_whitespace() {
        // A test that needs a missing controller fails by itself.
        let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("the path is ASCII").to_owned()
}
