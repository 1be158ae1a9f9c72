//! Types that the parts of the image store share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use switchyard_core::{Error, ErrorKind, Reason};
use switchyard_registry as registry;

use super::index::ImageInfo;

/// The snapshotter of each runtime handler.
#[derive(Debug, Clone)]
pub(crate) struct Snapshotters {
    pub(crate) default: String,
    pub(crate) by_handler: BTreeMap<String, String>,
}

impl Snapshotters {
    pub(crate) fn of(&self, handler: &str) -> &str {
        self.by_handler
            .get(handler)
            .map_or(&self.default, String::as_str)
    }

    pub(crate) fn all(&self) -> BTreeSet<&str> {
        std::iter::once(self.default.as_str())
            .chain(self.by_handler.values().map(String::as_str))
            .collect()
    }
}

/// The configuration of images.
#[derive(Debug)]
pub(crate) struct ImagePolicy {
    /// The client of the registries.
    pub(crate) registry: registry::Client,
    /// The snapshotters that image layers are unpacked into.
    pub(crate) snapshotters: Snapshotters,
    /// Maximum number of layers of one pull that are downloaded concurrently.
    pub(crate) downloads: usize,
    /// References of pinned images, which must not be removed.
    pub(crate) pins: Vec<String>,
    /// Limits on the size and the number of an image's parts.
    pub(crate) limits: registry::Limits,
    /// True if a pull or a load is refused if its layers need more than the free space.
    pub(crate) check_free_space: bool,
}

/// An image that a task can be created from.
#[derive(Debug, Clone)]
pub(crate) struct RunnableImage {
    pub(crate) info: Arc<ImageInfo>,
    /// The image's name by digest, or its id if it has no such name.
    pub(crate) image_ref: String,
    /// The name of the image record.
    pub(crate) name: String,
    /// The name of the snapshot of its top layer; `None` for an image without layers.
    pub(crate) top: Option<String>,
}

/// Time for which a measurement of disk usage is cached.
pub(crate) const USAGE_AGE: Duration = Duration::from_secs(10);

/// Converts an error of the registry client.
pub(crate) fn from_registry(error: registry::Error) -> Error {
    use registry::Error as E;
    let kind = match &error {
        E::InvalidReference(_) => ErrorKind::InvalidArgument,
        E::InvalidConfig { .. } => ErrorKind::FailedPrecondition,
        E::NotFound { .. } | E::NoMatchingPlatform { .. } => ErrorKind::NotFound,
        E::Unauthorized { .. } | E::Denied { .. } => ErrorKind::Unauthenticated,
        E::Unavailable { .. } | E::RateLimited { .. } => ErrorKind::Unavailable,
        E::UnsupportedMediaType { .. } | E::TooLarge { .. } => ErrorKind::InvalidArgument,
        E::Protocol { .. } | E::DigestMismatch { .. } | E::SizeMismatch { .. } => {
            ErrorKind::Internal
        }
    };
    let converted = Error::new(kind, "registry").with_source(error);
    // Other errors of a pull are unavailable too, such as containerd's, and the registry is not to blame for them.
    if kind == ErrorKind::Unavailable {
        converted.with_reason(Reason::RegistryUnavailable)
    } else {
        converted
    }
}

/// A time in the format of labels.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    prost_types::Timestamp::from(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unavailable_registry_is_told_apart() {
        let what = || "library/busybox:1".to_owned();
        let host = || "registry.example".to_owned();
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let away = registry::Error::Unavailable {
            what: what(),
            host: host(),
            source: refused.into(),
        };
        let busy = registry::Error::RateLimited {
            what: what(),
            host: host(),
            reason: "too many requests".to_owned(),
            retry_after: None,
        };
        for error in [away, busy] {
            let error = from_registry(error).context("pull");
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert_eq!(error.reason(), Some(Reason::RegistryUnavailable));
        }
        let missing = from_registry(registry::Error::NotFound {
            what: what(),
            host: host(),
        });
        assert_eq!(
            (missing.kind(), missing.reason()),
            (ErrorKind::NotFound, None)
        );
    }
}
