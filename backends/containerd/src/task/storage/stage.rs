//! Staged mounts: what a runtime needs on the host while it creates a container, and nobody needs afterwards.
//! These are images that are volumes of the task, paths into which tasks can put symbolic links, and paths
//! and layers whose ids are mapped into the sandbox's user namespace.
//!
//! All of them are mounted below one directory of the task right before its process is created, and unmounted
//! right after: by then the container has its own copies of the mounts. The view snapshot of each image stays
//! as long as the task, so that its files do.

use std::collections::HashMap;
use std::net::ToSocketAddrs;
use std::path::Path;

use containerd_client::services::v1::snapshots as snap;
use containerd_client::types::Mount;
use nix::errno::Errno;
use switchyard_core::{Error, Reason, Result, SpecPart};
use switchyard_namespaces::mounts::{DetachedMount, PathHandle};
use switchyard_namespaces::tasks::unmount_tree;
use switchyard_runtime_spec::SandboxUsers;

use crate::base::crash_points::CrashPoint;
use crate::base::error::from_namespaces;
use crate::base::fs::{blocking, create_private_dir_blocking, io_error, remove_tree};
use crate::base::mount::mount_all;
use crate::client::{QUICK, call, ignore_not_found};
use crate::node::userns;
use crate::record::{NfsRecord, StagedRecord};
use crate::task::TaskEntry;
use crate::task::storage::Storage;

impl Storage {
    /// Prepares the view snapshots of a task's images. Labels of its container object keep them.
    pub(crate) async fn view_images(&self, entry: &TaskEntry) -> Result<()> {
        let images = entry.record().image_views();
        if images.is_empty() {
            return Ok(());
        }
        for (key, top) in images {
            let request = snap::ViewSnapshotRequest {
                snapshotter: entry.snapshotter.clone(),
                key: key.clone(),
                parent: top,
                ..Default::default()
            };
            call(
                &format!("view snapshot {key}"),
                QUICK,
                self.client.snapshots().view(request),
            )
            .await
            .map_err(image_volume_failed)?;
        }
        self.context.faults.reach(CrashPoint::TaskViewed)
    }

    /// Removes the view snapshots of a task's images. Idempotent.
    pub(crate) async fn remove_views(&self, entry: &TaskEntry) -> Result<()> {
        let images = entry.record().image_views();
        for (key, _) in images {
            let what = format!("remove snapshot {key}");
            let request = snap::RemoveSnapshotRequest {
                snapshotter: entry.snapshotter.clone(),
                key,
            };
            ignore_not_found(call(&what, QUICK, self.client.snapshots().remove(request)).await)?;
        }
        Ok(())
    }

    /// Mounts everything that the runtime needs below the staging directory; returns the mounts of the root
    /// file system, with their ids mapped if the sandbox has a user namespace. Mounts that a killed
    /// predecessor staged are removed first.
    pub(crate) async fn stage(
        &self,
        entry: &TaskEntry,
        users: Option<SandboxUsers>,
        rootfs: Vec<Mount>,
    ) -> Result<Vec<Mount>> {
        let records = entry.record().staged.clone();
        let nfs = entry.record().nfs.clone();
        if records.is_empty() && nfs.is_empty() && users.is_none() {
            return Ok(rootfs);
        }
        self.unstage(entry).await?;
        let views = self.mounts_of_views(entry, &records).await?;
        let dir = entry.dirs.stage.clone();
        // A thread that hangs between two mounts would continue after the undo, so everything that can hang
        // is accessed before.
        let to_open = records.clone();
        let on_host = !nfs.is_empty() || records.iter().any(StagedRecord::is_on_host);
        let open = move || -> Result<_> { Ok((open_sources(&to_open)?, mount_exports(nfs)?)) };
        let (opened, exports) = if on_host {
            let owner = entry.record().meta.owner()?;
            self.blocking_pools
                .of(owner)
                .run(format!("sandbox {}", entry.sandbox), open)
                .await?
        } else {
            open()?
        };
        let rootfs = blocking(move || {
            create_private_dir_blocking(&dir)?;
            for (at, export) in exports {
                let target = dir.join(at);
                make_dir(&target)?;
                export.move_to(&target).map_err(from_namespaces)?;
            }
            for record in &records {
                mount_staged(record, &opened, &views, users.as_ref(), &dir)?;
            }
            match &users {
                Some(users) => userns::idmap_mounts(rootfs, users, &dir.join("root")),
                None => Ok(rootfs),
            }
        })
        .await?;
        self.context.faults.reach(CrashPoint::TaskStaged)?;
        Ok(rootfs)
    }

