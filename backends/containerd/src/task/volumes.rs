//! Image volumes: directories of a task's own for the paths that its image declares, filled with what the image has there. Named
//! volumes begin so, too.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use switchyard_core::{Error, Result};
use switchyard_runtime_spec::ImageVolume;
use switchyard_steps::reach;

use super::TaskEntry;
use super::create::Plan;
use crate::backend::Inner;
use crate::steps::Step;
use crate::text::{blocking, io_error};

impl Inner {
    /// Makes and fills the directories of a task's image volumes, and of those named volumes that are not there yet.
    pub(super) async fn fill_volumes(&self, entry: &TaskEntry, plan: &Plan) -> Result<()> {
        let drafts = self.drafts(entry, plan).await?;
        let volumes: Vec<_> =
            plan.volumes.iter().chain(drafts.iter().map(|(draft, _)| draft)).cloned().collect();
        if volumes.is_empty() {
            return Ok(());
        }
        match &plan.image.top {
            Some(top) => {
                let fill = move |root: &Path| {
                    volumes.iter().try_for_each(|volume| fill(root, &volume.destination, &volume.source))
                };
                self.rootfs.with_view(&entry.snapshotter, top, fill).await?;
            }
            None => {
                blocking(move || volumes.iter().try_for_each(|volume| make(&volume.source))).await?;
            }
        }
        if !drafts.is_empty() {
            reach(Step::VolumeDrafted);
            let named = Arc::clone(&self.volumes);
            let place = move || drafts.iter().try_for_each(|(draft, name)| named.place(&draft.source, name));
            blocking(place).await?;
            reach(Step::VolumeNamed);
        }
        self.faults.reach(Step::TaskVolumes)
    }

    /// Those named volumes that are not there yet: where each is to be filled, and its path below the directory of all.
    async fn drafts(&self, entry: &TaskEntry, plan: &Plan) -> Result<Vec<(ImageVolume, String)>> {
        if plan.staging.volumes.is_empty() {
            return Ok(Vec::new());
        }
        let (all, id, named) = (plan.staging.volumes.clone(), entry.id, Arc::clone(&self.volumes));
        blocking(move || {
            let numbered = all.into_iter().enumerate();
            let fresh = numbered.filter(|(_, (_, volume))| !named.path(volume).exists());
            let draft = |(number, (destination, volume))| {
                (ImageVolume { destination, source: named.draft(id, number) }, volume)
            };
            Ok(fresh.map(draft).collect())
        })
        .await
    }
}

fn make(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|fault| io_error("make directory", path, fault))
}

/// Makes the directory `to` as the image's `path` is, with what is in it.
fn fill(root: &Path, path: &Path, to: &Path) -> Result<()> {
    make(to)?;
    match find_dir(root, path) {
        Ok(Some(from)) => copy_dir(&from, to).map_err(|fault| io_error("fill the image volume", to, fault)),
        Ok(None) => Ok(()),
        Err(fault) => {
            Err(Error::failed_precondition(format!("image volume {}", path.display())).with_source(fault))
        }
    }
}

/// The directory of the image at `path`, with no symbolic link on the way there: links are not followed out of the image.
fn find_dir(root: &Path, path: &Path) -> io::Result<Option<PathBuf>> {
    let mut found = root.to_path_buf();
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir => continue,
            Component::Normal(name) => found.push(name),
            Component::ParentDir | Component::Prefix(_) => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path goes up"));
            }
        }
        match fs::symlink_metadata(&found) {
            Ok(data) if data.is_dir() => {}
            Ok(_) => return Ok(None),
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(fault) => return Err(fault),
        }
    }
    Ok(Some(found))
}

/// Copies a directory: files, links, directories, owners and permissions. Devices and sockets are left out.
fn copy_dir(from: &Path, to: &Path) -> io::Result<()> {
    for item in fs::read_dir(from)? {
        let item = item?;
        let (source, target) = (item.path(), to.join(item.file_name()));
        let data = fs::symlink_metadata(&source)?;
        let kind = data.file_type();
        if kind.is_dir() {
            fs::create_dir_all(&target)?;
            copy_dir(&source, &target)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&source)?, &target)?;
            lchown(&target, Some(data.uid()), Some(data.gid()))?;
        } else if kind.is_file() {
            fs::copy(&source, &target)?;
            adopt(&data, &target)?;
        } else {
            tracing::debug!(name = ?OsStr::new(&item.file_name()), "neither file nor directory: not copied");
        }
    }
    adopt(&fs::symlink_metadata(from)?, to)
}

fn adopt(data: &fs::Metadata, target: &Path) -> io::Result<()> {
    lchown(target, Some(data.uid()), Some(data.gid()))?;
    fs::set_permissions(target, fs::Permissions::from_mode(data.mode() & 0o7777))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_begins_with_what_the_image_has_there() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        fs::create_dir_all(image.join("data/sub")).unwrap();
        fs::write(image.join("data/sub/file"), "x").unwrap();
        fs::set_permissions(image.join("data"), fs::Permissions::from_mode(0o1770)).unwrap();
        std::os::unix::fs::symlink("sub/file", image.join("data/link")).unwrap();
        let volume = dir.path().join("v/0");
        fill(&image, Path::new("/data"), &volume).unwrap();
        assert_eq!(fs::read_to_string(volume.join("link")).unwrap(), "x");
        assert_eq!(fs::metadata(&volume).unwrap().mode() & 0o7777, 0o1770);
    }

    #[test]
    fn a_link_in_the_image_does_not_lead_out_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        fs::create_dir_all(&image).unwrap();
        fs::create_dir_all(dir.path().join("secret")).unwrap();
        fs::write(dir.path().join("secret/key"), "x").unwrap();
        std::os::unix::fs::symlink("../secret", image.join("data")).unwrap();
        let volume = dir.path().join("v");
        fill(&image, Path::new("/data"), &volume).unwrap();
        assert_eq!(fs::read_dir(&volume).unwrap().count(), 0);
        assert!(fill(&image, Path::new("/../secret"), &volume).is_err());
    }
}
