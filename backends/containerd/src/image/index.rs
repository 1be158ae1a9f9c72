//! What an image record means: its configuration, its names, and how a query finds it. Pure but for the reading of blobs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use switchyard_core::image::{Image, ImageId};
use switchyard_core::{Error, Result};
use switchyard_registry::{Descriptor, Digest, ImageConfig, Manifest, Platforms, Reference, total_bytes};

use super::content;
use super::holders::Holders;
use crate::client::Client;

/// An image's content, as its target digest fixes it for ever.
#[derive(Debug, Clone)]
pub(crate) struct ImageInfo {
    pub(crate) id: ImageId,
    pub(crate) layers: Vec<Descriptor>,
    pub(crate) config: ImageConfig,
    pub(crate) config_digest: Digest,
    /// Bytes of the configuration.
    pub(crate) config_bytes: u64,
    /// Bytes of the manifest.
    pub(crate) manifest_bytes: u64,
    /// Bytes of all that the registry has of it.
    pub(crate) size_bytes: u64,
}

impl ImageInfo {
    /// The snapshot of all layers.
    pub(crate) fn top(&self) -> Option<String> {
        super::unpack::chain_ids(&self.config.rootfs.diff_ids).pop()
    }

    /// Bytes of the documents that were read: what they became takes some ten times as much memory at most.
    pub(crate) const fn document_bytes(&self) -> u64 {
        self.config_bytes.saturating_add(self.manifest_bytes)
    }
}

/// An image record of containerd, with what it leads to.
#[derive(Debug, Clone)]
pub(crate) struct ImageRecord {
    pub(crate) name: String,
    pub(crate) target: Digest,
    pub(crate) pinned: bool,
    pub(crate) info: Arc<ImageInfo>,
    /// Who holds it under this name.
    pub(crate) holders: Holders,
    /// Its last holder had it by credentials and has let go of it.
    pub(crate) released: bool,
}

/// What the documents of all images that are remembered may have together, in bytes: those of some two thousand common images.
const CACHE_BYTES: u64 = 16 << 20;

/// What has been read of images, by target digest. Content does not change under its digest.
#[derive(Debug, Default)]
pub(crate) struct InfoCache {
    infos: Mutex<CachedInfos>,
}

#[derive(Debug, Default)]
struct CachedInfos {
    by_target: HashMap<Digest, Arc<ImageInfo>>,
    /// Of all that are here.
    bytes: u64,
}

// === impl Infos ===

impl CachedInfos {
    /// Remembers an image. Where there is no room for all, the largest are forgotten and read anew each time: they are few, and no image
    /// drives out those that are smaller than itself.
    fn insert(&mut self, target: &Digest, info: &Arc<ImageInfo>) {
        if self.by_target.insert(target.clone(), Arc::clone(info)).is_some() {
            return;
        }
        self.bytes = self.bytes.saturating_add(info.document_bytes());
        while self.bytes > CACHE_BYTES {
            let largest = self.by_target.iter().max_by_key(|(_, info)| info.document_bytes());
            let Some(largest) = largest.map(|(target, _)| target.clone()) else { break };
            self.remove(&largest);
        }
    }

    fn remove(&mut self, target: &Digest) {
        if let Some(info) = self.by_target.remove(target) {
            self.bytes = self.bytes.saturating_sub(info.document_bytes());
        }
    }
}

// === impl InfoCache ===

impl InfoCache {
    fn infos(&self) -> MutexGuard<'_, CachedInfos> {
        self.infos.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, target: &Digest) -> Option<Arc<ImageInfo>> {
        self.infos().by_target.get(target).cloned()
    }

    /// Drops what no image leads to any more.
    pub(crate) fn retain(&self, targets: &BTreeSet<Digest>) {
        let mut infos = self.infos();
        infos.by_target.retain(|target, _| targets.contains(target));
        infos.bytes = infos.by_target.values().fold(0, |sum, info| sum.saturating_add(info.document_bytes()));
    }

    /// Reads an image's manifest and configuration.
    ///
    /// # Errors
    /// `NotFound` if a part is not here; `InvalidArgument` if it is no image for this machine.
    pub(crate) async fn load(&self, client: &Client, target: &Digest) -> Result<Arc<ImageInfo>> {
        if let Some(info) = self.get(target) {
            return Ok(info);
        }
        let info = Arc::new(read_info(client, target).await?);
        self.infos().insert(target, &info);
        Ok(info)
    }
}

