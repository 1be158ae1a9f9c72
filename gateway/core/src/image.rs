//! Images: those on the node, and how further ones are pulled or loaded. Images have no owner, only holders.
//!
//! An owner that has pulled an image holds it. It may use the image because its own credentials have proved
//! access to the manifest: an image that one owner pulled with credentials is not usable by another owner
//! until that one has pulled it as well.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::time::SystemTime;

use futures::future::BoxFuture;

mod digest;
mod reference;

pub use digest::{DigestAlgorithm, ImageDigest, InvalidDigest};
pub use reference::{ImageReference, InvalidReference, ReferenceField};

use crate::error::Result;
use crate::id::Owner;
use crate::stats::DiskUsage;

/// The identity of an image: the digest of its configuration, `sha256:…`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageId(String);

impl ImageId {
    /// Wraps a digest that the backend has checked.
    #[must_use]
    pub fn new(digest: impl Into<String>) -> Self {
        Self(digest.into())
    }

    /// The digest.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An image on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Digest of the configuration.
    pub id: ImageId,
    /// Names with a tag, `docker.io/library/busybox:latest`.
    pub repo_tags: Vec<String>,
    /// Names with a digest, `docker.io/library/busybox@sha256:…`.
    pub repo_digests: Vec<String>,
    /// Size of the download, in bytes.
    pub size_bytes: u64,
    /// The `USER` of its configuration; empty for root.
    pub user: String,
    /// Directories that its configuration declares as volumes.
    pub volumes: Vec<PathBuf>,
    /// Labels of its configuration.
    pub labels: BTreeMap<String, String>,
    /// Must not be removed to free space.
    pub pinned: bool,
    /// The owners that have pulled it, and their rights.
    pub holders: BTreeMap<Owner, Right>,
    /// Some name of it is open to all owners and has no holder, as after an import. False for an image whose
    /// last holder pulled it with credentials.
    pub imported: bool,
    /// Time at which the node got it under the first of its names; `None` if unknown.
    pub stored_at: Option<SystemTime>,
}

/// The right by which an owner holds an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// The registry required credentials: only this owner may use the image.
    Private,
    /// The registry serves it without credentials.
    Open,
}

impl Image {
    /// Returns whether this owner may use it.
    #[must_use]
    pub fn is_open_to(&self, owner: Owner) -> bool {
        self.imported
            || self.holders.contains_key(&owner)
            || self.holders.values().any(|right| *right == Right::Open)
    }
}

/// Owners that keep an image on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageKeepers {
    /// The owners that have pulled it, and have not removed it.
    pub holders: Vec<Owner>,
    /// The owners whose tasks use it.
    pub users: Vec<Owner>,
}

impl ImageKeepers {
    /// Returns whether nothing keeps it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { holders, users } = self;
        holders.is_empty() && users.is_empty()
    }
}

impl fmt::Display for ImageKeepers {
    /// Such as `held by nomad, used by tasks of nomad and swarm`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { holders, users } = self;
        let named = |how: &str, owners: &[Owner]| {
            let names: Vec<&str> = owners.iter().map(|owner| owner.as_str()).collect();
            (!names.is_empty()).then(|| format!("{how} {}", names.join(" and ")))
        };
        let parts = [named("held by", holders), named("used by tasks of", users)];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(&parts.join(", "))
    }
}

/// Credentials for a registry. `Debug` never shows a secret.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Credentials {
    /// None.
    #[default]
    Anonymous,
    /// User name and password.
    Basic {
        /// User name.
        username: String,
        /// Password.
        password: String,
    },
    /// A refresh token, to be exchanged for a bearer token.
    IdentityToken(String),
    /// A bearer token.
    RegistryToken(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::Basic { .. } => "Basic(…)",
            Self::IdentityToken(_) => "IdentityToken(…)",
            Self::RegistryToken(_) => "RegistryToken(…)",
        })
    }
}

/// An image to pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullRequest {
    /// Reference as the user wrote it; the backend normalises it (`busybox` is
    /// `docker.io/library/busybox:latest`).
    pub reference: String,
    /// The credentials for the registry.
    pub credentials: Credentials,
    /// Runtime handler whose snapshotter the image is unpacked for; empty for the default.
    pub handler: String,
    /// The owner that requests it, and holds the image afterwards.
    pub owner: Owner,
}

impl PullRequest {
    /// The right that a successful pull of this request gives.
    #[must_use]
    pub fn right(&self) -> Right {
        if self.credentials == Credentials::Anonymous {
            Right::Open
        } else {
            Right::Private
        }
    }
}

