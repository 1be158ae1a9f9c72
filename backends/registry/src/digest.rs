//! The digests of content, in documents and computed, and the hashers that check them.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256, Sha512};
use switchyard_core::image::{DigestAlgorithm, ImageDigest, InvalidDigest};

/// The digest of some content, which a [`Hasher`] computes and which documents name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(ImageDigest);

/// Computes a [`Digest`] over content that arrives in pieces.
#[derive(Clone)]
pub struct Hasher(State);

#[derive(Clone)]
enum State {
    Sha256(Sha256),
    Sha512(Sha512),
}

// === impl Digest ===

impl Digest {
    /// The digest of `content`.
    #[must_use]
    pub fn of(algorithm: DigestAlgorithm, content: &[u8]) -> Self {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(content);
        hasher.finish()
    }

    /// The SHA-256 digest of `content`.
    #[must_use]
    pub fn sha256(content: &[u8]) -> Self {
        Self::of(DigestAlgorithm::Sha256, content)
    }
}

impl From<ImageDigest> for Digest {
    fn from(digest: ImageDigest) -> Self {
        Self(digest)
    }
}

impl Deref for Digest {
    type Target = ImageDigest;

    fn deref(&self) -> &ImageDigest {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        text.parse().map(Self)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

// === impl Hasher ===

impl Hasher {
    /// A hasher without any input yet.
    #[must_use]
    pub fn new(algorithm: DigestAlgorithm) -> Self {
        Self(match algorithm {
            DigestAlgorithm::Sha256 => State::Sha256(Sha256::new()),
            DigestAlgorithm::Sha512 => State::Sha512(Sha512::new()),
        })
    }

    /// The algorithm this hasher computes.
    #[must_use]
    pub fn algorithm(&self) -> DigestAlgorithm {
        match self.0 {
            State::Sha256(_) => DigestAlgorithm::Sha256,
            State::Sha512(_) => DigestAlgorithm::Sha512,
        }
    }

    /// Adds the next piece of the content.
    pub fn update(&mut self, piece: &[u8]) {
        match &mut self.0 {
            State::Sha256(state) => state.update(piece),
            State::Sha512(state) => state.update(piece),
        }
    }

    /// The digest of all pieces.
    #[must_use]
    pub fn finish(self) -> Digest {
        Digest(match self.0 {
            State::Sha256(state) => ImageDigest::sha256(state.finalize().into()),
            State::Sha512(state) => ImageDigest::sha512(state.finalize().into()),
        })
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hasher").field(&self.algorithm()).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_vectors_match() {
        assert_eq!(
            Digest::sha256(b"abc").to_string(),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert!(
            Digest::of(DigestAlgorithm::Sha512, b"abc")
                .to_string()
                .starts_with("sha512:ddaf35a193617abacc417349ae204131")
        );
    }

    proptest! {
        #[test]
        fn digest_is_independent_of_chunking(content: Vec<u8>, cut in 0usize..64) {
            let cut = cut.min(content.len());
            for algorithm in [DigestAlgorithm::Sha256, DigestAlgorithm::Sha512] {
                let mut hasher = Hasher::new(algorithm);
                hasher.update(&content[..cut]);
                hasher.update(&content[cut..]);
                let digest = hasher.finish();
                prop_assert_eq!(&digest, &Digest::of(algorithm, &content));
                prop_assert_eq!(digest.to_string().parse::<Digest>(), Ok(digest));
            }
        }
    }
}