/// How deep indexes may nest.
const MAX_DEPTH: usize = 4;

async fn read_info(client: &Client, target: &Digest) -> Result<ImageInfo> {
    let mut digest = target.clone();
    for _ in 0..MAX_DEPTH {
        let bytes = content::read(client, &digest).await?;
        let (_, manifest) =
            Manifest::parse(&digest.to_string(), None, &bytes).map_err(super::from_registry)?;
        match manifest {
            Manifest::Index(index) => {
                let entry = index
                    .select(&digest.to_string(), &Platforms::of_this_machine())
                    .map_err(super::from_registry)?;
                digest = entry.digest.clone();
            }
            Manifest::Image(image) => {
                let config = content::read(client, &image.config.digest).await?;
                let manifest_bytes = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                return Ok(ImageInfo {
                    id: ImageId::new(image.config.digest.to_string()),
                    config: ImageConfig::parse(&digest.to_string(), &config).map_err(super::from_registry)?,
                    config_digest: image.config.digest,
                    config_bytes: u64::try_from(config.len()).unwrap_or(u64::MAX),
                    manifest_bytes,
                    size_bytes: total_bytes(&image.layers)
                        .saturating_add(image.config.size)
                        .saturating_add(manifest_bytes),
                    layers: image.layers,
                });
            }
        }
    }
    Err(Error::invalid(target, format!("indexes nest deeper than {MAX_DEPTH}")))
}

/// One entry an id, from records that may give it many names.
pub(crate) fn images(records: &[ImageRecord]) -> Vec<Image> {
    let mut by_id: BTreeMap<&ImageId, Vec<&ImageRecord>> = BTreeMap::new();
    for record in records {
        by_id.entry(&record.info.id).or_default().push(record);
    }
    by_id.into_values().filter_map(|names| image_of(&names)).collect()
}

fn image_of(names: &[&ImageRecord]) -> Option<Image> {
    let info = &names.first()?.info;
    let mut tags = BTreeSet::new();
    let mut digests = BTreeSet::new();
    for record in names {
        match record.name.parse::<Reference>() {
            Ok(reference) if reference.to_string() == record.name => {
                if let Some(tag) = reference.repo_tag() {
                    tags.insert(tag);
                }
                digests.insert(reference.repo_digest(&record.target));
            }
            // Names that other tools made up are shown as they are, except bare ids.
            Ok(_) | Err(_) if record.name.parse::<Digest>().is_err() => {
                tags.insert(record.name.clone());
            }
            Ok(_) | Err(_) => {}
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
        imported: names.iter().any(|record| record.holders.is_empty() && !record.released),
    })
}

/// The holders of an image, each by the best right that a name of it gives.
fn holders_of(names: &[&ImageRecord]) -> Holders {
    let mut all = Holders::new();
    for (owner, right) in names.iter().flat_map(|record| &record.holders) {
        let held = all.entry(*owner).or_insert(*right);
        *held = (*held).max(*right);
    }
    all
}

/// The records of the image that a query means: by id, by name, by digest, or by the beginning of an id.
///
/// # Errors
/// `InvalidArgument` if the beginning fits several ids.
pub(crate) fn find<'a>(records: &'a [ImageRecord], query: &str) -> Result<Option<&'a ImageRecord>> {
    if query.is_empty() {
        return Ok(None);
    }
    if let Some(record) =
        records.iter().find(|record| record.info.id.as_str() == query || record.name == query)
    {
        return Ok(Some(record));
    }
    let hex = query.strip_prefix("sha256:").unwrap_or(query);
    if let Ok(reference) = query.parse::<Reference>()
        && !(hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
    {
        let name = reference.to_string();
        let by_name = |record: &&ImageRecord| record.name == name;
        let by_digest = |record: &&ImageRecord| {
            let known = record.name.parse::<Reference>().ok();
            reference.digest() == Some(&record.target)
                && known.is_some_and(|known| known.name() == reference.name())
        };
        if let Some(record) = records.iter().find(by_name).or_else(|| records.iter().find(by_digest)) {
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
        return Err(Error::invalid(format!("image {query:?}"), "begins more than one id: give more digits"));
    }
    Ok(ids.into_values().next())
}

#[cfg(test)]
pub(super) mod tests;
