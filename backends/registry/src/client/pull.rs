//! One image being pulled: hosts in order, with bounded retries.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use reqwest::StatusCode;
use reqwest::header::CONTENT_TYPE;
use switchyard_core::image::ImageReference;

use super::Shared;
use super::blob::Blob;
use super::range_use::RangeUse;
use super::skipped::SkippedHosts;
use crate::transport::{RangeRequest, Reply, in_time, read_limited};
use crate::{
    Capabilities, Credentials, Descriptor, Digest, Error, Host, ImageConfig, ImageManifest,
    Manifest, MediaType, Platform, Platforms, Result,
};

/// The most levels of nested indexes that are followed.
const MAX_DEPTH: usize = 4;

/// A pull of one reference with one set of credentials. Cheap to clone; clones may work at the same time.
#[derive(Debug, Clone)]
pub struct Pull {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    reference: ImageReference,
    credentials: Credentials,
    hosts: Vec<PullHost>,
}

/// A host of a pull.
#[derive(Debug)]
pub(super) struct PullHost {
    pub(super) host: Host,
    /// Facts that its answers have shown so far: one host may be near and another one far away.
    pub(super) range_use: RangeUse,
}

/// An index or manifest that was fetched and checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Its media type, digest and size.
    pub descriptor: Descriptor,
    /// The document itself.
    pub manifest: Manifest,
    /// The bytes that have this digest; store these.
    pub bytes: Bytes,
    /// `host[:port]` of the host that served it.
    pub host: String,
}

/// The manifest for a platform, and the indexes that led to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The indexes above the manifest, outermost first; empty for an image without an index.
    pub indexes: Vec<Resolved>,
    /// The descriptor of the manifest.
    pub descriptor: Descriptor,
    /// The manifest.
    pub manifest: ImageManifest,
    /// The manifest's bytes; store these.
    pub bytes: Bytes,
}

/// The target of a request.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) path: &'a str,
    pub(super) what: &'a str,
    pub(super) accept: Option<&'a str>,
    pub(super) range: RangeRequest,
    pub(super) has_digest: bool,
}

impl Image {
    /// The platform that an index promised for this image, if it came by one that names any.
    #[must_use]
    pub fn promised(&self) -> Option<&Platform> {
        let above = self.indexes.iter().rev().map(|index| &index.descriptor);
        std::iter::once(&self.descriptor)
            .chain(above)
            .find_map(|descriptor| descriptor.platform.as_ref())
    }
}

impl Pull {
    pub(super) fn new(
        shared: Arc<Shared>,
        reference: ImageReference,
        credentials: Credentials,
        hosts: Vec<Host>,
    ) -> Self {
        let with_use = |host| PullHost {
            host,
            range_use: RangeUse::default(),
        };
        Self {
            inner: Arc::new(Inner {
                shared,
                reference,
                credentials,
                hosts: hosts.into_iter().map(with_use).collect(),
            }),
        }
    }

    /// The image's name.
    #[must_use]
    pub fn reference(&self) -> &ImageReference {
        &self.inner.reference
    }