/// An image to load from an archive.
#[derive(Debug)]
pub struct LoadRequest {
    /// A tar archive in the format of `docker save`.
    pub archive: File,
    /// Selects the image, if the archive has several.
    pub reference: String,
    /// Runtime handler whose snapshotter the image is unpacked for; empty for the default.
    pub handler: String,
    /// The owner that requests it; it alone may use the image, since the content of an archive proves no
    /// access right.
    pub owner: Owner,
}

/// The progress of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PullProgress {
    /// Layers of the image.
    pub layers: usize,
    /// Layers already on the node.
    pub layers_done: usize,
    /// Total size of the compressed layers, in bytes.
    pub bytes: u64,
    /// Bytes of them already on the node.
    pub bytes_done: u64,
}

/// A lease in the store of images: it keeps layers and documents that no image needs, or not yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageLease {
    /// Its id.
    pub id: String,
    /// True if this gateway has made it, as for a pull.
    pub is_own: bool,
    /// Time at which it was made; `None` if unknown.
    pub created_at: Option<SystemTime>,
    /// Time at which it ends by itself, as RFC 3339; `None` if it does not.
    pub ends_at: Option<String>,
}

/// Function that returns whether other owners use the image with this id, or are creating tasks from a
/// reference for which the second argument is true. An error refuses the removal of the image. It does not block.
pub type InUse<'a> = dyn Fn(&ImageId, &dyn Fn(&str) -> bool) -> Result<bool> + Send + Sync + 'a;

/// The images of a backend.
///
/// Every method takes effect before it returns, and may be called at any time by any number of callers.
pub trait ImageStore: Send + Sync {
    /// Pulls and unpacks an image, and returns its id. Concurrent requests for the same image with the same
    /// credentials share one download; it stops when the last caller goes away. Cancel-safe: no incomplete
    /// image becomes visible.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed reference, `NotFound`, `Unauthenticated`, `Unavailable` if the
    /// registry cannot be reached, `ResourceExhausted` if the disk is full.
    fn pull<'a>(&'a self, request: &'a PullRequest) -> BoxFuture<'a, Result<ImageId>>;

    /// The progress of a pull of this request that is in flight; `None` if there is none, or if its size is
    /// not known yet.
    fn progress(&self, request: &PullRequest) -> Option<PullProgress>;

    /// Loads and unpacks an image from an archive, and returns its id. The image gets none of the names in
    /// the archive, because other owners trust those names. Cancel-safe.
    ///
    /// # Errors
    /// `InvalidArgument` if the file is not such an archive; `NotFound` if the image is not in it;
    /// `ResourceExhausted` if the disk is full.
    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<ImageId>>;

    /// The image with this id, id prefix, or reference; `None` if the node does not have it, or if a part of
    /// it is known to be damaged, so that it has to be pulled again.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be read. A malformed reference is no error: it names no image.
    fn get<'a>(&'a self, reference: &'a str) -> BoxFuture<'a, Result<Option<Image>>>;

    /// The configuration of an image as its author wrote it: JSON, for people.
    ///
    /// # Errors
    /// `NotFound` if the node does not have it; `Unavailable` if the store cannot be read.
    fn config<'a>(&'a self, id: &'a ImageId) -> BoxFuture<'a, Result<String>>;

    /// All images, one entry per id. One whose documents are damaged is left out.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be read.
    fn list(&self) -> BoxFuture<'_, Result<Vec<Image>>>;

    /// Releases this owner's hold on the image that the reference names, and removes it under all names that
    /// have no other holder. If other owners use the image, no name is removed, and if the last holder had it
    /// by credentials, no owner may use it until it is pulled again. Nobody changes the names and holders of
    /// images, and no task that is being created looks one up, between the question whether the image is in
    /// use and the removal. An image whose content is damaged can be removed too, by its name, whoever holds
    /// it: nobody can use it. Idempotent: succeeds if the image does not exist.
    ///
    /// # Errors
    /// That of `in_use`, and nothing is changed then; `Unavailable` if the store cannot be written.
    fn remove<'a>(
        &'a self,
        reference: &'a str,
        owner: Owner,
        in_use: &'a InUse<'a>,
    ) -> BoxFuture<'a, Result<()>>;

    /// The leases in the store, also those that others have made.
    ///
    /// # Errors
    /// `Unavailable` if they cannot be read.
    fn leases(&self) -> BoxFuture<'_, Result<Vec<ImageLease>>>;

    /// Disk usage of images, by file system; never empty.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be read.
    fn usage(&self) -> BoxFuture<'_, Result<Vec<DiskUsage>>>;
}
