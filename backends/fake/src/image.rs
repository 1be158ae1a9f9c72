//! Images: those in the simulated registry, and those that were pulled.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use futures::future::{BoxFuture, WeakShared};
use switchyard_core::id::Owner;
use switchyard_core::image::{
    Credentials, Image, ImageId, ImageReference, InUse, PullProgress, Right,
};
use switchyard_core::spec::Signal;
use switchyard_core::{Error, ErrorKind, Result};

use crate::digest::digest_of;

mod store;

/// An image in the simulated registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeImage {
    /// Distinguishes the content: images with the same content have the same id and digest. If empty, the
    /// reference is used.
    pub content: String,
    /// The credentials that a pull requires.
    pub credentials: Credentials,
    /// Entrypoint.
    pub entrypoint: Vec<String>,
    /// Arguments of the entrypoint, or the whole command line.
    pub command: Vec<String>,
    /// `USER` line.
    pub user: String,
    /// `STOPSIGNAL`.
    pub stop_signal: Option<Signal>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Declared volumes.
    pub volumes: Vec<PathBuf>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// True if it must not be removed to free space.
    pub pinned: bool,
    /// Further members of `config` in its configuration, as JSON without braces: `"Shell":["/bin/bash","-c"]`.
    pub config: String,
}

/// The registry and the local store.
#[derive(Default)]
pub(crate) struct Images {
    registry: BTreeMap<ImageReference, FakeImage>,
    /// The pulled images, by manifest digest.
    local: BTreeMap<String, LocalImage>,
    downloads: Vec<Download>,
    pub(crate) progress: Option<PullProgress>,
}

#[derive(Clone)]
pub(crate) struct LocalImage {
    pub(crate) image: FakeImage,
    pub(crate) id: ImageId,
    manifest: String,
    tags: BTreeSet<ImageReference>,
    repositories: BTreeSet<String>,
    pub(crate) holders: BTreeMap<Owner, Right>,
    /// Its last holder had pulled it with credentials, and has released it.
    unheld: bool,
}

struct Download {
    reference: ImageReference,
    credentials: Credentials,
    owner: Owner,
    result: WeakShared<BoxFuture<'static, Result<ImageId>>>,
}

// === impl FakeImage ===

impl Default for FakeImage {
    fn default() -> Self {
        Self {
            content: String::new(),
            credentials: Credentials::Anonymous,
            entrypoint: Vec::new(),
            command: vec!["serve".into()],
            user: String::new(),
            stop_signal: None,
            size_bytes: 1 << 20,
            volumes: Vec::new(),
            labels: BTreeMap::new(),
            pinned: false,
            config: String::new(),
        }
    }
}

// === impl Images ===

impl Images {
    pub(crate) fn publish(&mut self, reference: &str, mut image: FakeImage) -> Result<()> {
        let reference: ImageReference = reference.parse()?;
        if image.content.is_empty() {
            image.content = reference.to_string();
        }
        self.registry.insert(reference, image);
        Ok(())
    }

    /// Drops the downloads of a killed daemon.
    pub(crate) fn forget_downloads(&mut self) {
        self.downloads.clear();
    }

    fn download(
        &mut self,
        wanted: &ImageReference,
        credentials: &Credentials,
        owner: Owner,
    ) -> Result<ImageId> {
        let missing = || Error::not_found(format!("the registry has no image {wanted}"));
        let image = match wanted.digest() {
            None => self.registry.get(wanted),
            Some(digest) => self.registry.iter().find_map(|(reference, image)| {
                (reference.name() == wanted.name() && manifest_of(image) == digest.to_string())
                    .then_some(image)
            }),
        }
        .ok_or_else(missing)?;
        if image.credentials != Credentials::Anonymous && image.credentials != *credentials {
            return Err(Error::new(
                ErrorKind::Unauthenticated,
                format!("the registry refuses these credentials for {wanted}: check them"),
            ));
        }
        let manifest = manifest_of(image);
        // A tag names one image: it is removed from the image that had it before.
        for local in self.local.values_mut() {
            local.tags.remove(wanted);
        }
        let id = ImageId::new(digest_of(&format!("configuration of {}", image.content)));
        let local = self
            .local
            .entry(manifest.clone())
            .or_insert_with(|| LocalImage {
                image: image.clone(),
                id: id.clone(),
                manifest,
                tags: BTreeSet::new(),
                repositories: BTreeSet::new(),
                holders: BTreeMap::new(),
                unheld: false,
            });
        let right = if *credentials == Credentials::Anonymous {
            Right::Open
        } else {
            Right::Private
        };
        let held = local.holders.entry(owner).or_insert(right);
        *held = right.max(*held);
        if wanted.digest().is_none() {
            local.tags.insert(wanted.clone());
        }
        local.repositories.insert(wanted.name());
        Ok(id)
    }