    /// The hosts that requests are sent to, in order.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.inner.hosts.iter().map(|known| &known.host)
    }

    /// Fetches the document that the reference names: by digest from the hosts with the capability `pull`, by
    /// tag from those with `resolve`. The document is checked against the digest of the reference, and
    /// against the one that the server announces.
    ///
    /// # Errors
    /// If no host can serve it, that of the first which says why ([`Error::Unauthorized`], …), or
    /// [`Error::NotFound`] if the last one does not have it; [`Error::UnsupportedMediaType`] if it is not a
    /// container image. Cancel-safe.
    pub async fn resolve(&self) -> Result<Resolved> {
        let reference = &self.inner.reference;
        match reference.digest().cloned().map(Digest::from) {
            Some(digest) => self.fetch(&digest.to_string(), Some(&digest), None).await,
            None => {
                let tag = reference.tag().expect("a reference has a tag or a digest");
                self.fetch(tag, None, None).await
            }
        }
    }

    /// Fetches the manifest or index that `descriptor` describes.
    ///
    /// # Errors
    /// As [`Pull::resolve`], and [`Error::SizeMismatch`]. Cancel-safe.
    pub async fn manifest(&self, descriptor: &Descriptor) -> Result<Resolved> {
        self.fetch(
            &descriptor.digest.to_string(),
            Some(&descriptor.digest),
            Some(descriptor),
        )
        .await
    }

    /// Fetches the manifest for the best of `platforms`, starting from a resolved document and following
    /// nested indexes.
    ///
    /// # Errors
    /// [`Error::NoMatchingPlatform`], [`Error::TooLarge`] for an image with too many layers or bytes, or as
    /// [`Pull::manifest`]. Cancel-safe.
    pub async fn image(&self, resolved: Resolved, platforms: &Platforms) -> Result<Image> {
        let mut indexes = Vec::new();
        let mut current = resolved;
        loop {
            let child = match &current.manifest {
                Manifest::Image(manifest) => {
                    let name = self.name(&current.descriptor);
                    self.shared()
                        .config
                        .limits
                        .check_layers(&name, &manifest.layers)?;
                    let manifest = manifest.clone();
                    return Ok(Image {
                        indexes,
                        descriptor: current.descriptor,
                        manifest,
                        bytes: current.bytes,
                    });
                }
                Manifest::Index(index) => index
                    .select(&self.name(&current.descriptor), platforms)?
                    .clone(),
            };
            indexes.push(current);
            if indexes.len() >= MAX_DEPTH {
                let reason = format!("has more than {MAX_DEPTH} indexes inside each other");
                return Err(Error::protocol(self.inner.reference.to_string(), reason));
            }
            current = self.manifest(&child).await?;
        }
    }

    /// Fetches and parses the configuration of an image.
    ///
    /// # Errors
    /// As [`Pull::blob`], [`Error::TooLarge`], [`Error::Protocol`] if it cannot be parsed. Cancel-safe.
    pub async fn config(&self, manifest: &ImageManifest) -> Result<(ImageConfig, Bytes)> {
        let descriptor = &manifest.config;
        let what = format!("config {}", self.name(descriptor));
        self.shared()
            .config
            .limits
            .check_config(&what, descriptor.size)?;
        let mut blob = self.blob(descriptor, 0);
        let reading = async {
            let mut bytes = BytesMut::new();
            while let Some(piece) = blob.chunk().await? {
                bytes.extend_from_slice(&piece);
            }
            Ok(bytes.freeze())
        };
        let bytes = in_time(&what, self.inner.reference.registry(), reading).await?;
        Ok((ImageConfig::parse(&what, &bytes)?, bytes))
    }

    /// Streams a blob from byte `offset` on. Nothing is requested until the first chunk is awaited.
    ///
    /// The digest can be checked only if all bytes are seen: from offset 0, or with [`Blob::after`].
    #[must_use]
    pub fn blob(&self, descriptor: &Descriptor, offset: u64) -> Blob {
        Blob::new(self.clone(), descriptor, offset)
    }

    pub(super) fn credentials(&self) -> &Credentials {
        &self.inner.credentials
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    /// `docker.io/library/busybox@sha256:…`
    pub(super) fn name(&self, descriptor: &Descriptor) -> String {
        self.inner.reference.repo_digest(&descriptor.digest)
    }

    /// The hosts with the capability that `needs` selects.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the configuration gives it to none.
    pub(super) fn capable(
        &self,
        needs: impl Fn(Capabilities) -> bool,
        what: &str,
    ) -> Result<Vec<&PullHost>> {
        let hosts: Vec<&PullHost> = self
            .inner
            .hosts
            .iter()
            .filter(|known| needs(known.host.capabilities))
            .collect();
        if hosts.is_empty() {
            let host = format!(
                "any host of {}: none has the capability for it in hosts.toml",
                self.inner.reference.registry()
            );
            return Err(Error::NotFound {
                what: what.to_owned(),
                host,
            });
        }
        Ok(hosts)
    }

    async fn fetch(
        &self,
        name: &str,
        digest: Option<&Digest>,
        expected: Option<&Descriptor>,
    ) -> Result<Resolved> {
        let reference = &self.inner.reference;
        let what = match digest {
            Some(digest) => reference.repo_digest(digest),
            None => format!("{}:{name}", reference.name()),
        };
        let accept = MediaType::ALL.map(MediaType::as_str).join(", ");
        let path = format!("{}/manifests/{name}", reference.repository());
        let target = Target {
            path: &path,
            what: &what,
            accept: Some(&accept),
            range: RangeRequest::default(),
            has_digest: digest.is_some(),
        };
        let hosts = self.capable(
            |host| {
                if digest.is_some() {
                    host.pull
                } else {
                    host.resolve
                }
            },
            &what,
        )?;
        let (last, mirrors) = hosts
            .split_last()
            .expect("capable returns at least one host");
        // Each mirror is tried once: the next host is asked instead of a retry.
        let mut skipped = SkippedHosts::default();
        for mirror in mirrors {
            match self.fetch_from(mirror, target, digest, expected).await {
                Ok(resolved) => return Ok(resolved),
                Err(error) => skipped.add(&mirror.host, error),
            }
        }
        let mut failures = 0;
        loop {
            let error = match self.fetch_from(last, target, digest, expected).await {
                Ok(resolved) => return Ok(resolved),
                Err(error) => error,
            };
            failures += 1;
            let config = &self.shared().config;
            let connect_limit = last.host.dial_timeout.unwrap_or(config.connect_timeout);
            let is_last = error.is_long_connect(connect_limit) || failures > config.retries;
            if !error.is_transient() || is_last {
                return Err(skipped.told(error));
            }
            tokio::time::sleep(config.pause(failures, &error)).await;
        }
    }

    /// One attempt on one host, with everything checked.
    async fn fetch_from(
        &self,
        asked: &PullHost,
        target: Target<'_>,
        digest: Option<&Digest>,
        expected: Option<&Descriptor>,
    ) -> Result<Resolved> {
        let what = target.what;
        let reply = self.get(asked, target).await?;
        if reply.response.status() != StatusCode::OK {
            let status = reply.response.status().as_u16();
            return Err(Error::protocol(
                what,
                format!("{} answered {status} instead of 200", reply.host),
            ));
        }
        let announced = announced_digest(&reply, what)?;
        let content_type = reply
            .response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .map(ToOwned::to_owned);
        let served_by = asked.host.authority();
        // Content with a known digest may be quoted in errors; a tag may be redirected to anything that this
        // node can reach.
        let may_quote = digest.is_some() || !reply.redirected_away;
        let Shared { config, .. } = self.shared();
        let bytes =
            read_limited(reply, what, config.limits.manifest(), config.idle_timeout).await?;
        for expected in digest.into_iter().chain(announced.as_ref()) {
            let actual = Digest::of(expected.algorithm(), &bytes);
            if actual != *expected {
                return Err(Error::DigestMismatch {
                    what: what.to_owned(),
                    expected: expected.clone(),
                    actual,
                });
            }
        }
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if let Some(expected) = expected.filter(|expected| expected.size != size) {
            return Err(Error::SizeMismatch {
                what: what.to_owned(),
                expected: expected.size,
                actual: size,
            });
        }
        // The media type in the index takes precedence over the header of the host that delivers the bytes.
        let content_type = expected
            .map(|expected| expected.media_type.as_str())
            .or(content_type.as_deref());
        let (media_type, manifest) =
            Manifest::parse(what, content_type, &bytes).map_err(|error| {
                if may_quote {
                    error
                } else {
                    without_quotes(error)
                }
            })?;
        let digest = digest
            .cloned()
            .or(announced)
            .unwrap_or_else(|| Digest::sha256(&bytes));
        let mut descriptor = Descriptor::new(media_type.as_str(), digest, size);
        if let Some(expected) = expected {
            descriptor.platform.clone_from(&expected.platform);
        }
        Ok(Resolved {
            descriptor,
            manifest,
            bytes,
            host: served_by,
        })
    }
}

/// The error of a parser without quotes of the document.
fn without_quotes(error: Error) -> Error {
    let hidden = "at the target of a redirect";
    if let Error::UnsupportedMediaType {
        what,
        media_type: _,
        reason,
    } = error
    {
        return Error::UnsupportedMediaType {
            what,
            media_type: hidden.to_owned(),
            reason,
        };
    }
    if let Error::Protocol { what, .. } = error {
        return Error::protocol(what, format!("what is {hidden} is no valid manifest"));
    }
    error
}

/// The digest in the header, which is optional.
fn announced_digest(reply: &Reply, what: &str) -> Result<Option<Digest>> {
    let Some(value) = reply.response.headers().get("docker-content-digest") else {
        return Ok(None);
    };
    let parsed = value.to_str().ok().and_then(|text| text.parse().ok());
    parsed.map(Some).ok_or_else(|| {
        Error::protocol(
            what,
            format!(
                "{} sent a Docker-Content-Digest that is no sha256 or sha512 digest",
                reply.host
            ),
        )
    })
}
