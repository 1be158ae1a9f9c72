//! Content digests as texts, `sha256:…` and `sha512:…`, after the OCI image specification.

use std::fmt;
use std::str::FromStr;

/// A hash algorithm that the image specification registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DigestAlgorithm {
    /// SHA-256, which practically every registry uses.
    Sha256,
    /// SHA-512.
    Sha512,
}

/// The digest of some content: an algorithm and the lower-case hex of the right length.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageDigest {
    algorithm: DigestAlgorithm,
    hex: String,
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

// === impl DigestAlgorithm ===

impl DigestAlgorithm {
    /// The name before the colon.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    const fn hex_digits(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }
}

// === impl ImageDigest ===

impl ImageDigest {
    /// The digest with this SHA-256 hash.
    #[must_use]
    pub fn sha256(hash: [u8; 32]) -> Self {
        Self {
            algorithm: DigestAlgorithm::Sha256,
            hex: hex::encode(hash),
        }
    }

    /// The digest with this SHA-512 hash.
    #[must_use]
    pub fn sha512(hash: [u8; 64]) -> Self {
        Self {
            algorithm: DigestAlgorithm::Sha512,
            hex: hex::encode(hash),
        }
    }

    /// The algorithm before the colon.
    #[must_use]
    pub const fn algorithm(&self) -> DigestAlgorithm {
        self.algorithm
    }

    /// The hex digits after the colon.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.hex
    }
}

impl fmt::Display for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.as_str(), self.hex)
    }
}

impl FromStr for ImageDigest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let (name, hex) = text.split_once(':').ok_or(InvalidDigest::NoAlgorithm)?;
        let algorithm = match name {
            "sha256" => DigestAlgorithm::Sha256,
            "sha512" => DigestAlgorithm::Sha512,
            _ => return Err(InvalidDigest::UnknownAlgorithm),
        };
        if hex.len() != algorithm.hex_digits() {
            return Err(InvalidDigest::WrongLength);
        }
        if !hex
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        {
            return Err(InvalidDigest::NotHex);
        }
        Ok(Self {
            algorithm,
            hex: hex.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn malformed_digests_name_the_fault() {
        let check =
            |text: &str, expected| assert_eq!(text.parse::<ImageDigest>(), Err(expected), "{text}");
        check("abc", InvalidDigest::NoAlgorithm);
        check("md5:abc", InvalidDigest::UnknownAlgorithm);
        check("sha256:abc", InvalidDigest::WrongLength);
        check(&format!("sha256:{}", "A".repeat(64)), InvalidDigest::NotHex);
        check(
            &format!("sha512:{}", "a".repeat(64)),
            InvalidDigest::WrongLength,
        );
    }

    proptest! {
        #[test]
        fn digests_round_trip(short: [u8; 32], long in prop::collection::vec(any::<u8>(), 64)) {
            let long = <[u8; 64]>::try_from(long).unwrap();
            for digest in [ImageDigest::sha256(short), ImageDigest::sha512(long)] {
                prop_assert_eq!(digest.to_string().parse::<ImageDigest>(), Ok(digest));
            }
        }

        #[test]
        fn parsing_never_panics(text: String) {
            let _ = text.parse::<ImageDigest>();
        }
    }
}
