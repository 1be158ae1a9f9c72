//! Converts pull requests and credentials.

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use switchyard_core::id::Owner;
use switchyard_core::image::{Credentials, ImageReference, PullRequest};
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1 as cri;

use super::field::required;

/// Docker's configuration files may or may not have padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The pull request of an image.
pub(crate) fn pull_request(request: cri::PullImageRequest) -> Result<PullRequest> {
    let cri::PullImageRequest {
        image,
        auth,
        // Images do not belong to a pod: it is named in the records of the pull alone.
        sandbox_config: _,
    } = request;
    let cri::ImageSpec {
        image: reference,
        annotations: _,
        // For status only: `image` is what is pulled.
        user_specified_image: _,
        runtime_handler,
        image_ref: _,
    } = required("image", image)?;
    if reference.is_empty() {
        return Err(Error::invalid("image.image", "it is empty"));
    }
    let credentials = match auth {
        None => Credentials::Anonymous,
        Some(auth) => credentials(auth, &reference)?,
    };
    Ok(PullRequest {
        reference,
        credentials,
        handler: runtime_handler,
        owner: Owner::Kubernetes,
    })
}

/// The credentials for the registry of `reference`. Credentials for another registry are not sent to it, and none if the
/// text is not a reference, for which the pull is refused.
fn credentials(auth: cri::AuthConfig, reference: &str) -> Result<Credentials> {
    let cri::AuthConfig {
        username,
        password,
        auth,
        server_address,
        identity_token,
        registry_token,
    } = auth;
    let is_for = |reference: ImageReference| reference.is_served_by(server_host(&server_address));
    if !server_address.is_empty() && !reference.parse().is_ok_and(is_for) {
        return Ok(Credentials::Anonymous);
    }
    // Where a login gave a token, `docker login` writes the name with an empty password beside it.
    let has_token = !identity_token.is_empty() || !registry_token.is_empty();
    let is_complete = |password: &str| !password.is_empty() || !has_token;
    if !username.is_empty() && is_complete(&password) {
        return Ok(Credentials::Basic { username, password });
    }
    if !identity_token.is_empty() {
        return Ok(Credentials::IdentityToken(identity_token));
    }
    if !auth.is_empty() {
        let (username, password) = user_and_password(&auth)?;
        // A secret of nobody is a token to exchange, as it is for containerd.
        if username.is_empty() && !password.is_empty() {
            return Ok(Credentials::IdentityToken(password));
        }
        if !username.is_empty() && is_complete(&password) {
            return Ok(Credentials::Basic { username, password });
        }
    }
    if !registry_token.is_empty() {
        return Ok(Credentials::RegistryToken(registry_token));
    }
    Ok(Credentials::Anonymous)
}

/// The two parts of the field `auth` of Docker's configuration files.
fn user_and_password(auth: &str) -> Result<(String, String)> {
    let malformed = || Error::invalid("auth.auth", "it is not base64 of user:password");
    let decoded = BASE64.decode(auth.trim()).map_err(|_| malformed())?;
    let decoded = String::from_utf8(decoded).map_err(|_| malformed())?;
    let (username, password) = decoded.split_once(':').ok_or_else(malformed)?;
    // Some tools that write Docker's files pad with NULs.
    let password = password.trim_end_matches('\0');
    Ok((username.to_owned(), password.to_owned()))
}

