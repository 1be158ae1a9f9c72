//! Join tokens: `SWMTKN-1-DIGEST-SECRET`.
//!
//! The digest is of the root certificates of the cluster, so that a node recognises its managers before it has
//! a certificate. The secret is what managers recognise a node by.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::error::Error;

#[cfg(test)]
mod tests;

/// Characters of the digest: 256 bits in base 36, padded with zeros.
const DIGEST_LENGTH: usize = 50;

/// Characters of the secret: 128 bits in base 36, padded with zeros.
const SECRET_LENGTH: usize = 25;

/// The longest text that is looked at: a token of the longer form has 88 characters.
const TEXT_MAX: usize = 256;

/// A token to join a cluster. Neither `Debug` nor `Display` shows the secret.
#[derive(Clone)]
pub struct JoinToken {
    text: String,
    digest: RootDigest,
}

/// The SHA-256 of the root certificates of a cluster, exactly as managers serve them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RootDigest([u8; 32]);

// === impl JoinToken ===

impl JoinToken {
    /// The digest of the root certificates.
    #[must_use]
    pub const fn digest(&self) -> RootDigest {
        self.digest
    }

    /// A text of somebody else, without the secret.
    pub(crate) fn withheld_from(&self, text: &str) -> String {
        let secret = self.text.rsplit('-').next().unwrap_or(&self.text);
        text.replace(secret, "(withheld)")
    }

    /// The token as it is sent to a manager.
    pub(crate) fn as_sent(&self) -> &str {
        &self.text
    }
}

impl FromStr for JoinToken {
    type Err = Error;

    /// Whitespace around the token does not count. No error shows what was read.
    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |reason| Error::InvalidToken { reason };
        let text = text.trim();
        if text.len() > TEXT_MAX {
            return Err(invalid("it is longer than any token"));
        }
        let mut parts = text.split('-');
        if parts.next() != Some("SWMTKN") {
            return Err(invalid("it does not begin with SWMTKN"));
        }
        let digest = match parts.next() {
            Some("1") => parts.next(),
            Some("2") => match parts.next() {
                Some("1") => return Err(Error::FipsCluster),
                Some("0") => parts.next(),
                _ => return Err(invalid("its third part is neither 0 nor 1")),
            },
            _ => return Err(invalid("its version is neither 1 nor 2")),
        };
        let digest = digest.filter(|digest| digest.len() == DIGEST_LENGTH);
        let digest = digest.ok_or_else(|| invalid("its digest does not have 50 characters"))?;
        let digest =
            RootDigest::from_base36(digest).ok_or_else(|| invalid("its digest is no number"))?;
        let secret = parts.next().filter(|secret| secret.len() == SECRET_LENGTH);
        let secret = secret.ok_or_else(|| invalid("its secret does not have 25 characters"))?;
        if !secret.bytes().all(|byte| digit(byte).is_some()) {
            return Err(invalid(
                "its secret has other characters than digits and small letters",
            ));
        }
        if parts.next().is_some() {
            return Err(invalid("it has too many parts"));
        }
        Ok(Self {
            text: text.to_owned(),
            digest,
        })
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken")
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SWMTKN-…-{}-redacted", self.digest)
    }
}

// === impl RootDigest ===

impl RootDigest {
    /// The digest of these bytes.
    #[must_use]
    pub fn of(pem: &[u8]) -> Self {
        Self(Sha256::digest(pem).into())
    }

    /// A number below 2^256 in base 36.
    pub(crate) fn from_base36(text: &str) -> Option<Self> {
        let mut number = [0_u8; 32];
        for byte in text.bytes() {
            let mut carry = u32::from(digit(byte)?);
            for place in number.iter_mut().rev() {
                let sum = u32::from(*place) * 36 + carry;
                *place = sum.to_le_bytes()[0];
                carry = sum >> 8;
            }
            if carry > 0 {
                return None;
            }
        }
        Some(Self(number))
    }
}

impl fmt::Display for RootDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut number = self.0;
        let mut text = [b'0'; DIGEST_LENGTH];
        for place in text.iter_mut().rev() {
            let mut rest = 0_u32;
            for byte in &mut number {
                let dividend = rest << 8 | u32::from(*byte);
                *byte = (dividend / 36).to_le_bytes()[0];
                rest = dividend % 36;
            }
            *place = b"0123456789abcdefghijklmnopqrstuvwxyz"[rest as usize];
        }
        f.write_str(&String::from_utf8_lossy(&text))
    }
}

impl fmt::Debug for RootDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The value of a digit in base 36.
fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'z' => Some(byte - b'a' + 10),
        _ => None,
    }
}
