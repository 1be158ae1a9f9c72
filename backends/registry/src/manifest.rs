//! Indexes, manifests and image configurations: OCI image specification 1.1 and Docker's schema 2.
//!
//! The structs contain what this gateway uses. Unknown fields are ignored; the received bytes are stored as
//! they are, and nothing is serialized again.

mod annotations;
mod layers;

use std::collections::BTreeMap;

pub use annotations::SNAPSHOT_ANNOTATION;
pub use layers::Compression;
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};

use crate::error::{Malformed, shown};
use crate::json::null_is_empty;
use crate::{Digest, Error, Platform, Platforms, Result};

/// Maximum number of platforms of an index that an error names.
const OFFERS_SHOWN: usize = 16;

/// The media types of documents that a manifest request may return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaType {
    /// `application/vnd.oci.image.index.v1+json`
    OciIndex,
    /// `application/vnd.docker.distribution.manifest.list.v2+json`
    DockerList,
    /// `application/vnd.oci.image.manifest.v1+json`
    OciManifest,
    /// `application/vnd.docker.distribution.manifest.v2+json`
    DockerManifest,
}

/// A descriptor: the media type, digest and size of some content.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Its media type.
    pub media_type: String,
    /// Its digest.
    pub digest: Digest,
    /// Its size in bytes, which fits the 63 bits of the specification.
    #[serde(deserialize_with = "size")]
    pub size: u64,
    /// The platform of a manifest in an index. None is allowed there.
    #[serde(default)]
    pub platform: Option<Platform>,
    /// Its annotations whose keys begin with [`SNAPSHOT_ANNOTATION`]. The image's author chose them.
    #[serde(default, deserialize_with = "annotations::of_snapshots")]
    pub annotations: BTreeMap<String, String>,
}

/// A list of manifests, usually one per platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// The entries in the order of the document.
    pub manifests: Vec<Descriptor>,
}

/// An image for one platform: its configuration and its layers, lowest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageManifest {
    /// The image's configuration.
    pub config: Descriptor,
    /// The layers, lowest first.
    pub layers: Vec<Descriptor>,
}

/// Result of a manifest request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manifest {
    /// An OCI index or Docker manifest list.
    Index(Index),
    /// An OCI or Docker image manifest.
    Image(ImageManifest),
}

/// The part of an image's configuration that describes the process.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ProcessConfig {
    /// `user[:group]`, by name or number; empty is root.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub user: String,
    /// `NAME=value` entries.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub env: Vec<String>,
    /// The program and its fixed arguments.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub entrypoint: Vec<String>,
    /// The default arguments.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub cmd: Vec<String>,
    /// The working directory; empty is `/`.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub working_dir: String,
    /// Labels of the image.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Paths that are meant to be volumes; the values are empty.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub volumes: BTreeMap<String, IgnoredAny>,
    /// The signal that asks the process to end, by name or number.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub stop_signal: String,
}

/// The layers of an image, uncompressed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct RootFs {
    /// Digests of the uncompressed layers, lowest first.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub diff_ids: Vec<Digest>,
}

/// An image's configuration. Its digest is the image's id.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "ConfigDocument")]
pub struct ImageConfig {
    /// The platform that the image is for.
    pub platform: Platform,
    /// The process.
    pub config: ProcessConfig,
    /// The uncompressed layers.
    pub rootfs: RootFs,
    /// Time of the build, RFC 3339.
    pub created: Option<String>,
}

/// The format of an image's configuration. The platform's fields are listed here: flattening a struct into
/// this one would keep all unknown fields in memory, at ten times their size.
#[derive(Deserialize)]
struct ConfigDocument {
    #[serde(default, deserialize_with = "null_is_empty")]
    os: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    architecture: String,
    #[serde(default)]
    variant: Option<String>,
    #[serde(default, deserialize_with = "null_is_empty")]
    config: ProcessConfig,
    #[serde(default, deserialize_with = "null_is_empty")]
    rootfs: RootFs,
    #[serde(default)]
    created: Option<String>,
}

/// The union of all documents, to determine which kind one is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    schema_version: Option<u64>,
    media_type: Option<String>,
    manifests: Option<Vec<Descriptor>>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    fs_layers: Option<IgnoredAny>,
}

// === impl MediaType ===

impl MediaType {
    /// All supported media types, for the `Accept` header.
    pub(crate) const ALL: [Self; 4] = [
        Self::OciIndex,
        Self::DockerList,
        Self::OciManifest,
        Self::DockerManifest,
    ];