    /// The mounts of the view snapshots, by key.
    async fn mounts_of_views(
        &self,
        entry: &TaskEntry,
        records: &[StagedRecord],
    ) -> Result<HashMap<String, Vec<Mount>>> {
        let mut views = HashMap::new();
        for (_, key, _) in records.iter().filter_map(StagedRecord::view) {
            let request = snap::MountsRequest {
                snapshotter: entry.snapshotter.clone(),
                key: key.to_owned(),
            };
            let what = format!("look up the mounts of snapshot {key}");
            let mounts = call(&what, QUICK, self.client.snapshots().mounts(request))
                .await?
                .mounts;
            let label = entry.record().mount_label.clone();
            views.insert(key.to_owned(), labelled(mounts, label.as_deref()));
        }
        Ok(views)
    }

    /// Unmounts and removes what was staged for the runtime. Idempotent.
    pub(crate) async fn unstage(&self, entry: &TaskEntry) -> Result<()> {
        clear_stage(&entry.dirs.stage).await
    }
}

/// Adds the mount option that gives all files this SELinux label.
pub(crate) fn labelled(mut mounts: Vec<Mount>, label: Option<&str>) -> Vec<Mount> {
    let option = label.map(|label| format!("context=\"{label}\""));
    for mount in &mut mounts {
        mount.options.extend(option.clone());
    }
    mounts
}

/// The error for an image of a volume that cannot be resolved, viewed or mounted.
pub(super) fn image_volume_failed(error: Error) -> Error {
    error
        .context("the image of a volume")
        .with_reason(Reason::ImageVolume)
}

/// Unmounts everything below a staging directory and removes the directory. Idempotent.
pub(crate) async fn clear_stage(dir: &Path) -> Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    unmount_tree(dir.to_path_buf())
        .await
        .map_err(from_namespaces)?;
    // Nothing is mounted below it any more, so only mount points are removed.
    remove_tree(dir).await
}

/// Opens the paths of staged mounts into which tasks can put links, by their names in the staging directory,
/// and accesses the other paths of the host. Blocks on the host's file systems.
fn open_sources(records: &[StagedRecord]) -> Result<HashMap<String, PathHandle>> {
    let mut opened = HashMap::new();
    for record in records {
        match record {
            StagedRecord::Path { at: _, source } => {
                // Only makes the file system answer: a missing path is reported by the mount.
                let _ = source.exists();
            }
            StagedRecord::Beneath {
                at,
                root,
                path,
                shared: _,
            } => {
                // It has the number of its mount, unless the task has not asked for it.
                let number: Option<usize> = at.parse().ok();
                let handle = PathHandle::open_beneath(root, path).map_err(|fault| {
                    let field = number
                        .map_or_else(|| "mounts".to_owned(), |number| format!("mounts[{number}]"));
                    let error = not_opened(&field, &root.join(path), fault);
                    match number {
                        Some(number) => error.about(SpecPart::Mount(number)),
                        None => error,
                    }
                })?;
                opened.insert(at.clone(), handle);
            }
            StagedRecord::Image { .. } => {}
        }
    }
    Ok(opened)
}

