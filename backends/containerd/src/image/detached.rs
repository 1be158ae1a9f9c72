//! Unpacking a layer without those below it, so that layers need not wait for each other.
//!
//! The layers below matter in one case only: a directory that the layer has files in and does not list in its
//! archive. Such a directory takes owner and mode from the layers below; in a detached layer it gets
//! defaults. Its modification time identifies it: that is the time of the unpacking, while a listed directory
//! has the time in the archive. A layer with such a directory is unpacked again, on top of its parent. So is
//! a layer during whose unpacking the clock was set back. That shows in the change time (ctime) of a
//! directory, which only the kernel sets and which is then before the unpacking began.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use containerd_client::types::Mount;
use switchyard_core::threads::bulk;

/// Time stamps of file systems come from a coarser clock than [`SystemTime::now`].
const CLOCK_GRANULARITY: Duration = Duration::from_secs(1);

/// The directory that a detached layer is unpacked into, and when that began.
pub(crate) struct DetachedLayer {
    upper: PathBuf,
    options: Vec<String>,
    unpack_began: SystemTime,
}

impl DetachedLayer {
    /// From the mounts of a snapshot without a parent; `None` unless they are one bind mount of a directory
    /// that this process can see.
    pub(crate) fn of(mounts: &[Mount]) -> Option<Self> {
        let [mount] = mounts else { return None };
        let upper = PathBuf::from(&mount.source);
        if mount.r#type != "bind" || !upper.is_dir() {
            return None;
        }
        let options = mount
            .options
            .iter()
            .filter(|option| !option.ends_with("bind"))
            .cloned()
            .collect();
        Some(Self {
            upper,
            options,
            unpack_began: SystemTime::now() - CLOCK_GRANULARITY,
        })
    }

    /// Mounts with the directory as the upper directory of an overlay, so that whiteouts of files below are
    /// stored in the format of overlayfs.
    pub(crate) fn mounts(&self) -> Vec<Mount> {
        let mut options = self.options.clone();
        options.push(format!("upperdir={}", self.upper.display()));
        let kind = "overlay".to_owned();
        vec![Mount {
            r#type: kind.clone(),
            source: kind,
            options,
            ..Default::default()
        }]
    }

    /// Returns whether the layer lists all its directories; `false` if that cannot be determined.
    pub(crate) async fn lists_all_dirs(&self) -> bool {
        let upper = self.upper.clone();
        let began = self.unpack_began;
        let unlisted = bulk(move || Ok(has_unlisted_dir(&upper, began))).await;
        match unlisted {
            Ok(Ok(unlisted)) => !unlisted,
            Ok(Err(fault)) => {
                tracing::debug!(upper = %self.upper.display(), error = %fault, "cannot read the directories of a layer");
                false
            }
            Err(_) => false,
        }
    }
}

/// Returns whether a directory below `root`, whose unpacking began at `since`, may be one that the layer does
/// not list.
fn has_unlisted_dir(root: &Path, since: SystemTime) -> io::Result<bool> {
    let mut rest = vec![root.to_path_buf()];
    while let Some(dir) = rest.pop() {
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                continue;
            }
            let meta = entry.metadata()?;
            if meta.modified()? >= since || change_time(&meta) < since {
                return Ok(true);
            }
            rest.push(entry.path());
        }
    }
    Ok(false)
}

/// The change time (ctime), which only the kernel sets.
fn change_time(meta: &std::fs::Metadata) -> SystemTime {
    // A time before 1970 counts as 1970: a clock that shows one is of no use for comparisons.
    let seconds = u64::try_from(meta.ctime()).unwrap_or(0);
    UNIX_EPOCH + Duration::new(seconds, u32::try_from(meta.ctime_nsec()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn a_directory_made_by_unpacking_is_found_and_one_with_a_time_of_its_own_is_not() {
        let root = tempfile::tempdir().unwrap();
        let began = SystemTime::now() - CLOCK_GRANULARITY;
        let listed = root.path().join("usr/lib");
        fs::create_dir_all(&listed).unwrap();
        File::create(listed.join("file")).unwrap();
        for dir in [root.path().join("usr"), listed.clone()] {
            File::open(dir)
                .unwrap()
                .set_modified(SystemTime::UNIX_EPOCH)
                .unwrap();
        }
        assert!(!has_unlisted_dir(root.path(), began).unwrap());
        fs::create_dir(listed.join("implied")).unwrap();
        File::open(&listed)
            .unwrap()
            .set_modified(SystemTime::UNIX_EPOCH)
            .unwrap();
        assert!(has_unlisted_dir(root.path(), began).unwrap());
    }

    #[test]
    fn no_directory_is_taken_for_listed_when_the_clock_was_set_back_meanwhile() {
        let root = tempfile::tempdir().unwrap();
        // The clock was an hour ahead when the unpacking began, and was then set back.
        let began = SystemTime::now() + Duration::from_hours(1);
        fs::create_dir(root.path().join("implied")).unwrap();
        assert!(has_unlisted_dir(root.path(), began).unwrap());
    }

    #[test]
    fn only_a_plain_directory_is_unpacked_apart() {
        let root = tempfile::tempdir().unwrap();
        let bind = Mount {
            r#type: "bind".to_owned(),
            source: root.path().display().to_string(),
            options: vec!["rw".to_owned(), "rbind".to_owned()],
            ..Default::default()
        };
        let detached = DetachedLayer::of(std::slice::from_ref(&bind)).expect("it is one");
        let upper = format!("upperdir={}", root.path().display());
        assert_eq!(detached.mounts()[0].options, ["rw".to_owned(), upper]);
        assert!(
            DetachedLayer::of(&[Mount {
                r#type: "erofs".to_owned(),
                ..bind.clone()
            }])
            .is_none()
        );
        assert!(
            DetachedLayer::of(&[Mount {
                source: "/does/not/exist".to_owned(),
                ..bind
            }])
            .is_none()
        );
        assert!(DetachedLayer::of(&[]).is_none());
    }
}
