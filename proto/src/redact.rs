//! `Debug` for messages that carry credentials: says which fields are set, never what they hold.

use std::fmt;

use crate::cri;

/// Prints in place of a secret whether there is one.
struct Secret<'a>(&'a str);

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "unset" } else { "redacted" })
    }
}

impl fmt::Debug for cri::v1::AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { username, password, auth, server_address, identity_token, registry_token } = self;
        f.debug_struct("AuthConfig")
            .field("username", &Secret(username))
            .field("password", &Secret(password))
            .field("auth", &Secret(auth))
            .field("server_address", server_address)
            .field("identity_token", &Secret(identity_token))
            .field("registry_token", &Secret(registry_token))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_of_credentials_shows_only_which_are_set() {
        let auth = cri::v1::AuthConfig {
            username: "hunter".into(),
            password: "two".into(),
            server_address: "registry.example".into(),
            ..Default::default()
        };
        let request = cri::v1::PullImageRequest { auth: Some(auth), ..Default::default() };
        let shown = format!("{request:?}");
        assert!(!shown.contains("hunter") && !shown.contains("two"), "{shown}");
        assert!(shown.contains("password: redacted") && shown.contains("identity_token: unset"), "{shown}");
        assert!(shown.contains("registry.example"), "{shown}");
    }
}
