//! Freezes and thaws cgroups.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::files::{is_gone, read_if_there};
use crate::group::Group;
use crate::hierarchy::CgroupMode;
use crate::reader::Reader;

/// The files of a group that show and set whether it is frozen.
struct FreezerFiles {
    state_file: PathBuf,
    control_file: PathBuf,
    /// The words for `control_file` that thaw and freeze.
    words: [&'static str; 2],
}

impl Reader {
    /// Returns whether freezing of `group` itself was requested, regardless of its ancestors; `None` if it
    /// does not exist or there is no freezer.
    ///
    /// # Errors
    /// [`Error::File`] for an error of the kernel.
    pub fn is_frozen(&self, group: &Group) -> Result<Option<bool>> {
        let Some(files) = self.freezer(group) else {
            return Ok(None);
        };
        Ok(read_if_there(&files.state_file)?.map(|text| text.trim() == "1"))
    }

    /// Requests that `group` be frozen, or thawed if `frozen` is false. Does not wait until its processes
    /// are. Idempotent; does nothing if the group does not exist.
    ///
    /// # Errors
    /// [`Error::File`] for an error of the kernel.
    pub fn freeze(&self, group: &Group, frozen: bool) -> Result<()> {
        let Some(files) = self.freezer(group) else {
            return Ok(());
        };
        let word = files.words[usize::from(frozen)];
        let written = OpenOptions::new()
            .write(true)
            .open(&files.control_file)
            .and_then(|mut file| file.write_all(word.as_bytes()));
        match written {
            Err(fault) if is_gone(&fault) => Ok(()),
            Err(source) => Err(Error::File {
                path: files.control_file,
                source,
            }),
            Ok(()) => Ok(()),
        }
    }

    /// The files of `group` in the freezer of this hierarchy; `None` if the group does not exist there.
    fn freezer(&self, group: &Group) -> Option<FreezerFiles> {
        match self.hierarchy().mode() {
            CgroupMode::V1 => {
                let dir = self.existing("freezer", group)?;
                Some(FreezerFiles {
                    state_file: dir.join("freezer.self_freezing"),
                    control_file: dir.join("freezer.state"),
                    words: ["THAWED", "FROZEN"],
                })
            }
            CgroupMode::V2 => {
                let file = self.existing("", group)?.join("cgroup.freeze");
                Some(FreezerFiles {
                    state_file: file.clone(),
                    control_file: file,
                    words: ["0", "1"],
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::hierarchy::Hierarchy;

    #[test]
    fn freeze_and_thaw_are_written_and_read_back() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "").unwrap();
        fs::create_dir(root.path().join("group")).unwrap();
        fs::write(root.path().join("group/cgroup.freeze"), "0\n").unwrap();
        let reader = Reader::new(Hierarchy::at(root.path()).unwrap());
        let group = Group::from_path(Path::new("group")).unwrap();
        for frozen in [true, false] {
            reader.freeze(&group, frozen).unwrap();
            assert_eq!(reader.is_frozen(&group).unwrap(), Some(frozen));
        }
        let gone = Group::from_path(Path::new("gone")).unwrap();
        reader.freeze(&gone, true).unwrap();
        assert_eq!(reader.is_frozen(&gone).unwrap(), None);
    }
}
