//! The content behind image records: manifest, configuration and names, and how a query finds an image. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};
use switchyard_core::image::{Image, ImageId, ImageReference};
use switchyard_core::{Error, Result};
use switchyard_registry::{Descriptor, Digest, ImageConfig};

use super::holders::Holders;

/// An image's content. It never changes for a given target digest.
#[derive(Debug, Clone)]
pub(crate) struct ImageInfo {
    pub(crate) id: ImageId,
    pub(crate) layers: Vec<Descriptor>,
    pub(crate) config: ImageConfig,
    pub(crate) config_digest: Digest,
    /// The digest of the manifest.
    pub(crate) manifest: Digest,
    /// Size of the configuration in bytes.
    pub(crate) config_bytes: u64,
    /// Size of the manifest in bytes.
    pub(crate) manifest_bytes: u64,
    /// Size in the registry, in bytes: layers as they are stored there, configuration and manifest.
    pub(crate) size_bytes: u64,
}

impl ImageInfo {
    /// The name of the snapshot of the top layer; `None` for an image without layers.
    pub(crate) fn top(&self) -> Option<String> {
        chain_ids(&self.config.rootfs.diff_ids).pop()
    }

    /// Size of the documents in bytes. Parsed, they take at most about ten times as much memory.
    pub(crate) const fn document_bytes(&self) -> u64 {
        self.config_bytes.saturating_add(self.manifest_bytes)
    }
}

/// The image records of containerd.
#[derive(Debug, Default)]
pub(super) struct ImageRecords {
    /// Those of images for this platform.
    pub(super) usable: Vec<ImageRecord>,
    /// Those whose content is damaged.
    pub(super) damaged: Vec<DamagedRecord>,
}

/// An image record of containerd whose content is damaged, so that nobody can use the image.
#[derive(Debug, Clone)]
pub(super) struct DamagedRecord {
    pub(super) name: String,
    pub(super) target: Digest,
    /// The defect.
    pub(super) fault: Error,
}

/// An image record of containerd, with the content of its target.
#[derive(Debug, Clone)]
pub(crate) struct ImageRecord {
    pub(crate) name: String,
    /// The name as a reference; `None` if it cannot be parsed as one.
    pub(crate) reference: Option<ImageReference>,
    pub(crate) target: Digest,
    pub(crate) pinned: bool,
    pub(crate) info: Arc<ImageInfo>,
    /// The owners that hold the image under this name.
    pub(crate) holders: Holders,
    /// Its last holder, which had needed credentials to pull it, has removed it while others used it.
    pub(crate) released: bool,
    /// Time at which the record was made; `None` if containerd does not report it.
    pub(crate) stored_at: Option<SystemTime>,
}

/// The images of these records, one for each id; several records may name the same image.
pub(crate) fn images(records: &[ImageRecord]) -> Vec<Image> {
    let mut by_id: BTreeMap<&ImageId, Vec<&ImageRecord>> = BTreeMap::new();
    for record in records {
        by_id.entry(&record.info.id).or_default().push(record);
    }
    by_id
        .into_values()
        .filter_map(|names| image_of(&names))
        .collect()
}

fn image_of(names: &[&ImageRecord]) -> Option<Image> {
    let info = &names.first()?.info;
    let mut tags = BTreeSet::new();
    let mut digests = BTreeSet::new();
    for record in names {
        match &record.reference {
            Some(reference) if reference.to_string() == record.name => {
                if let Some(tag) = reference.repo_tag() {
                    tags.insert(tag);
                }
                digests.insert(reference.repo_digest(&record.target));
            }
            // Names of other tools that are no normalized references are listed as they are, except bare ids.
            Some(_) | None if record.name.parse::<Digest>().is_err() => {
                tags.insert(record.name.clone());
            }
            Some(_) | None => {}
        }
    }
    let config = &info.config.config;
    Some(Image {
        id: info.id.clone(),
        repo_tags: tags.into_iter().collect(),
        repo_digests: digests.into_iter().collect(),
        size_bytes: info.size_bytes,
        user: config.user.clone(),
        volumes: config.volumes.keys().map(PathBuf::from).collect(),
        labels: config.labels.clone(),
        pinned: names.iter().any(|record| record.pinned),
        holders: holders_of(names),
        imported: names
            .iter()
            .any(|record| record.holders.is_empty() && !record.released),
        stored_at: names.iter().filter_map(|record| record.stored_at).min(),
    })
}