/// The error for the path of a mount that cannot be opened when the task starts. That of a volume is not looked at before: a
/// task that starts earlier may make it.
pub(super) fn not_opened(field: &str, path: &Path, fault: switchyard_namespaces::Error) -> Error {
    let path = path.display();
    let cause = if let switchyard_namespaces::Error::File { source, .. } = &fault {
        source.raw_os_error().map(Errno::from_raw)
    } else {
        None
    };
    let why = match cause {
        Some(Errno::ENOENT | Errno::ENOTDIR) => {
            format!(
                "{path} does not exist: create it before the task starts, or mount a path that exists"
            )
        }
        Some(Errno::ELOOP) => format!(
            "{path} leads through a symbolic link, or was replaced by one after it had been checked: mount the path that \
             the link leads to"
        ),
        _ => format!("{path} cannot be opened as the source of a mount"),
    };
    Error::invalid(field, why).with_source(fault)
}

/// Mounts NFS exports without a place, each with its name in the staging directory. Blocks as long as a server does not
/// answer.
fn mount_exports(records: Vec<NfsRecord>) -> Result<Vec<(String, DetachedMount)>> {
    let named = |record: NfsRecord| {
        // It has the number of its mount.
        let number = record.at.parse();
        mount_export(record).map_err(|error| match number {
            Ok(number) => error.about(SpecPart::Mount(number)),
            Err(_) => error,
        })
    };
    records.into_iter().map(named).collect()
}

fn mount_export(record: NfsRecord) -> Result<(String, DetachedMount)> {
    let NfsRecord {
        at,
        export,
        server,
        mut options,
    } = record;
    let failed = || format!("mount the NFS export {export} of {server}");
    // The kernel takes addresses alone.
    let address = (server.as_str(), 0)
        .to_socket_addrs()
        .ok()
        .and_then(|mut found| found.next());
    let address = address.ok_or_else(|| {
        let why = format!("{}: the server is not found", failed());
        Error::failed_precondition(why)
    })?;
    options.push(format!("addr={}", address.ip()));
    match DetachedMount::new("nfs", &export, &options) {
        Ok(mounted) => Ok((at, mounted)),
        Err(fault) => Err(Error::failed_precondition(failed()).with_source(fault)),
    }
}

/// Mounts one source below the staging directory: a path of the host with its ids mapped, the path among
/// `opened` with its name, or the mounts of its view snapshot among `views`.
fn mount_staged(
    record: &StagedRecord,
    opened: &HashMap<String, PathHandle>,
    views: &HashMap<String, Vec<Mount>>,
    users: Option<&SandboxUsers>,
    dir: &Path,
) -> Result<()> {
    match record {
        StagedRecord::Path { at, source } => {
            let Some(users) = users else {
                return Err(Error::internal(format!(
                    "cannot map the ids of {}: the sandbox has no user namespace",
                    source.display()
                )));
            };
            let target = dir.join(at);
            // A file is mounted on a file.
            if source.is_dir() {
                make_dir(&target)?;
            } else {
                std::fs::write(&target, []).map_err(|fault| io_error("write", &target, fault))?;
            }
            match userns::idmap_mount(users, source, &target) {
                // What a device has is for all to read, and may be on a file system whose ids this kernel cannot map, such
                // as a socket below /run.
                Err(_) if record.is_of_device() => bind_mount(source, &target),
                mounted => mounted,
            }
        }
        StagedRecord::Beneath {
            at,
            root,
            path,
            shared,
        } => {
            let Some(handle) = opened.get(at) else {
                return Err(Error::internal(format!(
                    "{} was not opened",
                    root.join(path).display()
                )));
            };
            handle
                .bind_mount_at(&dir.join(at), *shared)
                .map_err(from_namespaces)
        }
        StagedRecord::Image { at, key, top: _ } => {
            let target = dir.join(at);
            make_dir(&target)?;
            let mounts = views.get(key).cloned().unwrap_or_default();
            let mounts = match users {
                Some(users) => {
                    userns::idmap_mounts(mounts, users, &dir.join(format!("layers-{at}")))
                }
                None => Ok(mounts),
            };
            mounts
                .and_then(|mounts| mount_all(&mounts, &target))
                .map_err(image_volume_failed)
        }
    }
}