    /// The media type as text.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OciIndex => "application/vnd.oci.image.index.v1+json",
            Self::DockerList => "application/vnd.docker.distribution.manifest.list.v2+json",
            Self::OciManifest => "application/vnd.oci.image.manifest.v1+json",
            Self::DockerManifest => "application/vnd.docker.distribution.manifest.v2+json",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|media_type| media_type.as_str() == text)
    }

    fn is_index(self) -> bool {
        match self {
            Self::OciIndex | Self::DockerList => true,
            Self::OciManifest | Self::DockerManifest => false,
        }
    }
}

// === impl Descriptor ===

impl Descriptor {
    /// A descriptor without platform and annotations.
    #[must_use]
    pub fn new(media_type: impl Into<String>, digest: Digest, size: u64) -> Self {
        Self {
            media_type: media_type.into(),
            digest,
            size,
            platform: None,
            annotations: BTreeMap::new(),
        }
    }

    /// Returns whether this is an index or manifest list.
    #[must_use]
    pub fn is_index(&self) -> bool {
        MediaType::parse(&self.media_type).is_some_and(MediaType::is_index)
    }
}

// === impl Manifest ===

impl Manifest {
    /// Parses the response to a manifest request. `what` names it in errors, `content_type` is the header or
    /// the media type of the descriptor that led here. A document that could be read as two different kinds
    /// is refused, so that two programs cannot see different images under one digest.
    ///
    /// # Errors
    /// [`Error::Protocol`] if it is malformed or ambiguous, [`Error::UnsupportedMediaType`] for schema 1 and
    /// for anything that is not a runnable image.
    pub fn parse(
        what: &str,
        content_type: Option<&str>,
        bytes: &[u8],
    ) -> Result<(MediaType, Self)> {
        let document: Document =
            serde_json::from_slice(bytes).map_err(|error| Error::Protocol {
                what: what.to_owned(),
                reason: "is no valid manifest".to_owned(),
                source: Some(Malformed::boxed(&error)),
            })?;
        let media_type = media_type(what, content_type, &document)?;
        let Document {
            schema_version,
            media_type: _,
            manifests,
            config,
            layers,
            fs_layers: _,
        } = document;
        // Those that leave it out are of this one: the first had another form.
        if let Some(other) = schema_version.filter(|version| *version != 2) {
            let reason = format!("has schemaVersion {other}, and 2 alone is read");
            return Err(Error::protocol(what, reason));
        }
        let manifest = match (media_type.is_index(), manifests, config, layers) {
            // Lists that are null or absent are empty: an image may consist of its configuration alone.
            (true, manifests, None, None) => Self::Index(Index {
                manifests: manifests.unwrap_or_default(),
            }),
            (false, None, Some(config), layers) => Self::Image(ImageManifest {
                config,
                layers: layers.unwrap_or_default(),
            }),
            (false, _, None, _) => {
                return Err(Error::protocol(what, "is a manifest without config"));
            }
            (true, _, _, _) | (false, Some(_), Some(_), _) => {
                return Err(Error::protocol(
                    what,
                    "is ambiguous: it has the fields of an index and of a manifest",
                ));
            }
        };
        if let Self::Image(image) = &manifest {
            image.check(what)?;
        }
        Ok((media_type, manifest))
    }
}

// === impl ImageManifest ===

impl ImageManifest {
    fn check(&self, what: &str) -> Result<()> {
        match self.config.media_type.as_str() {
            "application/vnd.oci.image.config.v1+json"
            | "application/vnd.docker.container.image.v1+json" => {}
            // The first clients of schema 2 pushed this.
            "application/octet-stream" => {}
            other => {
                return Err(Error::UnsupportedMediaType {
                    what: format!("config of {what}"),
                    media_type: shown(other),
                    reason: "so it is an artifact and no container image",
                });
            }
        }
        self.layers
            .iter()
            .filter(|layer| !layer.is_layer())
            .try_for_each(|layer| layer.layer_compression().map(|_| ()))
    }

    /// Checks that all layers can be unpacked. Others are for a snapshotter that provides them itself.
    ///
    /// # Errors
    /// [`Error::UnsupportedMediaType`].
    pub fn check_unpackable(&self) -> Result<()> {
        self.layers
            .iter()
            .try_for_each(|layer| layer.layer_compression().map(|_| ()))
    }
}

// === impl Index ===

