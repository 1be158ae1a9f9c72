//! The check for free space before a pull or a load writes layers.
//!
//! At that time only the compressed sizes of the layers are known: an image that passes the check may still
//! fill the disk when it is unpacked, and two concurrent pulls may fit one by one but not together. Both then
//! fail with containerd's error for a full disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use containerd_client::services::v1 as api;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_registry::{Descriptor, Digest, total_bytes};
use tokio::sync::OnceCell;

use super::content;
use crate::base::disks;
use crate::base::fs::blocking;
use crate::client::{Client, QUICK, call};

/// The disk of containerd's content store.
#[derive(Debug, Default)]
pub(crate) struct ContentDisk {
    /// A directory on it, as [`root_of`] has found one. Queried until it is found.
    root: OnceCell<PathBuf>,
}

impl ContentDisk {
    async fn root(&self, client: &Client) -> Result<Option<&Path>> {
        if self.root.get().is_none() {
            let Some(found) = root_of(client).await? else {
                return Ok(None);
            };
            // Of two concurrent pulls both have found the same.
            let _ = self.root.set(found);
        }
        Ok(self.root.get().map(PathBuf::as_path))
    }

    /// Refuses an image whose layers do not fit. What the store has of them already needs no more space. If
    /// the free space cannot be determined, nothing is refused. Cancel-safe.
    ///
    /// # Errors
    /// `ResourceExhausted` if the layers do not fit; containerd's error if it cannot report what the store
    /// has.
    pub(crate) async fn check(&self, client: &Client, layers: &[Descriptor]) -> Result<()> {
        let layers = distinct(layers);
        let Some(root) = self.root(client).await? else {
            return Ok(());
        };
        let Some(free) = free_bytes(root).await else {
            return Ok(());
        };
        // The usual case needs no look-up of each layer.
        if total_bytes(&layers) <= free {
            return Ok(());
        }
        let mut missing: u64 = 0;
        for layer in &layers {
            missing = missing.saturating_add(
                layer
                    .size
                    .saturating_sub(stored_bytes(client, layer).await?),
            );
        }
        if missing <= free {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::ResourceExhausted,
            format!(
                "its layers need {missing} bytes before they are unpacked, and {free} are free on the disk of {}: remove images, or \
                 switch this check off (images.check_free_space)",
                root.display()
            ),
        ))
    }
}

/// The layers without duplicates: an image may have the same blob several times.
fn distinct(layers: &[Descriptor]) -> Vec<Descriptor> {
    let by_digest: BTreeMap<&Digest, &Descriptor> =
        layers.iter().map(|layer| (&layer.digest, layer)).collect();
    by_digest.into_values().cloned().collect()
}

/// The root of containerd's content store as containerd reports it, which need not be a directory in our mount namespace.
/// Cancel-safe.
pub(crate) async fn reported_root(client: &Client) -> Result<Option<PathBuf>> {
    let request = api::PluginsRequest {
        filters: vec!["type==io.containerd.content.v1".to_owned()],
    };
    let plugins = call(
        "list content stores",
        QUICK,
        client.introspection().plugins(request),
    )
    .await?
    .plugins;
    Ok(plugins
        .iter()
        .find_map(|plugin| plugin.exports.get("root").map(PathBuf::from)))
}

/// A directory on the disk of containerd's content store; `None` if containerd does not report its root, or if there is none
/// in our mount namespace.
pub(super) async fn root_of(client: &Client) -> Result<Option<PathBuf>> {
    match reported_root(client).await? {
        Some(root) => blocking(move || Ok(existing(&root).map(Path::to_owned))).await,
        None => Ok(None),
    }
}

/// The root of the content store or, while containerd 2.x has not created it, which it does with the first blob, containerd's
/// root directory, in which it will be.
fn existing(root: &Path) -> Option<&Path> {
    root.ancestors().take(2).find(|dir| dir.is_dir())
}

/// Bytes that are free for root on the file system of `dir`; `None` if that cannot be determined within
/// [`QUICK`].
async fn free_bytes(dir: &Path) -> Option<u64> {
    let dir = dir.to_owned();
    let free = blocking(move || Ok(disks::free_bytes(&dir).ok()));
    tokio::time::timeout(QUICK, free).await.ok()?.ok()?
}

/// Returns the number of bytes of a blob in the store: all of it, those of an unfinished download, or none.
async fn stored_bytes(client: &Client, layer: &Descriptor) -> Result<u64> {
    let what = format!("look up layer {}", layer.digest);
    let request = api::InfoRequest {
        digest: layer.digest.to_string(),
    };
    match call(&what, QUICK, client.content().info(request)).await {
        Ok(_) => return Ok(layer.size),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // No blob, but perhaps the unfinished download of an earlier pull, which is continued.
    let request = api::StatusRequest {
        r#ref: content::layer_ref(layer),
    };
    match call(&what, QUICK, client.content().status(request)).await {
        Ok(answer) => Ok(answer
            .status
            .map_or(0, |status| u64::try_from(status.offset).unwrap_or(0))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_that_an_image_has_twice_needs_space_once() {
        let layer = |seed: &[u8], size| Descriptor::new("x", Digest::sha256(seed), size);
        let layers = distinct(&[layer(b"a", 5), layer(b"b", u64::MAX), layer(b"a", 5)]);
        assert_eq!(layers.len(), 2);
        assert_eq!(total_bytes(&layers), u64::MAX);
    }

    #[test]
    fn directory_is_found_before_the_store_has_one() {
        let root = tempfile::tempdir().unwrap();
        let content = root.path().join("io.containerd.content.v1.content");
        assert_eq!(existing(&content), Some(root.path()));
        // Neither of them is in this mount namespace.
        assert_eq!(existing(&content.join("other").join("content")), None);
        std::fs::create_dir(&content).unwrap();
        assert_eq!(existing(&content), Some(content.as_path()));
    }

    #[tokio::test]
    async fn what_is_free_is_said_of_directories_that_are_there() {
        assert!(free_bytes(Path::new("/")).await.is_some());
        assert_eq!(free_bytes(Path::new("/no/such/directory")).await, None);
    }
}
