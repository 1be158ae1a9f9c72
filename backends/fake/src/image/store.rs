//! The images of a backend: pulls, which share downloads, and the local store.

use std::path::PathBuf;

use futures::FutureExt;
use futures::future::BoxFuture;
use switchyard_core::id::Owner;
use switchyard_core::image::{
    Credentials, Image, ImageId, ImageLease, ImageReference, ImageStore, InUse, LoadRequest,
    PullProgress, PullRequest,
};
use switchyard_core::stats::DiskUsage;
use switchyard_core::{Error, Result};

use super::{Download, FakeImage, LocalImage};
use crate::Fake;
use crate::session::Method;

impl ImageStore for Fake {
    fn pull<'a>(&'a self, request: &'a PullRequest) -> BoxFuture<'a, Result<ImageId>> {
        Box::pin(async move {
            let reference: ImageReference = request.reference.parse()?;
            let credentials = request.credentials.clone();
            let owner = request.owner;
            let shared = {
                let mut state = self.world.lock();
                // Under the lock: a download of a killed daemon must not be joined by the one that follows.
                if self.session.is_killed() {
                    drop(state);
                    return std::future::pending().await;
                }
                let downloads = &mut state.images.downloads;
                downloads.retain(|one| {
                    one.result
                        .upgrade()
                        .is_some_and(|result| result.peek().is_none())
                });
                let same = |one: &&Download| {
                    one.reference == reference
                        && one.credentials == credentials
                        && one.owner == owner
                };
                match downloads
                    .iter()
                    .find(same)
                    .and_then(|one| one.result.upgrade())
                {
                    Some(result) => result,
                    None => {
                        let result = self
                            .clone()
                            .download(reference.clone(), credentials.clone(), owner)
                            .boxed()
                            .shared();
                        let weak = result.downgrade().expect("it has not been polled");
                        downloads.push(Download {
                            reference,
                            credentials,
                            owner,
                            result: weak,
                        });
                        result
                    }
                }
            };
            shared.await
        })
    }

    /// An archive is a file that contains the reference of an image in the simulated registry.
    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<ImageId>> {
        Box::pin(async move {
            let LoadRequest {
                archive,
                reference: _,
                handler: _,
                owner,
            } = request;
            let text = std::io::read_to_string(archive).map_err(|fault| {
                Error::invalid("archive", "it cannot be read").with_source(fault)
            })?;
            let named: ImageReference = text
                .trim()
                .parse()
                .map_err(|fault| Error::from(fault).context("it is no archive"))?;
            let effect = || self.world.lock().images.load(&named, owner);
            self.session
                .act(Method::Load, named.to_string(), effect)
                .await
        })
    }

    fn progress(&self, request: &PullRequest) -> Option<PullProgress> {
        let wanted: ImageReference = request.reference.parse().ok()?;
        let state = self.world.lock();
        let pulled = state.images.downloads.iter().any(|one| {
            one.reference == wanted
                && one
                    .result
                    .upgrade()
                    .is_some_and(|result| result.peek().is_none())
        });
        if pulled { state.images.progress } else { None }
    }

    fn config<'a>(&'a self, id: &'a ImageId) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let effect = || {
                let state = self.world.lock();
                let found = state
                    .images
                    .find(id.as_str())
                    .ok_or_else(|| Error::not_found(format!("image {id}")))?;
                let FakeImage { user, config, .. } = &found.image;
                let comma = if config.is_empty() { "" } else { "," };
                Ok(format!(
                    "{{\"os\":\"linux\",\"config\":{{\"User\":{user:?}{comma}{config}}}}}"
                ))
            };
            self.session.act(Method::GetImage, id, effect).await
        })
    }

    fn get<'a>(&'a self, reference: &'a str) -> BoxFuture<'a, Result<Option<Image>>> {
        Box::pin(async move {
            let effect = || {
                Ok(self
                    .world
                    .lock()
                    .images
                    .find(reference)
                    .map(LocalImage::describe))
            };
            self.session.act(Method::GetImage, reference, effect).await
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Image>>> {
        Box::pin(async move {
            let effect = || {
                Ok(self
                    .world
                    .lock()
                    .images
                    .local
                    .values()
                    .map(LocalImage::describe)
                    .collect())
            };
            self.session.act(Method::ListImages, "", effect).await
        })
    }

    fn remove<'a>(
        &'a self,
        reference: &'a str,
        owner: Owner,
        in_use: &'a InUse<'a>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let effect = || self.world.lock().images.remove(reference, owner, in_use);
            self.session
                .act(Method::RemoveImage, reference, effect)
                .await
        })
    }

    fn leases(&self) -> BoxFuture<'_, Result<Vec<ImageLease>>> {
        // Nothing is kept but images.
        Box::pin(async { Ok(Vec::new()) })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Vec<DiskUsage>>> {
        Box::pin(async move {
            let effect = || {
                let state = self.world.lock();
                Ok(vec![DiskUsage {
                    at: std::time::SystemTime::now(),
                    mountpoint: PathBuf::from("/var/lib/switchyard/fake"),
                    used_bytes: state
                        .images
                        .local
                        .values()
                        .map(|local| local.image.size_bytes)
                        .sum(),
                    inodes_used: u64::try_from(state.images.local.len()).ok(),
                }])
            };
            self.session.act(Method::ImageUsage, "", effect).await
        })
    }
}

impl Fake {
    async fn download(
        self,
        reference: ImageReference,
        credentials: Credentials,
        owner: Owner,
    ) -> Result<ImageId> {
        let effect = || {
            self.world
                .lock()
                .images
                .download(&reference, &credentials, owner)
        };
        self.session
            .act(Method::Pull, reference.to_string(), effect)
            .await
    }
}
