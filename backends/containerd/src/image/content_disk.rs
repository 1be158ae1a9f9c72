//! Space for a pull or a load, looked at before any layer is written.
//!
//! Only the sizes of layers as they come are known then: an image that passes may still fill the disk when it is unpacked, and two
//! pulls that fit one by one may not fit together. Both fail as they always did, with what containerd says of a full disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use containerd_client::services::v1 as api;
use nix::sys::statvfs::statvfs;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_registry::{Descriptor, Digest, total_bytes};
use tokio::sync::OnceCell;

use super::content;
use crate::client::{Client, QUICK, call};
use crate::fs::blocking;

/// The disk of containerd's content store.
#[derive(Debug, Default)]
pub(crate) struct ContentDisk {
    /// The root of the store; `None` if containerd does not say, or says a place that is not here. Asked once. What is below it may not be
    /// there yet: containerd 2.x makes its directories with the first blob.
    root: OnceCell<Option<PathBuf>>,
}

impl ContentDisk {
    /// Refuses an image whose layers do not fit. What the store has of them already needs no more space. Where it cannot be known what is
    /// free, nothing is refused.
    ///
    /// # Errors
    /// `ResourceExhausted`, or what containerd says when it is asked for what it has. Cancel-safe.
    pub(crate) async fn check(&self, client: &Client, layers: &[Descriptor]) -> Result<()> {
        let layers = distinct(layers);
        let Some(root) = self.root.get_or_try_init(|| root_of(client)).await? else { return Ok(()) };
        let Some(free) = free_bytes(root).await else { return Ok(()) };
        if total_bytes(&layers) <= free {
            return Ok(());
        }
        let mut missing: u64 = 0;
        for layer in &layers {
            missing = missing.saturating_add(layer.size.saturating_sub(stored_bytes(client, layer).await?));
        }
        if missing <= free {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::ResourceExhausted,
            format!(
                "its layers need {missing} bytes before they are unpacked, and {free} are free on the disk of {}: remove images, or have no \
                 look at it (images.check_free_space)",
                root.display()
            ),
        ))
    }
}

/// Each blob once, however often an image has it.
fn distinct(layers: &[Descriptor]) -> Vec<Descriptor> {
    let by_digest: BTreeMap<&Digest, &Descriptor> =
        layers.iter().map(|layer| (&layer.digest, layer)).collect();
    by_digest.into_values().cloned().collect()
}

/// Where containerd writes what it downloads, if that is a directory of this mount namespace.
async fn root_of(client: &Client) -> Result<Option<PathBuf>> {
    let request = api::PluginsRequest { filters: vec!["type==io.containerd.content.v1".to_owned()] };
    let plugins = call("list content stores", QUICK, client.introspection().plugins(request)).await?.plugins;
    let Some(root) = plugins.iter().find_map(|plugin| plugin.exports.get("root").map(PathBuf::from)) else {
        return Ok(None);
    };
    let looked = root.clone();
    let is_here = blocking(move || Ok(looked.is_dir())).await?;
    Ok(Some(root).filter(|_| is_here))
}

/// What is free for root; `None` if that is not said in time.
async fn free_bytes(dir: &Path) -> Option<u64> {
    let dir = dir.to_owned();
    let look = blocking(move || {
        Ok(statvfs(&dir).ok().map(|stat| stat.blocks_free().saturating_mul(stat.fragment_size())))
    });
    tokio::time::timeout(QUICK, look).await.ok()?.ok()?
}

/// How many bytes of a blob are in the store: all, those of an unfinished download, or none.
async fn stored_bytes(client: &Client, layer: &Descriptor) -> Result<u64> {
    let what = format!("look for layer {}", layer.digest);
    let request = api::InfoRequest { digest: layer.digest.to_string() };
    match call(&what, QUICK, client.content().info(request)).await {
        Ok(_) => return Ok(layer.size),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let request = api::StatusRequest { r#ref: content::layer_ref(layer) };
    match call(&what, QUICK, client.content().status(request)).await {
        Ok(answer) => Ok(answer.status.map_or(0, |status| u64::try_from(status.offset).unwrap_or(0))),
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

    #[tokio::test]
    async fn what_is_free_is_said_of_directories_that_are_there() {
        assert!(free_bytes(Path::new("/")).await.is_some());
        assert_eq!(free_bytes(Path::new("/no/such/directory")).await, None);
    }
}
