//! Descriptors that are layers, and their compression, by their media types.

use super::Descriptor;
use crate::error::shown;
use crate::{Error, Result};

/// The media types of layers that containerd unpacks: each with its compression, and whether it is foreign.
#[rustfmt::skip]
const LAYERS: [(&str, Compression, bool); 11] = [
    ("application/vnd.oci.image.layer.v1.tar", Compression::None, false),
    ("application/vnd.oci.image.layer.v1.tar+gzip", Compression::Gzip, false),
    ("application/vnd.oci.image.layer.v1.tar+zstd", Compression::Zstd, false),
    ("application/vnd.oci.image.layer.nondistributable.v1.tar", Compression::None, true),
    ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", Compression::Gzip, true),
    ("application/vnd.oci.image.layer.nondistributable.v1.tar+zstd", Compression::Zstd, true),
    ("application/vnd.docker.image.rootfs.diff.tar", Compression::None, false),
    ("application/vnd.docker.image.rootfs.diff.tar.gzip", Compression::Gzip, false),
    ("application/vnd.docker.image.rootfs.diff.tar.zstd", Compression::Zstd, false),
    ("application/vnd.docker.image.rootfs.foreign.diff.tar", Compression::None, true),
    ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", Compression::Gzip, true),
];

/// Prefix of the media types of OCI's layers. containerd takes all of them for layers: those that it cannot unpack
/// are for a snapshotter that provides them itself, as nydus does.
const OCI_LAYER: &str = "application/vnd.oci.image.layer.";

/// Compression of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Plain tar.
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

// === impl Descriptor ===

impl Descriptor {
    /// Returns whether this is a layer whose owner may not want it distributed: many registries do not have it, and
    /// where it is then to be had (`urls`) is not asked.
    #[must_use]
    pub fn is_foreign_layer(&self) -> bool {
        self.layer_kind().is_ok_and(|(_, is_foreign)| is_foreign)
    }

    /// The compression of this layer.
    ///
    /// # Errors
    /// [`Error::UnsupportedMediaType`] for anything that cannot be unpacked.
    pub fn layer_compression(&self) -> Result<Compression> {
        self.layer_kind().map(|(compression, _)| compression)
    }

    /// Returns whether this is a layer, be it one that cannot be unpacked.
    pub(super) fn is_layer(&self) -> bool {
        self.layer_kind().is_ok() || self.media_type.starts_with(OCI_LAYER)
    }

    /// The compression of a layer, and whether it is a foreign one.
    fn layer_kind(&self) -> Result<(Compression, bool)> {
        let known = LAYERS.iter().find(|(name, ..)| *name == self.media_type);
        let kind = known.map(|(_, compression, is_foreign)| (*compression, *is_foreign));
        kind.ok_or_else(|| Error::UnsupportedMediaType {
            what: format!("layer {}", self.digest),
            media_type: shown(&self.media_type),
            reason: "which is no image layer that can be unpacked (tar, plain or with gzip or zstd); layers for nydus need its snapshotter",
        })
    }
}
