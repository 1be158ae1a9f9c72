//! Image references, normalised the way Docker and the kubelet do it.
//!
//! ```text
//! reference  := name [ ":" tag ] [ "@" digest ]         after the distribution project; at least the name
//! name       := [ registry "/" ] repository             at most 255 characters when normalised
//! registry   := host [ ":" port ]                       it has a dot, a colon or a capital, or is "localhost"
//! host       := label { "." label } | "[" IPv6 "]"      label: letters, digits and inner dashes
//! repository := component { "/" component }             component: a-z and 0-9, with separators between them
//! separator  := "." | "_" | "__" | "-" { "-" }
//! tag        := word { word | "." | "-" }               at most 128 characters; word: letters, digits and "_"
//! digest     := "sha256:" 64 hex digits | "sha512:" 128 hex digits
//! ```
//!
//! Without a registry it is `docker.io`, a repository with a single component there is below `library/`, and
//! without tag and digest the tag is `latest`. 64 hexadecimal digits are the id of an image and no reference.

use std::fmt;
use std::str::FromStr;

use super::digest::{ImageDigest, InvalidDigest};
use crate::error::Error;

const DOCKER_HUB: &str = "docker.io";
const DOCKER_HUB_OLD_NAME: &str = "index.docker.io";
const DOCKER_HUB_ENDPOINT: &str = "registry-1.docker.io";
const OFFICIAL: &str = "library/";
const DEFAULT_TAG: &str = "latest";
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;
/// The most characters of a text in error messages: more than any valid reference has.
const MAX_SHOWN: usize = 512;

/// The normalised name of an image. It always has a tag or a digest, and may have both; then the digest
/// decides.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageReference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<ImageDigest>,
}

/// The part of an image reference that is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceField {
    /// The reference as a whole.
    Name,
    /// The host and port before the first slash.
    Registry,
    /// The path below the registry.
    Repository,
    /// The part after the colon.
    Tag,
    /// The part after the at sign.
    Digest,
}

/// A text that is not an image reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("image reference {reference:?}: {field} {reason}")]
pub struct InvalidReference {
    /// The text, truncated if it is very long.
    pub reference: String,
    /// The part that is wrong.
    pub field: ReferenceField,
    /// The fault, to be read after the field's name.
    pub reason: &'static str,
}

// === impl ImageReference ===

impl ImageReference {
    /// The registry's name with its port, if the name has one: `docker.io`, `localhost:5000`. This is also
    /// the name of the directory below `certs.d`.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The name that serves this registry's API, which is another one for Docker Hub.
    #[must_use]
    pub fn resolve_host(&self) -> &str {
        if self.registry == DOCKER_HUB {
            DOCKER_HUB_ENDPOINT
        } else {
            &self.registry
        }
    }

    /// Returns whether `authority` (`host[:port]`) is the registry of this reference. All names of Docker Hub are one
    /// registry.
    #[must_use]
    pub fn is_served_by(&self, authority: &str) -> bool {
        authority.eq_ignore_ascii_case(&self.registry)
            || (is_hub(authority) && is_hub(&self.registry))
    }

    /// The path below the registry: `library/busybox`.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag. None only if the reference has a digest.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest that pins the image.
    #[must_use]
    pub fn digest(&self) -> Option<&ImageDigest> {
        self.digest.as_ref()
    }

    /// Registry and repository: `docker.io/library/busybox`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// `name:tag`, the form of an entry of CRI's `repo_tags`.
    #[must_use]
    pub fn repo_tag(&self) -> Option<String> {
        self.tag
            .as_ref()
            .map(|tag| format!("{}:{tag}", self.name()))
    }

    /// `name@digest`, the form of an entry of CRI's `repo_digests`, for the digest that the name was resolved
    /// to.
    #[must_use]
    pub fn repo_digest(&self, digest: &ImageDigest) -> String {
        format!("{}@{digest}", self.name())
    }

    fn suffix(&self) -> String {
        let mut suffix = String::new();
        if let Some(tag) = &self.tag {
            suffix = format!(":{tag}");
        }
        if let Some(digest) = &self.digest {
            suffix = format!("{suffix}@{digest}");
        }
        suffix
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}{}", self.registry, self.repository, self.suffix())
    }
}

impl FromStr for ImageReference {
    type Err = InvalidReference;

    /// # Errors
    /// The part that is wrong.
    fn from_str(text: &str) -> Result<Self, InvalidReference> {
        parse(text).map_err(|(field, reason)| InvalidReference {
            reference: text.chars().take(MAX_SHOWN).collect(),
            field,
            reason,
        })
    }
}

// === impl InvalidReference ===

impl From<InvalidReference> for Error {
    fn from(invalid: InvalidReference) -> Self {
        Self::invalid("image", "is not an image reference").with_source(invalid)
    }
}

// === impl ReferenceField ===

impl fmt::Display for ReferenceField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "name",
            Self::Registry => "registry",
            Self::Repository => "repository",
            Self::Tag => "tag",
            Self::Digest => "digest",
        })
    }
}