impl Index {
    /// The best entry for `platforms`: the best-ranked platform, the first entry among equals. Entries that
    /// name no platform are taken only if none that names one fits.
    ///
    /// # Errors
    /// [`Error::NoMatchingPlatform`], which lists the platforms of the index.
    pub fn select(&self, what: &str, platforms: &Platforms) -> Result<&Descriptor> {
        let rank = |entry: &Descriptor| match &entry.platform {
            Some(platform) => platforms.rank(platform),
            None => Some(usize::MAX),
        };
        let ranked = self
            .manifests
            .iter()
            .filter(|entry| MediaType::parse(&entry.media_type).is_some())
            .filter_map(|entry| Some((rank(entry)?, entry)));
        ranked
            .min_by_key(|(rank, _)| *rank)
            .map(|(_, entry)| entry)
            .ok_or_else(|| Error::NoMatchingPlatform {
                what: what.to_owned(),
                wanted: platforms.to_string(),
                available: self.offers(),
            })
    }

    fn offers(&self) -> String {
        let mut named = self
            .manifests
            .iter()
            .filter_map(|entry| entry.platform.as_ref());
        let offers: Vec<String> = named
            .by_ref()
            .take(OFFERS_SHOWN)
            .map(ToString::to_string)
            .collect();
        match (offers.is_empty(), named.count()) {
            (true, _) => "nothing".to_owned(),
            (false, 0) => shown(&offers.join(", ")),
            (false, more) => format!("{} and {more} more", shown(&offers.join(", "))),
        }
    }
}

// === impl ImageConfig ===

impl ImageConfig {
    /// Parses an image's configuration.
    ///
    /// # Errors
    /// [`Error::Protocol`] if it is malformed.
    pub fn parse(what: &str, bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|error| Error::Protocol {
            what: what.to_owned(),
            reason: "is no valid image configuration".to_owned(),
            source: Some(Malformed::boxed(&error)),
        })
    }
}

impl From<ConfigDocument> for ImageConfig {
    fn from(document: ConfigDocument) -> Self {
        let ConfigDocument {
            os,
            architecture,
            variant,
            config,
            rootfs,
            created,
        } = document;
        Self {
            platform: Platform {
                os,
                architecture,
                variant,
            },
            config,
            rootfs,
            created,
        }
    }
}

/// Decides which kind a document is. Its own media type takes precedence over the server's header, which must not say
/// that an index is a manifest or the reverse; that one of the two is Docker's and the other OCI's is common, and of no
/// consequence. A missing or generic header is ignored.
fn media_type(what: &str, content_type: Option<&str>, document: &Document) -> Result<MediaType> {
    let own = document.media_type.as_deref().filter(|own| !own.is_empty());
    let header = content_type.map(|header| header.split(';').next().unwrap_or_default().trim());
    if document.schema_version == Some(1) || document.fs_layers.is_some() {
        return Err(Error::UnsupportedMediaType {
            what: what.to_owned(),
            media_type: shown(own.or(header).unwrap_or("schema 1")),
            reason: "which is Docker's schema 1, dead since 2017; push the image again with a current tool",
        });
    }
    let unsupported = |media_type: &str| Error::UnsupportedMediaType {
        what: what.to_owned(),
        media_type: shown(media_type),
        reason: "which is no container image or index of images",
    };
    let header = header.and_then(MediaType::parse);
    match (own, header) {
        (Some(own), header) => {
            let parsed = MediaType::parse(own).ok_or_else(|| unsupported(own))?;
            match header {
                Some(header) if header.is_index() != parsed.is_index() => Err(Error::protocol(
                    what,
                    format!(
                        "says it is {:?} but was sent as {:?}",
                        parsed.as_str(),
                        header.as_str()
                    ),
                )),
                Some(_) | None => Ok(parsed),
            }
        }
        (None, Some(header)) => Ok(header),
        // The media type is optional in OCI documents, and always present in Docker's.
        (None, None) if document.manifests.is_some() => Ok(MediaType::OciIndex),
        (None, None) if document.config.is_some() => Ok(MediaType::OciManifest),
        (None, None) => Err(unsupported(content_type.unwrap_or_default())),
    }
}

/// Parses a size of at most 63 bits: the specification has signed sizes, and clients read larger ones
/// differently.
fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let size = u64::deserialize(deserializer)?;
    i64::try_from(size).map_err(|_| D::Error::custom("a size is larger than 63 bits hold"))?;
    Ok(size)
}

#[cfg(test)]
mod tests;
