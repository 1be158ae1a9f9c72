//! Reading an image from an archive in the format of `docker save`: its files are found through
//! `manifest.json`, and the archive is never unpacked.
//!
//! All functions block on reads of the file.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use switchyard_core::image::ImageReference;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_linux::beginning;
use switchyard_registry::{self as registry, Descriptor, Limits};
use tokio_util::sync::CancellationToken;

mod tar_reader;

pub(super) use tar_reader::check_cancelled;
use tar_reader::{TarEntryKind, TarReader};

/// The file of an archive that lists its images.
const MANIFEST_FILE: &str = "manifest.json";

/// The largest list of images, in bytes: parsed, it takes many times as much memory.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// Maximum number of links that are followed from an entry to a file.
const MAX_LINK_DEPTH: usize = 8;

/// Bytes that are read and hashed at a time.
const CHUNK: usize = 1 << 20;

/// Maximum number of names from an archive that an error shows, and of characters of each.
const MAX_NAMES_SHOWN: usize = 8;
const MAX_NAME_SHOWN: usize = 200;

/// A tar archive, with the positions of its files.
pub(crate) struct Archive {
    file: Arc<File>,
    entries: HashMap<PathBuf, ArchiveEntry>,
    /// Cancelled when the caller has given up: reading then ends with an error.
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

/// A layer, and its offset in the archive.
pub(crate) struct ArchiveLayer {
    pub(crate) at: u64,
    pub(crate) descriptor: Descriptor,
}

/// An image in `manifest.json`.
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
    /// Reads the headers of a tar archive. This and the other methods end with an error soon after `stop` is
    /// cancelled.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not a tar archive; `Cancelled`.
    pub(crate) fn open(file: File, stop: CancellationToken) -> Result<Self> {
        let mut entries = HashMap::new();
        let mut reader = TarReader::new(&file, &stop)?;
        while let Some(entry) = reader.next()? {
            let path = normalized(&entry.path);
            let found = match entry.kind {
                TarEntryKind::File { at, size } => ArchiveEntry::File { at, size },
                TarEntryKind::Symlink(target) => ArchiveEntry::Link(normalized(
                    &path.parent().unwrap_or(Path::new("")).join(target),
                )),
                TarEntryKind::HardLink(target) => ArchiveEntry::Link(normalized(&target)),
            };
            entries.insert(path, found);
        }
        Ok(Self {
            file: Arc::new(file),
            entries,
            stop,
        })
    }

    /// The image with this name, or the only image of the archive. The size of its configuration and the
    /// number of its layers are checked against `limits` before they are read.
    ///
    /// # Errors
    /// `NotFound` if the archive has several images and none of this name; `InvalidArgument` if a part of the
    /// image is missing, malformed or over its limit; `Cancelled`.
    pub(crate) fn image(&self, reference: &str, limits: &Limits) -> Result<ArchiveImage> {
        let list = self.read_manifest()?;
        let listed: Vec<ManifestEntry> = serde_json::from_slice(&list).map_err(|fault| {
            malformed(format!(
                "its {MANIFEST_FILE} is not a list of images: {}",
                truncated(&fault.to_string())
            ))
        })?;
        let image = select_image(&listed, reference)?;
        let paths = image.layers.as_deref().unwrap_or_default();
        limits
            .check_layer_count("its image", paths.len())
            .map_err(too_large)?;
        let (at, size) = self.locate(&image.config)?;
        limits
            .check_config("its configuration", size)
            .map_err(too_large)?;
        let config = self.read(at, size)?;
        // A layer that is listed several times is read once.
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
        Ok(ArchiveImage {
            file: Arc::clone(&self.file),
            config,
            layers,
        })
    }

    /// Offset and size of a file, which may be reached through links.
    fn locate(&self, path: &Path) -> Result<(u64, u64)> {
        let mut at = normalized(path);
        for _ in 0..MAX_LINK_DEPTH {
            match self.entries.get(&at) {
                Some(ArchiveEntry::File { at, size }) => return Ok((*at, *size)),
                Some(ArchiveEntry::Link(target)) => at.clone_from(target),
                None => break,
            }
        }
        Err(malformed(format!(
            "it has no file {:?}",
            truncated(&path.to_string_lossy())
        )))
    }

