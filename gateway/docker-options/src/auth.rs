//! Credentials for a registry as Docker writes them: as an entry of its `config.json`, and as the header of a
//! request or the option of a service.

use std::fmt::Display;

use base64::Engine;
use base64::alphabet::{STANDARD as STANDARD_ALPHABET, URL_SAFE};
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use switchyard_core::image::Credentials;
use switchyard_core::{Error, Result};

/// The longest encoded credentials, in bytes. Tokens of registries are some KiB long.
const ENCODED_MAX: usize = 256 << 10;

/// Base64 with or without padding.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// An entry for one registry.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct AuthEntry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

impl std::fmt::Debug for AuthEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthEntry").finish_non_exhaustive()
    }
}

impl AuthEntry {
    /// The credentials of this entry; `None` if it has none.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the field, without any of its content.
    pub fn credentials(&self, field: impl Display) -> Result<Option<Credentials>> {
        if !self.identitytoken.is_empty() {
            return Ok(Some(Credentials::IdentityToken(self.identitytoken.clone())));
        }
        if !self.registrytoken.is_empty() {
            return Ok(Some(Credentials::RegistryToken(self.registrytoken.clone())));
        }
        if !self.auth.is_empty() {
            let wrong = || {
                Error::invalid(
                    format_args!("{field}.auth"),
                    "it is not base64 of \"user:password\"",
                )
            };
            let text = STANDARD
                .decode(&self.auth)
                .ok()
                .and_then(|bytes| String::from_utf8(bytes).ok());
            let text = text.ok_or_else(wrong)?;
            // Some tools pad with zero bytes.
            let (username, password) = text
                .trim_end_matches('\0')
                .split_once(':')
                .ok_or_else(wrong)?;
            let username = username.to_owned();
            let password = password.to_owned();
            return Ok(Some(Credentials::Basic { username, password }));
        }
        if self.username.is_empty() {
            return Ok(None);
        }
        let username = self.username.clone();
        let password = self.password.clone();
        Ok(Some(Credentials::Basic { username, password }))
    }
}

/// The credentials in the header `X-Registry-Auth`, which services carry too: a JSON object in base64.
///
/// # Errors
/// `InvalidArgument`, naming the field, without any of its content.
pub fn registry_auth(field: impl Display, encoded: &str) -> Result<Option<Credentials>> {
    if encoded.is_empty() {
        return Ok(None);
    }
    let wrong = |why: &str| Error::invalid(&field, why);
    if encoded.len() > ENCODED_MAX {
        return Err(wrong("it is longer than 256 KiB"));
    }
    // docker writes the URL-safe alphabet with padding; other clients the standard one, or no padding.
    let bytes = GeneralPurpose::new(&URL_SAFE, LENIENT)
        .decode(encoded)
        .or_else(|_| GeneralPurpose::new(&STANDARD_ALPHABET, LENIENT).decode(encoded))
        .map_err(|_| wrong("it is not base64"))?;
    let entry: AuthEntry = serde_json::from_slice(&bytes)
        .map_err(|_| wrong("it is not the JSON object of docker's credentials"))?;
    entry.credentials(field)
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::URL_SAFE;

    use super::*;

    fn basic(username: &str, password: &str) -> Credentials {
        Credentials::Basic {
            username: username.to_owned(),
            password: password.to_owned(),
        }
    }

    #[test]
    fn header_of_dockers_client_gives_credentials() {
        let check = |json: &str, expected: Option<Credentials>| {
            for encoded in [URL_SAFE.encode(json), STANDARD.encode(json)] {
                assert_eq!(registry_auth("f", &encoded).unwrap(), expected, "{json}");
                assert_eq!(
                    registry_auth("f", encoded.trim_end_matches('=')).unwrap(),
                    expected,
                    "{json}"
                );
            }
        };
        check(
            r#"{"username":"u","password":"p??>","serveraddress":"r.test"}"#,
            Some(basic("u", "p??>")),
        );
        check(r#"{"auth":"dTpw"}"#, Some(basic("u", "p")));
        check(
            r#"{"identitytoken":"t"}"#,
            Some(Credentials::IdentityToken("t".to_owned())),
        );
        check(
            r#"{"registrytoken":"t"}"#,
            Some(Credentials::RegistryToken("t".to_owned())),
        );
        check("{}", None);
        assert_eq!(registry_auth("f", "").unwrap(), None);
    }

    #[test]
    fn malformed_credentials_are_refused_without_their_content() {
        let not_base64 = "hunter2!".to_owned();
        let not_json = URL_SAFE.encode("hunter2");
        let no_pair = URL_SAFE.encode(format!(r#"{{"auth":"{}"}}"#, STANDARD.encode("hunter2")));
        let long = "A".repeat(ENCODED_MAX + 1);
        for encoded in [not_base64, not_json, no_pair, long] {
            let error = registry_auth("pull_options.registry_auth", &encoded)
                .unwrap_err()
                .report();
            assert!(error.starts_with("pull_options.registry_auth"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