/// The holders of an image, each with the highest right that it has under any of the names.
fn holders_of(names: &[&ImageRecord]) -> Holders {
    let mut all = Holders::new();
    for (owner, right) in names.iter().flat_map(|record| &record.holders) {
        let held = all.entry(*owner).or_insert(*right);
        *held = (*held).max(*right);
    }
    all
}

/// The images of these records that have layers, by the snapshot of the top layer, which images may share.
pub(super) fn by_top_layer(records: &[ImageRecord]) -> BTreeMap<String, BTreeSet<ImageId>> {
    let mut images: BTreeMap<String, BTreeSet<ImageId>> = BTreeMap::new();
    for record in records {
        if let Some(top) = record.info.top() {
            let sharing = images.entry(top).or_default();
            sharing.insert(record.info.id.clone());
        }
    }
    images
}

/// A record of the image that a query means: by id, by name, by digest, or by the beginning of an id.
///
/// # Errors
/// `InvalidArgument` if several ids begin so.
pub(crate) fn find<'a>(records: &'a [ImageRecord], query: &str) -> Result<Option<&'a ImageRecord>> {
    if query.is_empty() {
        return Ok(None);
    }
    if let Some(record) = records
        .iter()
        .find(|record| record.info.id.as_str() == query || record.name == query)
    {
        return Ok(Some(record));
    }
    let hex = query.strip_prefix("sha256:").unwrap_or(query);
    if let Ok(reference) = query.parse::<ImageReference>()
        && !(hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
    {
        let name = reference.to_string();
        let by_name = |record: &&ImageRecord| record.name == name;
        let by_digest = |record: &&ImageRecord| {
            reference.digest() == Some(&*record.target)
                && record
                    .reference
                    .as_ref()
                    .is_some_and(|known| known.name() == reference.name())
        };
        if let Some(record) = records
            .iter()
            .find(by_name)
            .or_else(|| records.iter().find(by_digest))
        {
            return Ok(Some(record));
        }
    }
    if hex.is_empty() || !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Ok(None);
    }
    let prefix = format!("sha256:{hex}");
    let ids: BTreeMap<&ImageId, &ImageRecord> = records
        .iter()
        .filter(|record| record.info.id.as_str().starts_with(&prefix))
        .map(|record| (&record.info.id, record))
        .collect();
    if ids.len() > 1 {
        return Err(Error::invalid(
            format!("image {query:?}"),
            "is the beginning of more than one id: give more digits",
        ));
    }
    Ok(ids.into_values().next())
}

/// A damaged record that a query names: by name, by digest, or by the digest of its target.
pub(super) fn find_damaged<'r>(
    records: &'r [DamagedRecord],
    query: &str,
) -> Option<&'r DamagedRecord> {
    let reference = query.parse::<ImageReference>().ok();
    let name = reference.as_ref().map(ToString::to_string);
    records.iter().find(|record| {
        record.name == query
            || Some(&record.name) == name.as_ref()
            || record.target.to_string() == query
    })
}

/// The label by which a pull of ours marks that it has stored this child of an index. Another client may have
/// labelled the index with a child for another platform, so the key is different for each child.
pub(super) fn child_label(child: &Digest) -> String {
    let key = child.hex().chars().take(12).collect::<String>();
    format!("containerd.io/gc.ref.content.m.{key}")
}

/// The names of the snapshots of an image, one for each layer on top of those below: the chain ids of the OCI
/// image specification. Empty for an image without layers.
pub(crate) fn chain_ids(diff_ids: &[Digest]) -> Vec<String> {
    let mut chain: Vec<String> = Vec::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        let id = match chain.last() {
            None => diff_id.to_string(),
            Some(below) => {
                format!(
                    "sha256:{}",
                    hex::encode(Sha256::digest(format!("{below} {diff_id}").as_bytes()))
                )
            }
        };
        chain.push(id);
    }
    chain
}

#[cfg(test)]
pub(super) mod tests;
