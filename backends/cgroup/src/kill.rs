//! Kills all processes of cgroups.

use std::fs::OpenOptions;
use std::io::Write;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::{Error, Result};
use crate::files::is_gone;
use crate::group::Group;
use crate::reader::Reader;

/// Number of times the processes are listed: killed processes may have forked others meanwhile.
const PASSES: usize = 16;

impl Reader {
    /// Sends SIGKILL to all processes of `group` and its descendants: by the kernel at once where the v2 tree has `cgroup.kill`
    /// (Linux 5.14), else one by one. Does not wait until they have exited. Idempotent; does nothing if the group does not exist.
    ///
    /// # Errors
    /// [`Error::File`] for an error of the kernel.
    pub fn kill(&self, group: &Group) -> Result<()> {
        let files: Vec<_> = self
            .hierarchy()
            .dirs(group)
            .map(|dir| dir.join("cgroup.kill"))
            .collect();
        // The kernel also kills processes that are forked meanwhile, which the passes below can only chase.
        if let Some(path) = files.into_iter().find(|path| path.exists()) {
            let written = OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|mut file| file.write_all(b"1"));
            return match written {
                Err(fault) if is_gone(&fault) => Ok(()),
                Err(source) => Err(Error::File { path, source }),
                Ok(()) => Ok(()),
            };
        }
        for _ in 0..PASSES {
            let pids = self.procs(group)?.unwrap_or_default();
            if pids.is_empty() {
                break;
            }
            for pid in pids.into_iter().filter_map(|pid| i32::try_from(pid).ok()) {
                // One that has exited by now is what is wanted, and root may kill all others.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::hierarchy::Hierarchy;

    fn reader(dir: &Path) -> (Reader, Group) {
        fs::write(dir.join("cgroup.controllers"), "").unwrap();
        fs::create_dir(dir.join("group")).unwrap();
        let group = Group::from_path(Path::new("group")).unwrap();
        (Reader::new(Hierarchy::at(dir).unwrap()), group)
    }

    #[test]
    fn group_is_killed_by_the_kernel_where_it_can() {
        let root = tempfile::tempdir().unwrap();
        let (reader, group) = reader(root.path());
        fs::write(root.path().join("group/cgroup.kill"), "").unwrap();
        reader.kill(&group).unwrap();
        assert_eq!(
            fs::read_to_string(root.path().join("group/cgroup.kill")).unwrap(),
            "1"
        );
        reader
            .kill(&Group::from_path(Path::new("gone")).unwrap())
            .unwrap();
    }

    #[test]
    fn listed_processes_are_killed_one_by_one_otherwise() {
        let root = tempfile::tempdir().unwrap();
        let (reader, group) = reader(root.path());
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        fs::create_dir(root.path().join("group/below")).unwrap();
        fs::write(root.path().join("group/cgroup.procs"), "").unwrap();
        fs::write(
            root.path().join("group/below/cgroup.procs"),
            format!("{}\n", child.id()),
        )
        .unwrap();
        reader.kill(&group).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9)
        );
    }
}
