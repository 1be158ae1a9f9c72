//! A client that pulls images from OCI distribution registries and knows nothing of any container runtime. What it
//! uses of the task model is the names of images.
//!
//! # Vocabulary
//! - [`ImageReference`]: the name of an image, normalised the way Docker does it; core parses it.
//! - [`Digest`]: the digest of some content.
//! - [`Host`]: one place that may serve the image: a mirror of `hosts.toml`, or the registry itself.
//! - [`Client`]: made once per process; holds connections and tokens.
//! - [`Pull`]: one image being pulled with one set of credentials. Configuration is read when it is opened.
//! - [`Blob`]: one body being streamed, which resumes after a broken connection and checks digest and size.
//!
//! ```text
//! ImageReference ── Client::open ──> Pull ── resolve ──> Resolved (index or manifest, checked)
//!                                      ├──── image ────> Image (the manifest for a platform, and the indexes above it)
//!                                      ├──── config ───> bytes
//!                                      └──── blob ─────> Blob (a stream of chunks)
//! ```
//!
//! # Invariants
//! - Bytes that do not have the digest and size that were asked for are never reported as complete.
//! - Credentials are sent only to the registry named in the reference and the token service it names: neither
//!   to a mirror under another name, unless [`Config::credentials_of`] names it, nor to the target of a redirect.
//! - A registry cannot make this client connect to a link-local address, where clouds have their metadata
//!   services; only the operator's own configuration can. Errors contain nothing that the target of a
//!   redirect has sent.
//! - TLS settings apply to a single host: `skip_verify` of one host does not affect another.
//! - What a registry sends is bounded in bytes, in number and in time ([`Limits`]).
//! - Nothing is retried without a bound, and every wait on the network has a deadline.
//! - Every future and stream may be dropped at any time; that closes its connection and leaves nothing
//!   behind.
//!
//! [`ImageReference`]: switchyard_core::image::ImageReference

mod auth;
mod client;
mod digest;
mod error;
mod hosts;
mod json;
mod limits;
mod manifest;
mod platform;
mod transport;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

pub use auth::{AuthChallenge, Credentials};
pub use client::{Blob, Client, Config, Image, Pull, RangeConfig, Resolved};
pub use digest::{Digest, Hasher};
pub use error::{BoxError, Error, Result};
pub use hosts::{Capabilities, Host};
pub use limits::{Limits, total_bytes};
pub use manifest::{
    Compression, Descriptor, ImageConfig, ImageManifest, Index, Manifest, MediaType, ProcessConfig,
    RootFs, SNAPSHOT_ANNOTATION,
};
pub use platform::{Platform, Platforms};