/// The host of `https://registry.example/v1/` or `registry.example`.
fn server_host(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basic(username: &str, password: &str) -> Credentials {
        Credentials::Basic {
            username: username.into(),
            password: password.into(),
        }
    }

    #[track_caller]
    fn check(auth: cri::AuthConfig, reference: &str, expected: Credentials) {
        let image = cri::ImageSpec {
            image: reference.into(),
            ..Default::default()
        };
        let request = cri::PullImageRequest {
            image: Some(image),
            auth: Some(auth.clone()),
            sandbox_config: None,
        };
        let pull = pull_request(request).expect("it is well formed");
        // `Debug` does not print credentials, so compare them and print the request.
        assert!(
            pull.credentials == expected,
            "{auth:?} gave {:?}",
            pull.credentials
        );
    }

    #[test]
    fn first_set_kind_of_credentials_wins() {
        let mut auth = cri::AuthConfig {
            username: "u".into(),
            password: "p".into(),
            auth: BASE64.encode("v:q:r"),
            identity_token: "i".into(),
            registry_token: "r".into(),
            ..Default::default()
        };
        check(auth.clone(), "busybox", basic("u", "p"));
        auth.username.clear();
        check(
            auth.clone(),
            "busybox",
            Credentials::IdentityToken("i".into()),
        );
        auth.identity_token.clear();
        check(auth.clone(), "busybox", basic("v", "q:r"));
        auth.auth.clear();
        check(
            auth.clone(),
            "busybox",
            Credentials::RegistryToken("r".into()),
        );
        auth.registry_token.clear();
        check(auth, "busybox", Credentials::Anonymous);
    }

    #[test]
    fn name_without_a_password_gives_way_to_a_token() {
        let identity = || Credentials::IdentityToken("i".into());
        let registry = || Credentials::RegistryToken("r".into());
        // The name and the password, the pair in `auth`, the identity token, the registry token.
        for (named, auth, tokens, expected) in [
            (["", ""], "u:", ["i", ""], identity()),
            (["", ""], "u:\0\0", ["i", ""], identity()),
            (["u", ""], "", ["i", ""], identity()),
            (["u", ""], "u:", ["i", ""], identity()),
            (["", ""], "u:", ["", "r"], registry()),
            (["u", ""], "", ["", "r"], registry()),
            (["u", "p"], "", ["i", ""], basic("u", "p")),
            (["u", ""], "u:p", ["", "r"], basic("u", "p")),
            (["", ""], "u:", ["", ""], basic("u", "")),
            // `auth` of nobody is a token itself.
            (["", ""], ":i", ["", ""], identity()),
            (["", ""], ":i\0", ["", "r"], identity()),
            (["u", "p"], ":i", ["", ""], basic("u", "p")),
            (["", ""], ":", ["", "r"], registry()),
            (["", ""], ":", ["", ""], Credentials::Anonymous),
            (["u", ""], "", ["", ""], basic("u", "")),
        ] {
            let auth = cri::AuthConfig {
                username: named[0].into(),
                password: named[1].into(),
                auth: if auth.is_empty() {
                    String::new()
                } else {
                    BASE64.encode(auth)
                },
                identity_token: tokens[0].into(),
                registry_token: tokens[1].into(),
                ..Default::default()
            };
            check(auth, "busybox", expected);
        }
    }

    #[test]
    fn base64_may_lack_its_padding() {
        let padded = BASE64.encode("a:bc");
        assert!(padded.ends_with('='));
        for text in [padded.as_str(), padded.trim_end_matches('=')] {
            check(
                cri::AuthConfig {
                    auth: text.into(),
                    ..Default::default()
                },
                "busybox",
                basic("a", "bc"),
            );
        }
    }

    #[test]
    fn credentials_go_only_to_their_registry() {
        let auth = |server: &str| cri::AuthConfig {
            username: "u".into(),
            server_address: server.into(),
            ..Default::default()
        };
        check(
            auth("reg.example:5000"),
            "reg.example:5000/a/b:1",
            basic("u", ""),
        );
        check(
            auth("https://reg.example/v2/"),
            "reg.example/a",
            basic("u", ""),
        );
        check(
            auth("https://index.docker.io/v1/"),
            "busybox",
            basic("u", ""),
        );
        check(auth("docker.io"), "library/busybox", basic("u", ""));
        check(auth("localhost"), "localhost/a", basic("u", ""));
        check(
            auth("reg.example"),
            "reg.example:5000/a",
            Credentials::Anonymous,
        );
        check(
            auth("https://evil.example"),
            "reg.example/a",
            Credentials::Anonymous,
        );
        check(auth("reg.example"), "busybox", Credentials::Anonymous);
        check(
            auth("docker.io"),
            "registry-1.docker.io/a/b",
            basic("u", ""),
        );
        // A name with capitals is that of a host.
        check(auth("docker.io"), "EVIL/a", Credentials::Anonymous);
        check(auth("evil"), "EVIL/a", basic("u", ""));
    }

    #[test]
    fn invalid_pull_request_is_rejected_by_field() {
        let error = pull_request(cri::PullImageRequest::default()).expect_err("there is no image");
        assert_eq!(error.report(), "image: it is missing");
        let image = Some(cri::ImageSpec {
            image: "a".into(),
            ..Default::default()
        });
        let auth = Some(cri::AuthConfig {
            auth: "!!".into(),
            ..Default::default()
        });
        let request = cri::PullImageRequest {
            image,
            auth,
            sandbox_config: None,
        };
        let error = pull_request(request).expect_err("it is not base64");
        assert_eq!(
            error.report(),
            "auth.auth: it is not base64 of user:password"
        );
    }
}
