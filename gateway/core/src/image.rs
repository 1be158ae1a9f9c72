//! Images: what the node has, and how it gets more. Images have no owner, only holders.
//!
//! An owner that has pulled an image holds it. Its right to use the image is the right to its manifest, as its own credentials have
//! proved it: what one owner pulled with credentials another may not use until it has pulled it as well.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::PathBuf;

use async_trait::async_trait;

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

/// An image that the node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Digest of the configuration.
    pub id: ImageId,
    /// Names with a tag, `docker.io/library/busybox:latest`.
    pub repo_tags: Vec<String>,
    /// Names with a digest, `docker.io/library/busybox@sha256:…`.
    pub repo_digests: Vec<String>,
    /// Size of what was downloaded, in bytes.
    pub size_bytes: u64,
    /// The `USER` line of its configuration; empty for root.
    pub user: String,
    /// Directories that its configuration declares as volumes.
    pub volumes: Vec<PathBuf>,
    /// Labels of its configuration.
    pub labels: BTreeMap<String, String>,
    /// Must not be removed to free space.
    pub pinned: bool,
    /// Who has pulled it, and by what right.
    pub holders: BTreeMap<Owner, Right>,
    /// Some name of it is open to all and has no holder, as after an import. One whose last holder had it by credentials is not.
    pub imported: bool,
}

/// By what right an owner has pulled an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// The registry gave it for credentials: it is this owner's alone.
    Private,
    /// The registry gives it to everybody.
    Open,
}

impl Image {
    /// Whether this owner may use it.
    #[must_use]
    pub fn is_open_to(&self, owner: Owner) -> bool {
        self.imported
            || self.holders.contains_key(&owner)
            || self.holders.values().any(|right| *right == Right::Open)
    }
}

/// Proof of the right to pull. Its `Debug` never shows a secret.
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
    /// A refresh token, to be traded for a bearer token.
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
    /// Reference as the user wrote it; the backend completes it (`busybox` is `docker.io/library/busybox:latest`).
    pub reference: String,
    /// What to show the registry.
    pub credentials: Credentials,
    /// Runtime handler whose snapshotter the image is unpacked for; empty for the default.
    pub handler: String,
    /// Who asks, and holds the image from then on.
    pub owner: Owner,
}

impl PullRequest {
    /// The right that a pull that succeeds gives.
    #[must_use]
    pub fn right(&self) -> Right {
        if self.credentials == Credentials::Anonymous { Right::Open } else { Right::Private }
    }
}

/// An image to take out of an archive.
#[derive(Debug)]
pub struct LoadRequest {
    /// A tar archive as `docker save` writes it.
    pub archive: File,
    /// Which of its images, where it has several.
    pub reference: String,
    /// Runtime handler whose snapshotter the image is unpacked for; empty for the default.
    pub handler: String,
    /// Who asks, and alone may use the image: what an archive says of itself proves nothing.
    pub owner: Owner,
}

/// How far a pull is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PullProgress {
    /// Layers of the image.
    pub layers: usize,
    /// Those of them that are here.
    pub layers_done: usize,
    /// Bytes of its layers, compressed.
    pub bytes: u64,
    /// Those of them that are here.
    pub bytes_done: u64,
}

/// The images of a backend.
///
/// Every method takes effect before it returns, and may be called at any time by any number of callers.
#[async_trait]
pub trait ImageStore: Send + Sync {
    /// Pulls and unpacks an image, and gives its id. Callers that ask for the same image with the same credentials share one
    /// download; it stops when the last of them has gone. Dropping the future is safe: nothing half-made becomes visible.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed reference, `NotFound`, `Unauthenticated`, `Unavailable` if the registry cannot be
    /// reached, `ResourceExhausted` if the disk is full.
    async fn pull(&self, request: &PullRequest) -> Result<ImageId>;

    /// How far a pull of this request is that is in flight; `None` if there is none, or if it does not know yet what there is to do.
    fn progress(&self, request: &PullRequest) -> Option<PullProgress>;

    /// Takes an image out of an archive and unpacks it, and gives its id. It gets none of the names that the archive has for it: others
    /// trust those. Dropping the future is safe.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no such archive; `NotFound` if the image is not in it; `ResourceExhausted` if the disk is full.
    async fn load(&self, request: LoadRequest) -> Result<ImageId>;

    /// The image of this id, id prefix, or reference; `None` if the node does not have it.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be read. A text that cannot be a reference names no image: it is no error.
    async fn get(&self, reference: &str) -> Result<Option<Image>>;

    /// The configuration of an image as its author wrote it: JSON, for people.
    ///
    /// # Errors
    /// `NotFound` if the node does not have it (any more); `Unavailable` if the store cannot be read.
    async fn config(&self, id: &ImageId) -> Result<String>;

    /// All images, one entry an id.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be read.
    async fn list(&self) -> Result<Vec<Image>>;

    /// Has this owner let go of the image that this reference names, and removes it under all names that nobody else holds; `in_use`
    /// says that others use it: then no name goes, and what its last holder had by credentials is nobody's until it is pulled again.
    /// Idempotent: what is not there is removed.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be written.
    async fn remove(&self, reference: &str, owner: Owner, in_use: bool) -> Result<()>;

    /// What images use on disk, by file system; never empty.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be read.
    async fn usage(&self) -> Result<Vec<DiskUsage>>;
}