    /// The content of `manifest.json`.
    fn read_manifest(&self) -> Result<Bytes> {
        let (at, size) = self.locate(Path::new(MANIFEST_FILE))?;
        if size > MAX_MANIFEST_BYTES {
            return Err(malformed(format!(
                "{MANIFEST_FILE} has {size} bytes, and may have {MAX_MANIFEST_BYTES}"
            )));
        }
        self.read(at, size)
    }

    /// The content of a document, whose size the caller has checked.
    fn read(&self, at: u64, size: u64) -> Result<Bytes> {
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        self.file
            .read_exact_at(&mut bytes, at)
            .map_err(unreadable)?;
        Ok(bytes.into())
    }

    /// Media type, digest and size of a layer.
    fn describe_layer(&self, at: u64, size: u64) -> Result<Descriptor> {
        let mut hash = Sha256::new();
        let mut chunk = vec![0; CHUNK];
        let mut done = 0;
        let mut magic = [0; 4];
        while done < size {
            check_cancelled(&self.stop)?;
            let wanted = usize::try_from(size - done).map_or(CHUNK, |rest| rest.min(CHUNK));
            let piece = &mut chunk[..wanted];
            self.file
                .read_exact_at(piece, at + done)
                .map_err(unreadable)?;
            // A layer of fewer than four bytes is not compressed.
            if let (0, Some(first)) = (done, piece.first_chunk()) {
                magic = *first;
            }
            hash.update(&*piece);
            done += u64::try_from(wanted).unwrap_or(u64::MAX);
        }
        let digest = format!("sha256:{}", hex::encode(hash.finalize()));
        let digest = digest
            .parse()
            .map_err(|fault| Error::internal("digest of a layer").with_source(fault))?;
        Ok(Descriptor::new(media_type(magic), digest, size))
    }
}

/// The image in the list with this name, or the only image in the list.
fn select_image<'a>(listed: &'a [ManifestEntry], reference: &str) -> Result<&'a ManifestEntry> {
    let wanted = reference.parse::<ImageReference>().ok();
    let names = |image: &&ManifestEntry| {
        let mut tags = image.repo_tags.iter().flatten();
        tags.any(|tag| tag.parse::<ImageReference>().ok() == wanted)
    };
    match (listed.iter().find(names), listed) {
        (Some(named), _) => Ok(named),
        (None, [only]) => Ok(only),
        (None, _) => {
            let tags = listed
                .iter()
                .flat_map(|image| image.repo_tags.iter().flatten());
            let tags: Vec<_> = tags
                .take(MAX_NAMES_SHOWN)
                .map(|tag| truncated(tag))
                .collect();
            let more = if tags.len() == MAX_NAMES_SHOWN {
                ", the first of them"
            } else {
                ""
            };
            Err(Error::not_found(format!(
                "the archive has {} images, none of them {reference:?}{more}: {tags:?}",
                listed.len()
            )))
        }
    }
}

/// The media type of a layer, by its first bytes.
const fn media_type(magic: [u8; 4]) -> &'static str {
    match magic {
        [0x1f, 0x8b, _, _] => "application/vnd.oci.image.layer.v1.tar+gzip",
        [0x28, 0xb5, 0x2f, 0xfd] => "application/vnd.oci.image.layer.v1.tar+zstd",
        _ => "application/vnd.oci.image.layer.v1.tar",
    }
}

/// A path relative to the root of the archive, without `.` and `..`: normalized as text, without reading
/// links.
fn normalized(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => drop(normal.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    normal
}

/// The beginning of a text from the archive, for errors.
fn truncated(text: &str) -> String {
    beginning(text, MAX_NAME_SHOWN).to_owned()
}

pub(super) fn unreadable(fault: std::io::Error) -> Error {
    let why = "it is not a tar archive, or is cut off";
    malformed_by(Error::new(ErrorKind::InvalidArgument, why).with_source(fault))
}

pub(super) fn malformed(why: impl Into<String>) -> Error {
    malformed_by(Error::new(ErrorKind::InvalidArgument, why))
}

fn malformed_by(why: Error) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        "the archive is not as docker save writes it",
    )
    .with_source(why)
}

fn too_large(error: registry::Error) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        "the archive has more than an image may have",
    )
    .with_source(error)
}

#[cfg(test)]
mod tests;
