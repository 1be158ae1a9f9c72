//! Image references: normalized as usual, and distinguished from ids.

use switchyard_core::{Error, Result};

/// A normalized reference: a repository and either a tag or a digest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reference {
    pub(crate) repository: String,
    pub(crate) version: Version,
}

/// Selects an image of a repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    /// By name.
    Tag(String),
    /// By content, `sha256:…`.
    Digest(String),
}

impl Reference {
    /// Parses and normalizes a reference. If it has both a tag and a digest, the digest counts.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::invalid(format!("image reference {text:?}"), why);
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text, None),
        };
        let after_slash = name.rfind('/').map_or(0, |at| at + 1);
        let (name, tag) = match name[after_slash..].find(':') {
            Some(at) => (&name[..after_slash + at], Some(&name[after_slash + at + 1..])),
            None => (name, None),
        };
        if let Some(digest) = digest
            && !is_digest(digest)
        {
            return Err(wrong("its digest is not sha256 and 64 hexadecimal digits"));
        }
        if let Some(tag) = tag
            && (tag.is_empty() || !tag.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b)))
        {
            return Err(wrong("its tag holds what a tag cannot"));
        }
        let (host, path) = match name.split_once('/') {
            Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host, path.to_owned()),
            Some(_) => ("docker.io", name.to_owned()),
            None => ("docker.io", format!("library/{name}")),
        };
        let sound = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_.-".contains(&b))
        };
        if host.is_empty() || !path.split('/').all(sound) {
            return Err(wrong("its name holds what a name cannot"));
        }
        let version = match (digest, tag) {
            (Some(digest), _) => Version::Digest(digest.to_owned()),
            (None, Some(tag)) => Version::Tag(tag.to_owned()),
            (None, None) => Version::Tag("latest".to_owned()),
        };
        Ok(Self { repository: format!("{host}/{path}"), version })
    }
}

impl std::fmt::Display for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.version {
            Version::Tag(tag) => write!(f, "{}:{tag}", self.repository),
            Version::Digest(digest) => write!(f, "{}@{digest}", self.repository),
        }
    }
}

/// A deterministic digest that is derived from a text.
pub(crate) fn digest_of(text: &str) -> String {
    // FNV-1a with four initial values: the digests only need to be distinct and reproducible.
    let block = |salt: u64| {
        let start = 0xcbf2_9ce4_8422_2325_u64 ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        text.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    format!("sha256:{:016x}{:016x}{:016x}{:016x}", block(1), block(2), block(3), block(4))
}

fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        assert_eq!(Reference::parse(text).ok().map(|found| found.to_string()).as_deref(), expected, "{text}");
    }

    #[test]
    fn references_are_completed() {
        let digest = digest_of("x");
        check("busybox", Some("docker.io/library/busybox:latest"));
        check("busybox:1.36", Some("docker.io/library/busybox:1.36"));
        check("team/app", Some("docker.io/team/app:latest"));
        check("localhost:5000/app:2", Some("localhost:5000/app:2"));
        check("quay.io/a/b", Some("quay.io/a/b:latest"));
        check(&format!("busybox:1@{digest}"), Some(&format!("docker.io/library/busybox@{digest}")));
    }

    #[test]
    fn invalid_reference_is_rejected() {
        for garbage in ["", "UPPER", "a b", "a:", "a@sha256:12", "//", ":tag", "a/../b c", "\u{1f600}"] {
            check(garbage, None);
        }
    }
}
