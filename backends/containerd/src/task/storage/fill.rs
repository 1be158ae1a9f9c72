//! Image volumes: directories of a task's own for the paths that its image declares, filled with what the
//! image contains at these paths. New named volumes are filled in the same way.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use switchyard_core::spec::rooted;
use switchyard_core::threads::bulk;
use switchyard_core::{Error, Result};
use switchyard_crash_points::reach;
use switchyard_tree::{Budget, Cancel, Error as TreeError};

use crate::base::crash_points::CrashPoint;
use crate::base::fs::{CancelOnDrop, blocking, io_error, tree_error};
use crate::task::TaskEntry;
use crate::task::storage::Storage;
use crate::task::storage::plan::StoragePlan;

/// The share of the free space on its disk, in percent, that the volumes of a task may take when they are
/// filled.
const SHARE: u64 = 95;

/// A volume that is to be filled.
#[derive(Debug, Clone)]
struct EmptyVolume {
    /// The path in the image of what it is filled with.
    path: PathBuf,
    /// The directory that is filled. It need not exist yet.
    dir: PathBuf,
    /// True if it outlives its task, so that its content has to be on disk.
    is_lasting: bool,
    /// False if it stays empty.
    is_copied: bool,
}

impl Storage {
    /// Creates and fills the directories of a task's image volumes, and of those named volumes that do not
    /// exist yet.
    pub(crate) async fn fill_volumes(&self, entry: &TaskEntry, plan: &StoragePlan) -> Result<()> {
        let drafts = self.drafts(entry, plan).await?;
        let of_image = plan.volumes.iter().map(|volume| EmptyVolume {
            path: volume.destination.clone(),
            dir: volume.source.host_path(),
            is_lasting: false,
            is_copied: true,
        });
        let volumes: Vec<_> = of_image
            .chain(drafts.iter().map(|(draft, _)| draft.clone()))
            .collect();
        if volumes.is_empty() {
            return Ok(());
        }
        match &plan.image.top {
            Some(top) => {
                let guard = CancelOnDrop::default();
                let state = self.context.layout.state().to_path_buf();
                let cancel = guard.cancel();
                let fill = move |root: &Path| {
                    let free =
                        switchyard_tree::open(&state).and_then(|dir| Budget::of_free(dir, SHARE));
                    let mut budget = free
                        .map_err(|fault| io_error("read the free disk space of", &state, fault))?;
                    volumes
                        .iter()
                        .try_for_each(|volume| fill(root, volume, &mut budget, &cancel))
                };
                self.image_reader
                    .with_view(&entry.snapshotter, top, fill)
                    .await?;
            }
            None => {
                blocking(move || volumes.iter().try_for_each(|volume| make_dir(&volume.dir)))
                    .await?;
            }
        }
        if !drafts.is_empty() {
            reach(CrashPoint::VolumeDrafted);
            let named = Arc::clone(&self.volumes);
            let publish = move || {
                drafts
                    .iter()
                    .try_for_each(|(draft, name)| named.publish(&draft.dir, name))
            };
            // Publishing syncs directories.
            bulk(publish).await?;
            reach(CrashPoint::VolumeNamed);
        }
        self.context.faults.reach(CrashPoint::TaskVolumes)
    }

    /// The named volumes that do not exist yet: the directory in which each is to be filled, and its path
    /// below the directory of all volumes.
    async fn drafts(
        &self,
        entry: &TaskEntry,
        plan: &StoragePlan,
    ) -> Result<Vec<(EmptyVolume, String)>> {
        let wanted = plan.named_volumes().enumerate().map(|(number, named)| {
            let draft = self.volumes.draft(entry.id, number);
            let empty = EmptyVolume {
                path: named.destination.to_path_buf(),
                dir: draft,
                is_lasting: true,
                is_copied: named.copied,
            };
            (empty, named.volume.to_owned(), named.dir)
        });
        let wanted: Vec<_> = wanted.collect();
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        blocking(move || {
            let absent = wanted.into_iter().filter(|(_, _, dir)| !dir.exists());
            Ok(absent.map(|(empty, volume, _)| (empty, volume)).collect())
        })
        .await
    }
}

/// The places of the image's volumes, without duplicates, and those that are left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) volumes: Vec<PathBuf>,
    /// The root, and paths at or below kernel file systems: nothing of the image can be mounted there.
    pub(crate) left_out: Vec<PathBuf>,
}

/// The volumes that an image declares.
///
/// # Errors
/// `InvalidArgument`, naming the image, for more than `most`.
pub(crate) fn declared(image: &str, paths: &[PathBuf], most: usize) -> Result<Declared> {
    if paths.len() > most {
        let why = format!(
            "{image} declares {} volumes, more than {most}: [images] max_volumes",
            paths.len()
        );
        return Err(Error::invalid("image", why));
    }
    let mut declared = Declared::default();
    for path in paths {
        let clean = rooted(path);
        let list = if is_the_kernels(&clean) {
            &mut declared.left_out
        } else {
            &mut declared.volumes
        };
        if !list.contains(&clean) {
            list.push(clean);
        }
    }
    Ok(declared)
}

/// Returns whether a path is the root, or at or below a directory where the container has a kernel file
/// system.
fn is_the_kernels(path: &Path) -> bool {
    path == Path::new("/")
        || ["/proc", "/sys", "/dev"]
            .iter()
            .any(|dir| path.starts_with(dir))
}

fn make_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|fault| io_error("make directory", path, fault))
}

