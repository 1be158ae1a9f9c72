//! Unpacking a layer without those below it, so that layers need not wait for each other.
//!
//! Only one thing needs what is below: a directory that a layer has files in and does not list. Such a directory takes owner and
//! mode from the layers below, and unpacked apart it gets a default. It shows by its time of change, which is the time of
//! unpacking, where a directory that is listed has the time that the list says. A layer with one is unpacked once more, in its
//! place. So is one amid which the clock was set back: that shows by the time when the kernel last touched a directory, which
//! nobody else can set, and which is then before the unpacking began.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use containerd_client::types::Mount;
use switchyard_core::threads::bulk;

/// File systems stamp with a clock that is coarser than ours.
const CLOCK_GRANULARITY: Duration = Duration::from_secs(1);

/// Where a layer is unpacked apart, and since when.
pub(crate) struct DetachedLayer {
    upper: PathBuf,
    options: Vec<String>,
    unpack_began: SystemTime,
}

impl DetachedLayer {
    /// From the mounts of a snapshot without a parent; `None` unless it is a plain directory that this process can see.
    pub(crate) fn of(mounts: &[Mount]) -> Option<Self> {
        let [mount] = mounts else { return None };
        let upper = PathBuf::from(&mount.source);
        if mount.r#type != "bind" || !upper.is_dir() {
            return None;
        }
        let options = mount.options.iter().filter(|option| !option.ends_with("bind")).cloned().collect();
        Some(Self { upper, options, unpack_began: SystemTime::now() - CLOCK_GRANULARITY })
    }

    /// The directory as the upper one of an overlay, so that removals of files below are kept as an overlay keeps them.
    pub(crate) fn mounts(&self) -> Vec<Mount> {
        let mut options = self.options.clone();
        options.push(format!("upperdir={}", self.upper.display()));
        let kind = "overlay".to_owned();
        vec![Mount { r#type: kind.clone(), source: kind, options, ..Default::default() }]
    }

    /// Whether the layer lists all its directories. If that cannot be seen, it does not.
    pub(crate) async fn lists_all_dirs(&self) -> bool {
        let upper = self.upper.clone();
        let began = self.unpack_began;
        let doubtful = bulk(move || Ok(has_unlisted_dir(&upper, began))).await;
        match doubtful {
            Ok(Ok(doubtful)) => !doubtful,
            Ok(Err(fault)) => {
                tracing::debug!(upper = %self.upper.display(), error = %fault, "a layer cannot be looked at");
                false
            }
            Err(_) => false,
        }
    }
}

/// Whether a directory below `root`, which was unpacked since then, may not have been listed.
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

/// When the kernel last changed anything of it.
fn change_time(meta: &std::fs::Metadata) -> SystemTime {
    // A clock before 1970 is not one that times can be compared by.
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
            File::open(dir).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        assert!(!has_unlisted_dir(root.path(), began).unwrap());
        fs::create_dir(listed.join("implied")).unwrap();
        File::open(&listed).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(has_unlisted_dir(root.path(), began).unwrap());
    }

    #[test]
    fn no_directory_is_taken_for_listed_when_the_clock_was_set_back_meanwhile() {
        let root = tempfile::tempdir().unwrap();
        // As it looks when the clock was an hour ahead as the unpacking began.
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
        let apart = DetachedLayer::of(std::slice::from_ref(&bind)).expect("it is one");
        let upper = format!("upperdir={}", root.path().display());
        assert_eq!(apart.mounts()[0].options, ["rw".to_owned(), upper]);
        assert!(DetachedLayer::of(&[Mount { r#type: "erofs".to_owned(), ..bind.clone() }]).is_none());
        assert!(DetachedLayer::of(&[Mount { source: "/does/not/exist".to_owned(), ..bind }]).is_none());
        assert!(DetachedLayer::of(&[]).is_none());
    }
}