    fn load(&mut self, named: &ImageReference, owner: Owner) -> Result<ImageId> {
        let image = self.registry.get(named).cloned();
        let image =
            image.ok_or_else(|| Error::not_found(format!("the archive has no image {named}")))?;
        let manifest = manifest_of(&image);
        let id = ImageId::new(digest_of(&format!("configuration of {}", image.content)));
        let local = self
            .local
            .entry(manifest.clone())
            .or_insert_with(|| LocalImage {
                image,
                id: id.clone(),
                manifest,
                tags: BTreeSet::new(),
                repositories: BTreeSet::new(),
                holders: BTreeMap::new(),
                unheld: false,
            });
        local.holders.entry(owner).or_insert(Right::Private);
        Ok(id)
    }

    /// The image with this id, id prefix, or reference.
    pub(crate) fn find(&self, text: &str) -> Option<&LocalImage> {
        if let Ok(reference) = text.parse::<ImageReference>() {
            let named = self.local.values().find(|local| match reference.digest() {
                None => local.tags.contains(&reference),
                Some(digest) => {
                    local.manifest == digest.to_string()
                        && local.repositories.contains(&reference.name())
                }
            });
            if named.is_some() {
                return named;
            }
        }
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        if digits.is_empty()
            || !digits
                .bytes()
                .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        {
            return None;
        }
        let mut matching = self.local.values().filter(|local| {
            local
                .id
                .as_str()
                .strip_prefix("sha256:")
                .is_some_and(|hex| hex.starts_with(digits))
        });
        let first = matching.next();
        if matching.next().is_none() {
            first
        } else {
            None
        }
    }

    fn remove(&mut self, text: &str, owner: Owner, in_use: &InUse<'_>) -> Result<()> {
        let Some(local) = self.find(text) else {
            return Ok(());
        };
        let manifest = local.manifest.clone();
        let is_named = |reference: &str| {
            self.find(reference)
                .is_some_and(|local| local.manifest == manifest)
        };
        let in_use = in_use(&local.id, &is_named)?;
        let Some(local) = self.local.get_mut(&manifest) else {
            return Ok(());
        };
        if let Some(right) = local.holders.remove(&owner) {
            local.unheld = right == Right::Private;
        }
        if local.holders.is_empty() && !in_use {
            self.local.remove(&manifest);
        }
        Ok(())
    }
}

impl LocalImage {
    /// The image's name by digest.
    pub(crate) fn by_digest(&self) -> String {
        self.repositories.first().map_or_else(
            || self.id.to_string(),
            |repository| format!("{repository}@{}", self.manifest),
        )
    }

    pub(crate) fn describe(&self) -> Image {
        Image {
            id: self.id.clone(),
            repo_tags: self.tags.iter().map(ToString::to_string).collect(),
            repo_digests: self
                .repositories
                .iter()
                .map(|repository| format!("{repository}@{}", self.manifest))
                .collect(),
            size_bytes: self.image.size_bytes,
            user: self.image.user.clone(),
            volumes: self.image.volumes.clone(),
            labels: self.image.labels.clone(),
            pinned: self.image.pinned,
            holders: self.holders.clone(),
            imported: self.holders.is_empty() && !self.unheld,
            stored_at: None,
        }
    }
}

fn manifest_of(image: &FakeImage) -> String {
    digest_of(&format!("manifest of {}", image.content))
}
