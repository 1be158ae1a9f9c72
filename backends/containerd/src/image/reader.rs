//! Looks into an image: for its account files, its `/dev`, and the initial contents of its volumes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use containerd_client::services::v1::snapshots as snap;
use containerd_client::types::Mount;
use parking_lot::Mutex;
use switchyard_core::Result;
use switchyard_core::spec::UserSpec;
use switchyard_core::threads::bulk;
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_runtime_spec::user::{self, AccountFiles, Accounts};
use switchyard_runtime_spec::{ResolvedUser, rootfs};

use super::snapshots::{self, view_prefix};
use crate::base::fs::{create_private_dir, io_error};
use crate::base::mount::{mount_all, unmount_all};
use crate::client::{Client, QUICK, call, ignore_not_found};

/// Reads images through short-lived view snapshots, and caches what creations of tasks need of them.
#[derive(Debug)]
pub(crate) struct ImageReader {
    client: Client,
    views: PathBuf,
    /// The largest account file that is read, in bytes.
    largest: u64,
    /// Images whose root file system was looked at, by their top layer, with their account files if those were
    /// needed.
    known: Mutex<HashMap<String, Option<Arc<Accounts>>>>,
}

/// So many images are cached at most.
const MAX_CACHED: usize = 128;

/// Account files of an image that are larger in total, in bytes, are not cached but read each time.
const MAX_CACHED_BYTES: u64 = 64 << 10;

/// The result of looking at the root file system of an image.
enum AccountLookup {
    /// Nothing in it decides on the user.
    NotNeeded,
    /// The files are small: their contents.
    Cacheable(Accounts),
    /// The files are too large to be cached: the user that was asked for.
    Resolved(ResolvedUser),
}

impl ImageReader {
    pub(crate) fn new(client: Client, views: PathBuf, largest: u64) -> Self {
        Self {
            client,
            views,
            largest,
            known: Mutex::default(),
        }
    }

    /// The numeric ids of the user that a task runs as. `top` is the snapshot of the image's top layer, if it
    /// has layers. An image is looked at once, also for its `/dev` ([`rootfs::check_dev`]).
    ///
    /// # Errors
    /// `InvalidArgument` if the image has no such user or group; `FailedPrecondition` if its account files
    /// cannot be read or are too large, or its `/dev` is no directory.
    pub(crate) async fn resolve_user(
        &self,
        snapshotter: &str,
        top: Option<&str>,
        spec: &UserSpec,
        image_user: &str,
    ) -> Result<ResolvedUser> {
        let by_numbers = || user::resolve(spec, image_user, &Accounts::default());
        let Some(top) = top else { return by_numbers() };
        let needed = user::needs_rootfs(spec, image_user);
        let known = self.known.lock().get(top).cloned();
        match known {
            Some(_) if !needed => return by_numbers(),
            Some(Some(accounts)) => return user::resolve(spec, image_user, &accounts),
            Some(None) | None => {}
        }
        let asked = spec.clone();
        let by_image = image_user.to_owned();
        let largest = self.largest;
        let read = move |root: &Path| {
            rootfs::check_dev(root)?;
            if !needed {
                return Ok(AccountLookup::NotNeeded);
            }
            let files = AccountFiles::open(root, largest)?;
            if files.bytes() <= MAX_CACHED_BYTES {
                return files.read().map(AccountLookup::Cacheable);
            }
            files
                .resolve(&asked, &by_image)
                .map(AccountLookup::Resolved)
        };
        match self.with_view(snapshotter, top, read).await? {
            AccountLookup::NotNeeded => {
                self.remember(top, None);
                by_numbers()
            }
            AccountLookup::Resolved(user) => {
                self.remember(top, None);
                Ok(user)
            }
            AccountLookup::Cacheable(accounts) => {
                let accounts = Arc::new(accounts);
                self.remember(top, Some(Arc::clone(&accounts)));
                user::resolve(spec, image_user, &accounts)
            }
        }
    }

    fn remember(&self, top: &str, accounts: Option<Arc<Accounts>>) {
        let mut known = self.known.lock();
        if known.len() >= MAX_CACHED {
            known.clear();
        }
        known.insert(top.to_owned(), accounts);
    }

    /// Calls `read` with the root file system of an image, which is mounted read-only during the call.
    pub(crate) async fn with_view<T: Send + 'static>(
        &self,
        snapshotter: &str,
        top: &str,
        read: impl FnOnce(&Path) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let key = snapshots::new_key(&self.client, &view_prefix(&self.client));
        let root = crate::image::rfc3339(SystemTime::now());
        let request = snap::ViewSnapshotRequest {
            snapshotter: snapshotter.to_owned(),
            key: key.clone(),
            parent: top.to_owned(),
            labels: HashMap::from([("containerd.io/gc.root".to_owned(), root)]),
        };
        let viewed = call(
            &format!("view snapshot {top}"),
            QUICK,
            self.client.snapshots().view(request),
        )
        .await;
        let target = self.views.join(&key);
        let result = async {
            let mounts = viewed?.mounts;
            reach(CrashPoint::ViewMade);
            create_private_dir(&target).await?;
            let target = target.clone();
            bulk(move || read_mounted(mounts, &target, read)).await
        };
        let result = result.await;
        // Also after an error: a view whose creation timed out may exist, and as a GC root it would never be
        // collected.
        let request = snap::RemoveSnapshotRequest {
            snapshotter: snapshotter.to_owned(),
            key: key.clone(),
        };
        let removed = call(
            &format!("remove view {key}"),
            QUICK,
            self.client.snapshots().remove(request),
        )
        .await;
        let result = result?;
        ignore_not_found(removed)?;
        Ok(result)
    }
}

fn read_mounted<T>(
    mut mounts: Vec<Mount>,
    target: &Path,
    read: impl FnOnce(&Path) -> Result<T>,
) -> Result<T> {
    // The mount is only read: nothing in it is ever executed or opened as a device.
    for mount in &mut mounts {
        mount
            .options
            .extend(["nosuid", "nodev", "noexec"].map(str::to_owned));
    }
    let result = mount_all(&mounts, target).and_then(|()| {
        reach(CrashPoint::ViewMounted);
        read(target)
    });
    unmount_all(target)?;
    reach(CrashPoint::ViewUnmounted);
    std::fs::remove_dir(target).map_err(|fault| io_error("remove", target, fault))?;
    result
}
