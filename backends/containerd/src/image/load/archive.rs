//! What is in an archive that `docker save` or one of its like has written: found by the list in `manifest.json`, never unpacked.
//!
//! Everything here blocks on the file.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_registry::{self as registry, Descriptor, Limits, Reference};
use tokio_util::sync::CancellationToken;

mod tar_reader;

use tar_reader::{TarEntryKind, TarReader, check_cancelled};

/// Where an archive has the list of its images.
const MANIFEST_FILE: &str = "manifest.json";

/// The largest list of images, in bytes: what it is read into takes many times as much.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// How many links are followed from one entry to the next.
const MAX_LINK_DEPTH: usize = 8;

/// Read at once.
const CHUNK: usize = 1 << 20;

/// As many names of an archive as an error shows, and as much of each.
const MAX_NAMES_SHOWN: usize = 8;
const MAX_NAME_SHOWN: usize = 200;

/// A tar archive, with where its files are in it.
pub(crate) struct Archive {
    file: Arc<File>,
    entries: HashMap<PathBuf, ArchiveEntry>,
    /// Cancelled when nobody waits for it any more.
    stop: CancellationToken,
}

enum ArchiveEntry {
    File { at: u64, size: u64 },
    Link(PathBuf),
}

/// An image in an archive.
pub(crate) struct ArchiveImage {
    pub(crate) file: Arc<File>,
    pub(crate) config: Bytes,
    pub(crate) layers: Vec<ArchiveLayer>,
}

/// A layer, and where in the archive it begins.
pub(crate) struct ArchiveLayer {
    pub(crate) at: u64,
    pub(crate) descriptor: Descriptor,
}

/// An image as the list names it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ManifestEntry {
    config: PathBuf,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<PathBuf>>,
}

// === impl Archive ===

impl Archive {
    /// Finds what is in it. This and all that is done with it ends with an error soon after `stop` is cancelled.
    ///
    /// # Errors
    /// `InvalidArgument` if it is no tar archive; `Cancelled`.
    pub(crate) fn open(file: File, stop: CancellationToken) -> Result<Self> {
        let mut entries = HashMap::new();
        let mut walk = TarReader::new(&file, &stop)?;
        while let Some(entry) = walk.next()? {
            let path = normalized(&entry.path);
            let found = match entry.kind {
                TarEntryKind::File { at, size } => ArchiveEntry::File { at, size },
                TarEntryKind::Symlink(target) => {
                    ArchiveEntry::Link(normalized(&path.parent().unwrap_or(Path::new("")).join(target)))
                }
                TarEntryKind::HardLink(target) => ArchiveEntry::Link(normalized(&target)),
            };
            entries.insert(path, found);
        }
        Ok(Self { file: Arc::new(file), entries, stop })
    }

    /// The image of this name, or the only one. Whether its configuration and the number of its layers are within `limits` is known
    /// before they are read.
    ///
    /// # Errors
    /// `NotFound` if there is none; `InvalidArgument` if a part of it is missing, malformed or too much; `Cancelled`.
    pub(crate) fn image(&self, reference: &str, limits: &Limits) -> Result<ArchiveImage> {
        let list = self.read_manifest()?;
        let listed: Vec<ManifestEntry> = serde_json::from_slice(&list).map_err(|fault| {
            malformed(format!("its {MANIFEST_FILE} is no list of images: {}", truncated(&fault.to_string())))
        })?;
        let image = select_image(&listed, reference)?;
        let paths = image.layers.as_deref().unwrap_or_default();
        limits.check_layer_count("its image", paths.len()).map_err(too_large)?;
        let (at, size) = self.locate(&image.config)?;
        limits.check_config("its configuration", size).map_err(too_large)?;
        let config = self.read(at, size)?;
        // What is named several times is read once.
        let mut known: HashMap<u64, Descriptor> = HashMap::new();
        let mut layers = Vec::with_capacity(paths.len());
        for path in paths {
            let (at, size) = self.locate(path)?;
            let descriptor = match known.get(&at) {
                Some(descriptor) => descriptor.clone(),
                None => self.describe_layer(at, size)?,
            };
            known.insert(at, descriptor.clone());
            layers.push(ArchiveLayer { at, descriptor });
        }
        Ok(ArchiveImage { file: Arc::clone(&self.file), config, layers })
    }

