//! Fuzz targets: each function takes untrusted bytes and asserts properties that hold for any input.

use std::path::Path;

use switchyard_core::image::ImageReference;

use crate::auth::AuthChallenge;
use crate::hosts::file;
use crate::{ImageConfig, Limits, Manifest, SNAPSHOT_ANNOTATION, total_bytes};

/// A manifest or an index: what is accepted is of one kind, and errors are bounded.
///
/// # Panics
/// If an invariant does not hold.
pub fn manifest(data: &[u8]) {
    match Manifest::parse("it", None, data) {
        Ok((media_type, manifest)) => {
            let again =
                Manifest::parse("it", Some(media_type.as_str()), data).expect("it is what it is");
            assert_eq!(again, (media_type, manifest.clone()));
            let entries = match &manifest {
                Manifest::Index(index) => &index.manifests,
                Manifest::Image(image) => &image.layers,
            };
            assert!(entries.len() <= data.len() / 100, "an entry has a digest");
            assert!(
                entries
                    .iter()
                    .all(|entry| entry.size <= total_bytes(entries))
            );
            if Limits::default().check_layers("it", entries).is_ok() {
                assert!(entries.len() <= Limits::default().layers);
            }
            for entry in entries {
                assert_eq!(entry.digest.to_string().parse(), Ok(entry.digest.clone()));
                let mut keys = entry.annotations.keys();
                assert!(keys.len() <= 32, "their number is bounded");
                assert!(keys.all(|key| key.starts_with(SNAPSHOT_ANNOTATION)));
            }
        }
        Err(error) => check_text(&error),
    }
}

/// An image's configuration: errors are bounded, and so is what is accepted.
///
/// # Panics
/// If an invariant does not hold.
pub fn image_config(data: &[u8]) {
    match ImageConfig::parse("it", data) {
        Ok(config) => {
            assert!(
                config.rootfs.diff_ids.len() <= data.len() / 70,
                "an entry has a digest"
            );
            assert!(
                config.config.volumes.len() <= data.len() / 3
                    && config.config.env.len() <= data.len() / 2
            );
            assert!(config.platform.to_string().chars().count() <= 3 * 300 + 2);
        }
        Err(error) => check_text(&error),
    }
}

/// The header of a challenge: what is read can be written with quotes and read again, and is bounded.
///
/// # Panics
/// If an invariant does not hold.
pub fn auth_challenge(data: &[u8]) {
    let Ok(header) = std::str::from_utf8(data) else {
        return;
    };
    let challenges = AuthChallenge::parse(header);
    assert!(
        challenges.len() <= 16
            && challenges
                .iter()
                .all(|challenge| challenge.parameters.len() <= 32)
    );
    let written: Vec<String> = challenges.iter().map(write_challenge).collect();
    let written = written.join(", ");
    // The quotes of many empty values may make it longer than a header is read.
    if written.len() <= 8 << 10 {
        assert_eq!(AuthChallenge::parse(&written), challenges, "{written}");
    }
}

fn write_challenge(challenge: &AuthChallenge) -> String {
    let quoted = |value: &str| value.replace('\\', r"\\").replace('"', r#"\""#);
    let parameters: Vec<String> = challenge
        .parameters
        .iter()
        .map(|(name, value)| format!("{name}=\"{}\"", quoted(value)))
        .collect();
    format!("{} {}", challenge.scheme, parameters.join(", "))
}

/// A `hosts.toml`: every host has a URL that can be asked, the last one is the server, and no key of it is
/// the registry's by mistake.
///
/// # Panics
/// If an invariant does not hold.
pub fn hosts_toml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let reference: ImageReference = "registry.example:5000/app:v1"
        .parse()
        .expect("it is a reference");
    let Ok(hosts) = file::parse(Path::new("/nonexistent/hosts.toml"), text, &reference) else {
        return;
    };
    assert!(!hosts.is_empty(), "the server is always there");
    for host in hosts {
        let url = host.url("app/manifests/v1");
        assert!(
            matches!(url.scheme(), "http" | "https") && url.host_str().is_some(),
            "{url}"
        );
        assert!(url.path().ends_with("/app/manifests/v1"), "{url}");
        assert!(
            url.username().is_empty() && url.password().is_none(),
            "{url}"
        );
    }
}

/// Checks that an error is safe for logs and terminals.
fn check_text(error: &crate::Error) {
    let mut text = error.to_string();
    if let Some(cause) = std::error::Error::source(error) {
        text.push_str(&cause.to_string());
    }
    assert!(text.chars().count() <= 1000, "{text}");
    assert!(!text.contains(char::is_control), "{text:?}");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every target on the same bytes.
    fn all(data: &[u8]) {
        manifest(data);
        image_config(data);
        auth_challenge(data);
        hosts_toml(data);
    }

    #[test]
    fn well_formed_inputs_pass() {
        let digest = crate::Digest::sha256(b"x");
        for text in [
            format!(
                r#"{{"schemaVersion":2,"config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{digest}","size":2}},"layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"{digest}","size":18446744073709551615}}]}}"#
            ),
            format!(
                r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"x","digest":"{digest}","size":1}}]}}"#
            ),
            format!(
                r#"{{"os":"\u001b[2J","rootfs":{{"diff_ids":["{digest}"]}},"config":{{"Volumes":{{"":{{}}}},"Env":["",""]}}}}"#
            ),
            r#"Bearer realm="https://x/\"y\"",service=z, Basic realm="#.to_owned(),
            "server = \"https://a/b\"\n[host.\"http://[::1]:5000\"]\noverride_path = true\n"
                .to_owned(),
        ] {
            all(text.as_bytes());
        }
    }

    #[test]
    fn errors_quote_no_more_than_a_line() {
        let name = "\\u001b".repeat(100_000);
        all(format!(r#"{{"schemaVersion":"{name}"}}"#).as_bytes());
        all(format!(r#"{{"schemaVersion":2,"mediaType":"{name}"}}"#).as_bytes());
        all(format!(r#"{{"os":["{name}"],"architecture":"{name}"}}"#).as_bytes());
        all(format!(r#"{{"os":"{name}","architecture":"{name}"}}"#).as_bytes());
    }

    proptest! {
        #[test]
        fn any_bytes_keep_the_invariants(data: Vec<u8>) {
            all(&data);
        }

        #[test]
        fn near_misses_keep_the_invariants(text in "[a-z0-9:/@._=\"\\\\\\[\\]{}, \\n-]{0,60}") {
            all(text.as_bytes());
        }
    }
}
