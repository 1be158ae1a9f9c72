//! The content behind image records: manifest, configuration and names, and how a query finds an image. Pure,
//! except for reading blobs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::{Mutex, MutexGuard};
use switchyard_core::image::{Image, ImageId};
use switchyard_core::{Error, Result};
use switchyard_registry::{Descriptor, Digest, ImageConfig, Manifest, Platforms, Reference, total_bytes};

use super::content;
use super::holders::Holders;
use crate::client::Client;

/// An image's content. It never changes for a given target digest.
#[derive(Debug, Clone)]
pub(crate) struct ImageInfo {
    pub(crate) id: ImageId,
    pub(crate) layers: Vec<Descriptor>,
    pub(crate) config: ImageConfig,
    pub(crate) config_digest: Digest,
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
        super::unpack::chain_ids(&self.config.rootfs.diff_ids).pop()
    }

    /// Size of the documents in bytes. Parsed, they take at most about ten times as much memory.
    pub(crate) const fn document_bytes(&self) -> u64 {
        self.config_bytes.saturating_add(self.manifest_bytes)
    }
}

/// An image record of containerd, with the content of its target.
#[derive(Debug, Clone)]
pub(crate) struct ImageRecord {
    pub(crate) name: String,
    pub(crate) target: Digest,
    pub(crate) pinned: bool,
    pub(crate) info: Arc<ImageInfo>,
    /// The owners that hold the image under this name.
    pub(crate) holders: Holders,
    /// Its last holder, which had needed credentials to pull it, has removed it while others used it.
    pub(crate) released: bool,
    /// When the record was made; `None` if containerd does not tell.
    pub(crate) stored_at: Option<SystemTime>,
}

/// The limit on the documents of all cached images together, in bytes: enough for about two thousand common
/// images.
const CACHE_BYTES: u64 = 16 << 20;

/// A cache of images' content, by target digest. It needs no invalidation: the content of a digest never
/// changes.
#[derive(Debug, Default)]
pub(crate) struct InfoCache {
    infos: Mutex<CachedInfos>,
}

#[derive(Debug, Default)]
struct CachedInfos {
    by_target: HashMap<Digest, Arc<ImageInfo>>,
    /// Size of the documents of all cached images.
    bytes: u64,
}

// === impl CachedInfos ===

impl CachedInfos {
    /// Caches an image. Over the limit the largest images are evicted, and read again each time: they are
    /// few, and this way no image evicts one that is smaller than itself.
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
        self.infos.lock()
    }

    pub(crate) fn get(&self, target: &Digest) -> Option<Arc<ImageInfo>> {
        self.infos().by_target.get(target).cloned()
    }

    /// Evicts all images but these.
    pub(crate) fn retain(&self, targets: &BTreeSet<Digest>) {
        let mut infos = self.infos();
        infos.by_target.retain(|target, _| targets.contains(target));
        infos.bytes = infos.by_target.values().fold(0, |sum, info| sum.saturating_add(info.document_bytes()));
    }

    /// The content of an image: cached, or read from the content store.
    ///
    /// # Errors
    /// `NotFound` if a part is not in the content store; `InvalidArgument` if it is not an image for this
    /// platform.
    pub(crate) async fn load(&self, client: &Client, target: &Digest) -> Result<Arc<ImageInfo>> {
        if let Some(info) = self.get(target) {
            return Ok(info);
        }
        let info = Arc::new(read_info(client, target).await?);
        self.infos().insert(target, &info);
        Ok(info)
    }
}

/// How deep image indexes may nest.
const MAX_DEPTH: usize = 4;

async fn read_info(client: &Client, target: &Digest) -> Result<ImageInfo> {
    let mut digest = target.clone();
    for _ in 0..MAX_DEPTH {
        let bytes = content::read(client, &digest).await?;
        let (_, manifest) =
            Manifest::parse(&digest.to_string(), None, &bytes).map_err(super::shared_types::from_registry)?;
        match manifest {
            Manifest::Index(index) => {
                let entry = index
                    .select(&digest.to_string(), &Platforms::of_this_machine())
                    .map_err(super::shared_types::from_registry)?;
                digest = entry.digest.clone();
            }
            Manifest::Image(image) => {
                let config = content::read(client, &image.config.digest).await?;
                let manifest_bytes = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                return Ok(ImageInfo {
                    id: ImageId::new(image.config.digest.to_string()),
                    config: ImageConfig::parse(&digest.to_string(), &config)
                        .map_err(super::shared_types::from_registry)?,
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

/// The images of these records, one for each id; several records may name the same image.
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
            // Names of other tools that are no normalized references are listed as they are, except bare ids.
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

/// A record of the image that a query means: by id, by name, by digest, or by the beginning of an id.
///
/// # Errors
/// `InvalidArgument` if several ids begin so.
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
        return Err(Error::invalid(
            format!("image {query:?}"),
            "is the beginning of more than one id: give more digits",
        ));
    }
    Ok(ids.into_values().next())
}

#[cfg(test)]
pub(super) mod tests;
