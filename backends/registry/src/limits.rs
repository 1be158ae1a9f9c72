//! The limits of an image. Registries are not trusted: each limit bounds the resources that one of them can
//! make this process use.

use crate::{Descriptor, Error, Result};

/// The limits of an image. A limit that is reached is named by its key in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a manifest or an index, which also bounds the entries of an index.
    pub manifest_bytes: u64,
    /// Bytes of an image's configuration.
    pub config_bytes: u64,
    /// Layers of an image.
    pub layers: usize,
    /// Bytes of all layers of an image as they are in the registry, compressed; `None` for no limit.
    pub image_bytes: Option<u64>,
}

/// A limit, and the key that changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) most: u64,
    /// `None` if it cannot be configured.
    pub(crate) key: Option<&'static str>,
}

// === impl Limits ===

impl Default for Limits {
    /// The largest limits of comparable programs: containerd's for a manifest, that of containers/image
    /// (CRI-O, Podman) for a configuration, and as many layers as the kernel's overlayfs supports.
    fn default() -> Self {
        Self {
            manifest_bytes: 4 * 1048 * 1048,
            config_bytes: 4 << 20,
            layers: 500,
            image_bytes: None,
        }
    }
}

impl Limits {
    /// The keys that errors name.
    pub const KEYS: [&str; 4] = [
        "images.max_manifest_bytes",
        "images.max_config_bytes",
        "images.max_layers",
        "images.max_image_bytes",
    ];

    /// Checks the number and the sizes of an image's layers. `what` names the image in errors.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn check_layers(&self, what: &str, layers: &[Descriptor]) -> Result<()> {
        let [.., image_key] = Self::KEYS;
        self.check_layer_count(what, layers.len())?;
        let bytes = total_bytes(layers);
        match self.image_bytes {
            Some(most) if bytes > most => {
                let bound = Bound {
                    most,
                    key: Some(image_key),
                };
                Err(bound.exceeded(what, format!("{bytes} bytes of layers")))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Checks only the number of an image's layers, before their sizes are known. `what` names the image in
    /// errors.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn check_layer_count(&self, what: &str, count: usize) -> Result<()> {
        if count <= self.layers {
            return Ok(());
        }
        let most = u64::try_from(self.layers).unwrap_or(u64::MAX);
        let bound = Bound {
            most,
            key: Some(Self::KEYS[2]),
        };
        Err(bound.exceeded(what, format!("{count} layers")))
    }

    /// Checks the size of an image's configuration. `what` names it in errors.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn check_config(&self, what: &str, bytes: u64) -> Result<()> {
        let bound = Bound {
            most: self.config_bytes,
            key: Some(Self::KEYS[1]),
        };
        if bytes > bound.most {
            Err(bound.exceeded(what, format!("{bytes} bytes")))
        } else {
            Ok(())
        }
    }

    pub(crate) const fn manifest(&self) -> Bound {
        Bound {
            most: self.manifest_bytes,
            key: Some(Self::KEYS[0]),
        }
    }
}

/// The total size of these blobs, in bytes; saturates.
#[must_use]
pub fn total_bytes(blobs: &[Descriptor]) -> u64 {
    blobs
        .iter()
        .fold(0, |sum, blob| sum.saturating_add(blob.size))
}

// === impl Bound ===

impl Bound {
    /// The error for something whose size exceeds the limit; `size` is a number with its unit.
    pub(crate) fn exceeded(self, what: &str, size: String) -> Error {
        Error::TooLarge {
            what: what.to_owned(),
            size,
            limit: self.most,
            key: self.key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Digest;

    fn layers(sizes: &[u64]) -> Vec<Descriptor> {
        sizes
            .iter()
            .map(|size| Descriptor::new("x", Digest::sha256(b"x"), *size))
            .collect()
    }

    #[test]
    fn limit_error_names_size_limit_and_key() {
        let limits = Limits {
            image_bytes: Some(10),
            layers: 2,
            ..Limits::default()
        };
        let error =
            |layers: &[Descriptor]| limits.check_layers("img", layers).unwrap_err().to_string();
        assert!(limits.check_layers("img", &layers(&[5, 5])).is_ok());
        assert_eq!(
            error(&layers(&[1, 1, 1])),
            "img has 3 layers, more than the limit of 2 (images.max_layers)"
        );
        assert_eq!(
            error(&layers(&[5, 6])),
            "img has 11 bytes of layers, more than the limit of 10 (images.max_image_bytes)"
        );
        assert_eq!(
            limits
                .check_config("config", 4_194_305)
                .unwrap_err()
                .to_string(),
            "config has 4194305 bytes, more than the limit of 4194304 (images.max_config_bytes)"
        );
        assert!(limits.check_config("config", 4 << 20).is_ok());
    }

    #[test]
    fn size_sums_do_not_overflow() {
        assert_eq!(total_bytes(&layers(&[u64::MAX, u64::MAX, 2])), u64::MAX);
        let limits = Limits {
            image_bytes: Some(1 << 40),
            ..Limits::default()
        };
        assert!(limits.check_layers("img", &layers(&[u64::MAX, 2])).is_err());
    }
}
