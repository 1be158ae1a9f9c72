//! Looking into an image: for its users, and for what its volumes begin with.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use containerd_client::services::v1::snapshots as snap;
use containerd_client::types::Mount;
use switchyard_core::Result;
use switchyard_core::spec::UserSpec;
use switchyard_runtime_spec::ResolvedUser;
use switchyard_runtime_spec::user::{self, Accounts};
use switchyard_steps::{Step, reach};

use crate::client::{Client, QUICK, call, gone_is_done};
use crate::image::lease::getrandom_fill;
use crate::mount::{mount_all, unmount_all};
use crate::text::{blocking, io_error, make_dir};

/// Views of images begin so; what a killed predecessor left is found by it.
pub(crate) fn view_prefix(client: &Client) -> String {
    format!("switchyard-view-{}-", client.instance())
}

/// Reads images through short-lived views of their snapshots, and remembers their account files.
#[derive(Debug)]
pub(crate) struct Rootfs {
    client: Client,
    views: PathBuf,
    accounts: Mutex<HashMap<String, Arc<Accounts>>>,
}

/// How many images' account files are remembered.
const REMEMBERED: usize = 128;

impl Rootfs {
    pub(crate) fn new(client: Client, views: PathBuf) -> Self {
        Self { client, views, accounts: Mutex::default() }
    }

    /// The numbers of the user that a task runs as.
    ///
    /// # Errors
    /// `InvalidArgument` if the image has no such user or group.
    pub(crate) async fn resolve_user(
        &self,
        snapshotter: &str,
        top: Option<&str>,
        spec: &UserSpec,
        image_user: &str,
    ) -> Result<ResolvedUser> {
        let accounts = match top {
            Some(top) if user::needs_rootfs(spec, image_user) => self.accounts(snapshotter, top).await?,
            Some(_) | None => Arc::default(),
        };
        user::resolve(spec, image_user, &accounts)
    }

    async fn accounts(&self, snapshotter: &str, top: &str) -> Result<Arc<Accounts>> {
        let known = self.accounts.lock().unwrap_or_else(PoisonError::into_inner).get(top).cloned();
        if let Some(accounts) = known {
            return Ok(accounts);
        }
        let accounts = Arc::new(self.with_view(snapshotter, top, Accounts::read).await?);
        let mut remembered = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= REMEMBERED {
            remembered.clear();
        }
        remembered.insert(top.to_owned(), Arc::clone(&accounts));
        Ok(accounts)
    }

    /// Calls `look` with the root file system of an image, mounted read-only for as long as it takes.
    pub(crate) async fn with_view<T: Send + 'static>(
        &self,
        snapshotter: &str,
        top: &str,
        look: impl FnOnce(&Path) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let mut random = [0; 8];
        getrandom_fill(&mut random);
        let key = format!("{}{}", view_prefix(&self.client), hex::encode(random));
        let root = crate::image::rfc3339(SystemTime::now());
        let request = snap::ViewSnapshotRequest {
            snapshotter: snapshotter.to_owned(),
            key: key.clone(),
            parent: top.to_owned(),
            labels: HashMap::from([("containerd.io/gc.root".to_owned(), root)]),
        };
        let viewed =
            call(&format!("view snapshot {top}"), QUICK, self.client.snapshots().view(request)).await;
        let target = self.views.join(&key);
        let looked = async {
            let mounts = viewed?.mounts;
            reach(Step::ViewMade);
            make_dir(&target).await?;
            let target = target.clone();
            blocking(move || look_into(mounts, &target, look)).await
        };
        let looked = looked.await;
        // Also after an error: a view that was not answered in time may have been made, and nobody else would collect it.
        let request = snap::RemoveSnapshotRequest { snapshotter: snapshotter.to_owned(), key: key.clone() };
        let removed =
            call(&format!("remove view {key}"), QUICK, self.client.snapshots().remove(request)).await;
        let looked = looked?;
        gone_is_done(removed)?;
        Ok(looked)
    }
}

fn look_into<T>(mut mounts: Vec<Mount>, target: &Path, look: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    // It is looked at: nothing of it is ever run, or opened as a device.
    for mount in &mut mounts {
        mount.options.extend(["nosuid", "nodev", "noexec"].map(str::to_owned));
    }
    let looked = mount_all(&mounts, target).and_then(|()| {
        reach(Step::ViewMounted);
        look(target)
    });
    unmount_all(target)?;
    reach(Step::ViewUnmounted);
    std::fs::remove_dir(target).map_err(|fault| io_error("remove", target, fault))?;
    looked
}