/// Creates the directory of a volume with the attributes and content that its path has in the image.
fn fill(root: &Path, volume: &EmptyVolume, budget: &mut Budget, cancel: &Cancel) -> Result<()> {
    let EmptyVolume {
        path,
        dir: to,
        is_lasting,
        is_copied,
    } = volume;
    make_dir(to)?;
    if !is_copied {
        return Ok(());
    }
    let from = switchyard_tree::open(root).and_then(|root| switchyard_tree::open_below(root, path));
    let from = match from {
        Ok(Some(from)) => from,
        Ok(None) => return Ok(()),
        Err(fault) => {
            return Err(
                Error::failed_precondition(format!("image volume {}", path.display()))
                    .with_source(fault),
            );
        }
    };
    let target = switchyard_tree::open(to).map_err(|fault| io_error("open", to, fault))?;
    let copied = if *is_lasting {
        switchyard_tree::copy_durably(from, target, budget, cancel)
    } else {
        switchyard_tree::copy(from, target, budget, cancel)
    };
    let copied = copied.map_err(|error| {
        let too_large = matches!(error, TreeError::TooLarge { .. });
        let error = tree_error("fill the image volume", path, error);
        let share = format!(
            "the volumes of a task may take {SHARE} % of what is free on the disk of {}",
            to.display()
        );
        if too_large {
            error.context(share)
        } else {
            error
        }
    })?;
    if copied.refused_attributes > 0 {
        tracing::warn!(
            volume = %path.display(),
            attributes = copied.refused_attributes,
            "the file system of the state directory does not support all attributes that files of the image have"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn volume(path: &str, dir: &Path) -> EmptyVolume {
        EmptyVolume {
            path: path.into(),
            dir: dir.to_owned(),
            is_lasting: true,
            is_copied: true,
        }
    }

    fn fill_all(image: &Path, path: &str, to: &Path) -> Result<()> {
        fill(
            image,
            &volume(path, to),
            &mut Budget::new(1 << 30, 1 << 20),
            &Cancel::default(),
        )
    }

    #[test]
    fn a_volume_begins_with_what_the_image_has_there() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        fs::create_dir_all(image.join("data/sub")).unwrap();
        fs::write(image.join("data/sub/file"), "x").unwrap();
        fs::set_permissions(image.join("data"), fs::Permissions::from_mode(0o1770)).unwrap();
        symlink("sub/file", image.join("data/link")).unwrap();
        let volume = dir.path().join("v/0");
        fill_all(&image, "/data", &volume).unwrap();
        assert_eq!(fs::read_to_string(volume.join("link")).unwrap(), "x");
        assert_eq!(fs::metadata(&volume).unwrap().mode() & 0o7777, 0o1770);
    }

    #[test]
    fn a_volume_that_copies_nothing_begins_empty() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        fs::create_dir_all(image.join("data")).unwrap();
        fs::write(image.join("data/file"), "x").unwrap();
        let to = dir.path().join("v");
        let empty = EmptyVolume {
            is_copied: false,
            ..volume("/data", &to)
        };
        let mut budget = Budget::new(1 << 30, 1 << 20);
        fill(&image, &empty, &mut budget, &Cancel::default()).unwrap();
        assert_eq!(fs::read_dir(&to).unwrap().count(), 0);
    }

    #[test]
    fn a_link_in_the_image_does_not_lead_out_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        fs::create_dir_all(&image).unwrap();
        fs::create_dir_all(dir.path().join("secret")).unwrap();
        fs::write(dir.path().join("secret/key"), "x").unwrap();
        symlink("../secret", image.join("data")).unwrap();
        let volume = dir.path().join("v");
        fill_all(&image, "/data", &volume).unwrap();
        assert_eq!(fs::read_dir(&volume).unwrap().count(), 0);
        assert!(fill_all(&image, "/../secret", &volume).is_err());
    }

    #[test]
    fn a_volume_that_takes_more_than_the_disk_has_is_refused_with_the_size_and_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        fs::create_dir_all(image.join("data")).unwrap();
        fs::write(image.join("data/file"), [1; 10_000]).unwrap();
        let target = dir.path().join("v");
        let mut budget = Budget::new(8192, 10);
        let refused = fill(
            &image,
            &volume("/data", &target),
            &mut budget,
            &Cancel::default(),
        )
        .unwrap_err();
        assert_eq!(
            refused.kind(),
            switchyard_core::ErrorKind::ResourceExhausted
        );
        for part in ["/data", "8192 bytes", "95 %", target.to_str().unwrap()] {
            assert!(
                refused.report().contains(part),
                "{part}: {}",
                refused.report()
            );
        }
    }

    #[test]
    fn each_volume_is_declared_once_and_what_the_kernel_shows_is_none() {
        let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        let all = [
            "/data",
            "/data/",
            "//data/.",
            "/proc",
            "/proc/sys/",
            "/sys/fs/cgroup",
            "/dev",
            "/",
            "/processes",
            "data",
            "relative/dir",
            "/a/../b",
            ":colon",
            "../up",
            "/x/../proc",
        ];
        let found = declared("a:1", &paths(&all), 15).unwrap();
        let places = [
            "/data",
            "/processes",
            "/relative/dir",
            "/b",
            "/:colon",
            "/up",
        ];
        assert_eq!(found.volumes, paths(&places));
        assert_eq!(
            found.left_out,
            paths(&["/proc", "/proc/sys", "/sys/fs/cgroup", "/dev", "/"])
        );
        let refused = declared("a:1", &paths(&all), 14).unwrap_err().to_string();
        for part in [
            "a:1 declares 15 volumes",
            "more than 14",
            "[images] max_volumes",
        ] {
            assert!(refused.contains(part), "{refused}");
        }
    }
}