type Invalid = (ReferenceField, &'static str);

fn parse(text: &str) -> Result<ImageReference, Invalid> {
    if text.is_empty() {
        return Err((ReferenceField::Name, "is empty"));
    }
    if text.len() == 64
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    {
        return Err((
            ReferenceField::Name,
            "is an image id, which no registry can be asked for",
        ));
    }
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(parse_digest(digest)?)),
        None => (text, None),
    };
    // A colon before the last slash separates the port, one after it the tag.
    let (name, tag) = match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        Some(_) | None => (rest, None),
    };
    if let Some(tag) = tag {
        check_tag(tag)?;
    }
    let (registry, path) = split_registry(name);
    let registry = if registry == DOCKER_HUB_OLD_NAME {
        DOCKER_HUB
    } else {
        registry
    };
    check_registry(registry)?;
    let repository = match registry {
        DOCKER_HUB if !path.contains('/') => format!("{OFFICIAL}{path}"),
        _ => path.to_owned(),
    };
    check_repository(path)?;
    if registry.len() + 1 + repository.len() > MAX_NAME {
        return Err((
            ReferenceField::Repository,
            "is longer than 255 characters with its registry",
        ));
    }
    let tag = match (tag, &digest) {
        (Some(tag), _) => Some(tag.to_owned()),
        (None, None) => Some(DEFAULT_TAG.to_owned()),
        (None, Some(_)) => None,
    };
    Ok(ImageReference {
        registry: registry.to_owned(),
        repository,
        tag,
        digest,
    })
}

/// Returns whether an authority is a name of Docker Hub.
fn is_hub(authority: &str) -> bool {
    [DOCKER_HUB, DOCKER_HUB_OLD_NAME, DOCKER_HUB_ENDPOINT]
        .iter()
        .any(|name| name.eq_ignore_ascii_case(authority))
}

/// The first component is a registry only if it cannot be the first component of a repository.
fn split_registry(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some((first, rest))
            if first == "localhost"
                || first.contains(['.', ':'])
                || first.bytes().any(|byte| byte.is_ascii_uppercase()) =>
        {
            (first, rest)
        }
        Some(_) | None => (DOCKER_HUB, name),
    }
}

fn parse_digest(text: &str) -> Result<ImageDigest, Invalid> {
    text.parse().map_err(|error| {
        let reason = match error {
            InvalidDigest::NoAlgorithm => "has no algorithm; write it as sha256:<64 hex digits>",
            InvalidDigest::UnknownAlgorithm => {
                "has an unknown algorithm; sha256 and sha512 are supported"
            }
            InvalidDigest::WrongLength => "has the wrong number of hex digits for its algorithm",
            InvalidDigest::NotHex => "holds characters other than 0-9 and a-f",
        };
        (ReferenceField::Digest, reason)
    })
}

fn check_tag(tag: &str) -> Result<(), Invalid> {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if tag.is_empty() {
        return Err((ReferenceField::Tag, "is empty"));
    }
    if tag.len() > MAX_TAG {
        return Err((ReferenceField::Tag, "is longer than 128 characters"));
    }
    if !word(tag.as_bytes()[0]) {
        return Err((
            ReferenceField::Tag,
            "must start with a letter, a digit or an underscore",
        ));
    }
    if !tag
        .bytes()
        .all(|byte| word(byte) || byte == b'.' || byte == b'-')
    {
        return Err((
            ReferenceField::Tag,
            "may hold only letters, digits, underscores, dots and dashes",
        ));
    }
    Ok(())
}

fn check_registry(registry: &str) -> Result<(), Invalid> {
    let invalid = |reason| Err((ReferenceField::Registry, reason));
    let (host, port) = if let Some(rest) = registry.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else {
            return invalid("has no closing bracket after its IPv6 address");
        };
        if address.parse::<std::net::Ipv6Addr>().is_err() {
            return invalid("has no valid IPv6 address in its brackets");
        }
        if !port.is_empty() && !port.starts_with(':') {
            return invalid("has something other than a port after its IPv6 address");
        }
        (None, port.strip_prefix(':'))
    } else {
        match registry.split_once(':') {
            Some((host, port)) => (Some(host), Some(port)),
            None => (Some(registry), None),
        }
    };
    if let Some(port) = port {
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        if !digits || !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return invalid("has a port that is no number from 1 to 65535");
        }
    }
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    match host {
        Some(host) if !host.split('.').all(label) => {
            invalid("must be a host name or an IP address, with a port if needed")
        }
        Some(_) | None => Ok(()),
    }
}

fn check_repository(path: &str) -> Result<(), Invalid> {
    if path.is_empty() {
        return Err((ReferenceField::Repository, "is empty"));
    }
    if path.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err((ReferenceField::Repository, "must be lower case"));
    }
    if path.split('/').all(is_path_component) {
        Ok(())
    } else {
        Err((
            ReferenceField::Repository,
            "may hold only a-z and 0-9, separated by single slashes, dots, one or two underscores, or dashes",
        ))
    }
}

/// Runs of letters and digits, with one dot, one or two underscores or any number of dashes in between.
fn is_path_component(component: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = component.as_bytes();
    let ends = bytes.first().is_some_and(alphanumeric) && bytes.last().is_some_and(alphanumeric);
    let separators = component.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    ends && separators.into_iter().all(|separator| {
        matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-')
    })
}

#[cfg(test)]
mod tests;
