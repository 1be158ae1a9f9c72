//! From layers to snapshots: each layer is applied on top of the one below, by containerd's diff service.

use std::collections::HashMap;
use std::future::Future;

use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots as snap;
use containerd_client::types;
use sha2::{Digest as _, Sha256};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_registry::{Descriptor, Digest};
use switchyard_steps::{Step, reach};

use super::content::add_labels;
use super::lease::getrandom_fill;
use crate::client::{Client, QUICK, UNPACK, call, gone_is_done};

/// Snapshots in the making begin so; what a killed predecessor left is found by it.
pub(crate) fn extract_prefix(client: &Client) -> String {
    format!("extract-switchyard-{}-", client.instance())
}

/// The names of the snapshots of an image: of each layer on top of those below. Empty for an image without layers.
pub(crate) fn chain_ids(diff_ids: &[Digest]) -> Vec<String> {
    let mut chain: Vec<String> = Vec::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        let id = match chain.last() {
            None => diff_id.to_string(),
            Some(below) => {
                format!("sha256:{}", hex::encode(Sha256::digest(format!("{below} {diff_id}").as_bytes())))
            }
        };
        chain.push(id);
    }
    chain
}

/// The layers of an image, with what they unpack to.
pub(crate) struct Layers<'a> {
    pub(crate) snapshotter: &'a str,
    pub(crate) layers: &'a [Descriptor],
    pub(crate) diff_ids: &'a [Digest],
}

/// Unpacks an image. `fetched` is awaited before a layer is needed, with its number; layers whose snapshots are there are not
/// touched.
pub(crate) async fn unpack<F: Future<Output = Result<()>>>(
    client: &Client,
    image: &Layers<'_>,
    mut fetched: impl FnMut(usize) -> F,
) -> Result<()> {
    let chain = chain_ids(image.diff_ids);
    if chain.len() != image.layers.len() {
        return Err(Error::invalid(
            "image",
            format!("its configuration names {} layers and its manifest {}", chain.len(), image.layers.len()),
        ));
    }
    for (number, layer) in image.layers.iter().enumerate() {
        fetched(number).await?;
        if exists(client, image.snapshotter, &chain[number]).await? {
            continue;
        }
        let parent = number.checked_sub(1).map_or("", |below| &chain[below]);
        apply(client, image, layer, number, parent, &chain[number]).await?;
    }
    Ok(())
}

/// Whether a committed snapshot of this name is there.
pub(crate) async fn exists(client: &Client, snapshotter: &str, name: &str) -> Result<bool> {
    let request = snap::StatSnapshotRequest { snapshotter: snapshotter.to_owned(), key: name.to_owned() };
    match call(&format!("look at snapshot {name}"), QUICK, client.snapshots().stat(request)).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

async fn apply(
    client: &Client,
    image: &Layers<'_>,
    layer: &Descriptor,
    number: usize,
    parent: &str,
    name: &str,
) -> Result<()> {
    let mut random = [0; 8];
    getrandom_fill(&mut random);
    let key = format!("{}{} {name}", extract_prefix(client), hex::encode(random));
    let prepare = snap::PrepareSnapshotRequest {
        snapshotter: image.snapshotter.to_owned(),
        key: key.clone(),
        parent: parent.to_owned(),
        labels: HashMap::from([("containerd.io/snapshot.ref".to_owned(), name.to_owned())]),
    };
    let mounts =
        match call(&format!("prepare snapshot {name}"), QUICK, client.snapshots().prepare(prepare)).await {
            Ok(response) => response.mounts,
            // A snapshotter that fetches by itself has it already.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
            Err(error) => return Err(error),
        };
    reach(Step::LayerPrepared);
    let committed = commit(client, image, layer, &image.diff_ids[number], mounts, &key, name).await;
    if committed.is_err() {
        let request =
            snap::RemoveSnapshotRequest { snapshotter: image.snapshotter.to_owned(), key: key.clone() };
        let removed =
            call(&format!("remove snapshot {key}"), QUICK, client.snapshots().remove(request)).await;
        if let Err(error) = gone_is_done(removed) {
            tracing::warn!(
                snapshot = key,
                error = error.report(),
                "a half-made snapshot is left to its lease"
            );
        }
    }
    committed
}

async fn commit(
    client: &Client,
    image: &Layers<'_>,
    layer: &Descriptor,
    diff_id: &Digest,
    mounts: Vec<types::Mount>,
    key: &str,
    name: &str,
) -> Result<()> {
    let diff = types::Descriptor {
        media_type: layer.media_type.clone(),
        digest: layer.digest.to_string(),
        size: i64::try_from(layer.size)
            .map_err(|_| Error::invalid("layer", format!("{} is impossibly large", layer.digest)))?,
        ..Default::default()
    };
    let request = api::ApplyRequest { diff: Some(diff), mounts, ..Default::default() };
    let what = format!("unpack layer {}", layer.digest);
    let applied = call(&what, UNPACK, client.diff().apply(request)).await?.applied.unwrap_or_default();
    if applied.digest != diff_id.to_string() {
        return Err(Error::invalid(
            "image",
            format!(
                "layer {} unpacks to {}, not to {diff_id} as its configuration says",
                layer.digest, applied.digest
            ),
        ));
    }
    reach(Step::LayerApplied);
    let request = snap::CommitSnapshotRequest {
        snapshotter: image.snapshotter.to_owned(),
        name: name.to_owned(),
        key: key.to_owned(),
        ..Default::default()
    };
    match call(&format!("commit snapshot {name}"), QUICK, client.snapshots().commit(request)).await {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let request = snap::RemoveSnapshotRequest {
                snapshotter: image.snapshotter.to_owned(),
                key: key.to_owned(),
            };
            gone_is_done(
                call(&format!("remove snapshot {key}"), QUICK, client.snapshots().remove(request)).await,
            )?;
        }
        Err(error) => return Err(error),
    }
    reach(Step::LayerUnpacked);
    let label = HashMap::from([("containerd.io/uncompressed".to_owned(), diff_id.to_string())]);
    add_labels(client, &layer.digest, label).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_is_the_one_of_the_image_specification() {
        let digest = |byte: &str| format!("sha256:{}", byte.repeat(64)).parse::<Digest>().unwrap();
        let chain = chain_ids(&[digest("a"), digest("b")]);
        assert_eq!(chain[0], digest("a").to_string());
        let second = format!("{} {}", digest("a"), digest("b"));
        assert_eq!(chain[1], format!("sha256:{}", hex::encode(Sha256::digest(second.as_bytes()))));
        assert!(chain_ids(&[]).is_empty());
    }
}
