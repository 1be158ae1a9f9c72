//! Credentials, and how a registry's challenge is answered: Basic, or Bearer with a token from a token
//! service.
//!
//! Follows RFC 7235 for challenges, the distribution project's token specification, and its OAuth 2 variant
//! for identity tokens.

mod challenge;
mod token;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::HeaderValue;
use sha2::{Digest as _, Sha256};

pub use challenge::AuthChallenge;
pub(crate) use token::{Authorizer, Request};

/// The credentials of a pull. Their `Debug` output contains no secrets.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// No credentials.
    Anonymous,
    /// A user name with a password or an access token in its place.
    Basic {
        /// The user's name.
        username: String,
        /// The password.
        password: String,
    },
    /// A refresh token that the token service exchanges for access tokens.
    IdentityToken(String),
    /// A token that the registry itself accepts.
    RegistryToken(String),
}

impl Credentials {
    /// A hash that represents these credentials in the keys of caches, so that caches contain no secrets.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let parts: [&str; 3] = match self {
            Self::Anonymous => ["anonymous", "", ""],
            Self::Basic { username, password } => ["basic", username, password],
            Self::IdentityToken(token) => ["identity", token, ""],
            Self::RegistryToken(token) => ["registry", token, ""],
        };
        for part in parts {
            // The length keeps ("ab", "c") and ("a", "bc") apart.
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("Anonymous"),
            Self::Basic {
                username,
                password: _,
            } => f
                .debug_struct("Basic")
                .field("username", username)
                .finish_non_exhaustive(),
            Self::IdentityToken(_) => f.write_str("IdentityToken(..)"),
            Self::RegistryToken(_) => f.write_str("RegistryToken(..)"),
        }
    }
}

/// The value of a Basic `Authorization` header.
pub(crate) fn basic(username: &str, password: &str) -> HeaderValue {
    let encoded = STANDARD.encode(format!("{username}:{password}"));
    let mut value = HeaderValue::try_from(format!("Basic {encoded}"))
        .expect("base64 holds only characters that headers may hold");
    value.set_sensitive(true);
    value
}

/// The value of a Bearer `Authorization` header, unless the token holds what no header may hold.
pub(crate) fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_never_shows_secrets() {
        let all = [
            Credentials::Anonymous,
            Credentials::Basic {
                username: "user".into(),
                password: "hidden".into(),
            },
            Credentials::IdentityToken("hidden".into()),
            Credentials::RegistryToken("hidden".into()),
        ];
        let text = format!("{all:?}");
        assert!(!text.contains("hidden"), "{text}");
        assert!(text.contains("user"), "{text}");
        assert!(
            !format!("{:?} {:?}", basic("user", "hidden"), bearer("hidden")).contains("hidden")
        );
    }

    #[test]
    fn fingerprints_distinguish_credentials() {
        let basic = |username: &str, password: &str| {
            Credentials::Basic {
                username: username.into(),
                password: password.into(),
            }
            .fingerprint()
        };
        assert_eq!(basic("a", "b"), basic("a", "b"));
        assert_ne!(basic("ab", "c"), basic("a", "bc"));
        assert_ne!(
            Credentials::IdentityToken("a".into()).fingerprint(),
            Credentials::RegistryToken("a".into()).fingerprint()
        );
    }
}
