//! Content digests (`sha256:…`, `sha512:…`) and the hashers that check them, after the OCI image
//! specification.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256, Sha512};

/// A hash algorithm that the image specification registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// SHA-256, which practically every registry uses.
    Sha256,
    /// SHA-512.
    Sha512,
}

/// The digest of some content: an algorithm and the lower-case hex of the right length.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest {
    algorithm: Algorithm,
    hex: String,
}

/// Computes a [`Digest`] over content that arrives in pieces.
#[derive(Clone)]
pub struct Hasher(State);

#[derive(Clone)]
enum State {
    Sha256(Sha256),
    Sha512(Sha512),
}

/// Reason why a text is not a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDigest {
    /// There is no colon between algorithm and hash.
    #[error("digest has no algorithm; write it as sha256:<64 hex digits>")]
    NoAlgorithm,
    /// The algorithm is neither sha256 nor sha512.
    #[error("digest has an unknown algorithm; sha256 and sha512 are supported")]
    UnknownAlgorithm,
    /// The hash has the wrong length.
    #[error("digest has the wrong number of hex digits for its algorithm")]
    WrongLength,
    /// The hash contains something else than lower-case hex digits.
    #[error("digest contains characters other than 0-9 and a-f")]
    NotHex,
}

// === impl Algorithm ===

impl Algorithm {
    /// The name before the colon.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    fn hex_digits(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }
}

// === impl Digest ===

impl Digest {
    /// The digest of `content`.
    #[must_use]
    pub fn of(algorithm: Algorithm, content: &[u8]) -> Self {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(content);
        hasher.finish()
    }

    /// The SHA-256 digest of `content`.
    #[must_use]
    pub fn sha256(content: &[u8]) -> Self {
        Self::of(Algorithm::Sha256, content)
    }

    /// The algorithm before the colon.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The hex digits after the colon.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.hex
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.as_str(), self.hex)
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let (name, hex) = text.split_once(':').ok_or(InvalidDigest::NoAlgorithm)?;
        let algorithm = match name {
            "sha256" => Algorithm::Sha256,
            "sha512" => Algorithm::Sha512,
            _ => return Err(InvalidDigest::UnknownAlgorithm),
        };
        if hex.len() != algorithm.hex_digits() {
            return Err(InvalidDigest::WrongLength);
        }
        if !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(InvalidDigest::NotHex);
        }
        Ok(Self { algorithm, hex: hex.to_owned() })
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

// === impl Hasher ===

impl Hasher {
    /// A hasher without any input yet.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::Sha256 => State::Sha256(Sha256::new()),
            Algorithm::Sha512 => State::Sha512(Sha512::new()),
        })
    }

    /// The algorithm this hasher computes.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self.0 {
            State::Sha256(_) => Algorithm::Sha256,
            State::Sha512(_) => Algorithm::Sha512,
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
        let algorithm = self.algorithm();
        let hex = match self.0 {
            State::Sha256(state) => hex::encode(state.finalize()),
            State::Sha512(state) => hex::encode(state.finalize()),
        };
        Digest { algorithm, hex }
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
            Digest::of(Algorithm::Sha512, b"abc")
                .to_string()
                .starts_with("sha512:ddaf35a193617abacc417349ae204131")
        );
    }

    #[test]
    fn malformed_digests_name_the_fault() {
        let check = |text: &str, expected| assert_eq!(text.parse::<Digest>(), Err(expected), "{text}");
        check("abc", InvalidDigest::NoAlgorithm);
        check("md5:abc", InvalidDigest::UnknownAlgorithm);
        check("sha256:abc", InvalidDigest::WrongLength);
        check(&format!("sha256:{}", "A".repeat(64)), InvalidDigest::NotHex);
        check(&format!("sha512:{}", "a".repeat(64)), InvalidDigest::WrongLength);
    }

    proptest! {
        #[test]
        fn digest_is_independent_of_chunking(content: Vec<u8>, cut in 0usize..64) {
            let cut = cut.min(content.len());
            for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
                let mut hasher = Hasher::new(algorithm);
                hasher.update(&content[..cut]);
                hasher.update(&content[cut..]);
                let digest = hasher.finish();
                prop_assert_eq!(&digest, &Digest::of(algorithm, &content));
                prop_assert_eq!(digest.to_string().parse::<Digest>(), Ok(digest));
            }
        }

        #[test]
        fn parsing_never_panics(text: String) {
            let _ = text.parse::<Digest>();
        }
    }
}