    fn locate(&self, path: &Path) -> Result<(u64, u64)> {
        let mut at = normalized(path);
        for _ in 0..MAX_LINK_DEPTH {
            match self.entries.get(&at) {
                Some(ArchiveEntry::File { at, size }) => return Ok((*at, *size)),
                Some(ArchiveEntry::Link(target)) => at.clone_from(target),
                None => break,
            }
        }
        Err(malformed(format!("{} is not in it", truncated(&path.to_string_lossy()))))
    }

    /// The list of images.
    fn read_manifest(&self) -> Result<Bytes> {
        let (at, size) = self.locate(Path::new(MANIFEST_FILE))?;
        if size > MAX_MANIFEST_BYTES {
            return Err(malformed(format!(
                "{MANIFEST_FILE} has {size} bytes, and may have {MAX_MANIFEST_BYTES}"
            )));
        }
        self.read(at, size)
    }

    /// The bytes of a document, of a size that may be.
    fn read(&self, at: u64, size: u64) -> Result<Bytes> {
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        self.file.read_exact_at(&mut bytes, at).map_err(unreadable)?;
        Ok(bytes.into())
    }

    fn describe_layer(&self, at: u64, size: u64) -> Result<Descriptor> {
        let mut hash = Sha256::new();
        let mut chunk = vec![0; CHUNK];
        let mut done = 0;
        let mut magic = [0; 4];
        while done < size {
            check_cancelled(&self.stop)?;
            let wanted = usize::try_from(size - done).map_or(CHUNK, |rest| rest.min(CHUNK));
            let piece = &mut chunk[..wanted];
            self.file.read_exact_at(piece, at + done).map_err(unreadable)?;
            // A shorter one is no compressed one.
            if let (0, Some(first)) = (done, piece.first_chunk()) {
                magic = *first;
            }
            hash.update(&*piece);
            done += u64::try_from(wanted).unwrap_or(u64::MAX);
        }
        let digest = format!("sha256:{}", hex::encode(hash.finalize()));
        let digest =
            digest.parse().map_err(|fault| Error::internal("digest of a layer").with_source(fault))?;
        Ok(Descriptor::new(media_type(magic), digest, size))
    }
}

/// The image of the list that this reference means.
fn select_image<'a>(listed: &'a [ManifestEntry], reference: &str) -> Result<&'a ManifestEntry> {
    let wanted = reference.parse::<Reference>().ok().map(|reference| reference.to_string());
    let names = |image: &&ManifestEntry| {
        let mut tags = image.repo_tags.iter().flatten();
        tags.any(|tag| tag.parse::<Reference>().ok().map(|tag| tag.to_string()) == wanted)
    };
    match (listed.iter().find(names), listed) {
        (Some(named), _) => Ok(named),
        (None, [only]) => Ok(only),
        (None, _) => {
            let tags = listed.iter().flat_map(|image| image.repo_tags.iter().flatten());
            let tags: Vec<_> = tags.take(MAX_NAMES_SHOWN).map(|tag| truncated(tag)).collect();
            let more = if tags.len() == MAX_NAMES_SHOWN { ", the first of them" } else { "" };
            Err(Error::not_found(format!(
                "the archive has {} images, none of them {reference:?}{more}: {tags:?}",
                listed.len()
            )))
        }
    }
}

/// What a layer is by its first bytes.
const fn media_type(magic: [u8; 4]) -> &'static str {
    match magic {
        [0x1f, 0x8b, _, _] => "application/vnd.oci.image.layer.v1.tar+gzip",
        [0x28, 0xb5, 0x2f, 0xfd] => "application/vnd.oci.image.layer.v1.tar+zstd",
        _ => "application/vnd.oci.image.layer.v1.tar",
    }
}

/// A path below the root of the archive, read as text.
fn normalized(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => drop(plain.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    plain
}

/// As much of a text from the archive as people need to see.
fn truncated(text: &str) -> String {
    text.chars().take(MAX_NAME_SHOWN).collect()
}

fn unreadable(fault: std::io::Error) -> Error {
    malformed("it is no tar archive, or is cut off").with_source(fault)
}

fn malformed(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, "the archive is not as docker save writes it")
        .with_source(Error::new(ErrorKind::InvalidArgument, why))
}

fn too_large(error: registry::Error) -> Error {
    Error::new(ErrorKind::InvalidArgument, "the archive has more than an image may have").with_source(error)
}

#[cfg(test)]
mod tests;