fn bind_mount(source: &Path, target: &Path) -> Result<()> {
    let mount = Mount {
        r#type: "bind".to_owned(),
        source: source.display().to_string(),
        options: vec!["rbind".to_owned()],
        ..Mount::default()
    };
    mount_all(&[mount], target)
}

fn make_dir(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|fault| io_error("make directory", dir, fault))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use switchyard_core::spec::{IdMap, IdRange, UserNamespace};
    use switchyard_namespaces::mounts;

    use super::*;

    #[test]
    fn what_devices_mount_need_not_have_mapped_ids() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("dir");
        let file = root.path().join("file");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("inside"), "x").unwrap();
        fs::write(&file, "x").unwrap();
        let ids = IdMap::new(vec![IdRange {
            inside: 0,
            host: 100_000,
            length: 65_536,
        }])
        .unwrap();
        // The kernel maps no ids by the first user namespace, whatever the file system is.
        let users = SandboxUsers {
            path: "/proc/self/ns/user".into(),
            map: UserNamespace {
                uids: ids.clone(),
                gids: ids,
            },
        };
        let stage = root.path().join("stage");
        fs::create_dir(&stage).unwrap();
        for (at, source, is_mounted) in [
            ("cdi-0", dir.clone(), true),
            ("cdi-1", file.clone(), true),
            ("cdi-2", root.path().join("missing"), false),
            ("0", dir.clone(), false),
            ("1", file.clone(), false),
            ("volume-0", dir, false),
        ] {
            let record = StagedRecord::Path {
                at: at.to_owned(),
                source,
            };
            let none = HashMap::new();
            let staged = mount_staged(&record, &none, &HashMap::new(), Some(&users), &stage);
            assert_eq!(staged.is_ok(), is_mounted, "{at}: {staged:?}");
        }
        let read = |place: &str| fs::read_to_string(stage.join(place));
        let found = (read("cdi-0/inside"), read("cdi-1"));
        let points = mounts::mount_points_under(&stage).unwrap();
        mounts::unmount_tree(&stage).unwrap();
        assert_eq!(
            (found.0.unwrap(), found.1.unwrap()),
            ("x".into(), "x".into())
        );
        assert_eq!(points.len(), 2, "{points:?}");
    }

    #[test]
    fn source_that_cannot_be_opened_is_named_with_what_to_do() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        fs::create_dir(root.join("dir")).unwrap();
        fs::write(root.join("file"), "x").unwrap();
        std::os::unix::fs::symlink("dir", root.join("link")).unwrap();
        let (missing, link) = (Some("does not exist: create it"), Some("a symbolic link"));
        for (at, root, path, expected) in [
            ("0", root.clone(), "dir", None),
            ("1", root.clone(), "file", None),
            ("2", root.clone(), "none", missing),
            ("3", root.clone(), "none/below", missing),
            ("4", root.clone(), "dir/none", missing),
            ("5", root.clone(), "file/below", missing),
            ("6", root.join("none"), "dir", missing),
            ("7", root.clone(), "link", link),
            ("8", root.clone(), "../dir", Some("cannot be opened")),
        ] {
            let whole = root.join(path);
            let record = StagedRecord::Beneath {
                at: at.to_owned(),
                root,
                path: path.into(),
                shared: false,
            };
            let error = open_sources(&[record]).err();
            assert_eq!(error.is_some(), expected.is_some(), "{path}: {error:?}");
            let (Some(error), Some(expected)) = (error, expected) else {
                continue;
            };
            let report = error.report();
            let begin = format!("mounts[{at}]: {} ", whole.display());
            assert!(
                report.starts_with(&begin) && report.contains(expected),
                "{report}"
            );
            assert_eq!(error.part(), Some(SpecPart::Mount(at.parse().unwrap())));
        }
    }
}
