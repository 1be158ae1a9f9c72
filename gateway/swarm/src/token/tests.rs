//! Join tokens, good and bad ones.

use proptest::prelude::*;

use super::{JoinToken, RootDigest};
use crate::error::Error;

/// The digest of a root certificate that a manager had made, and a secret.
const DIGEST: &str = "3xg4d1v9q8s2u2s3mm6vtf0yggbiiq6xsq8tnkb8l0gwn8z2cd";
const SECRET: &str = "0v0kzyjmbd0mwgz6rb6fyz4v9";

fn refused(text: &str) -> String {
    match text.parse::<JoinToken>() {
        Err(error @ Error::InvalidToken { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn token_of_the_first_version_is_read_and_sent_as_it_is() {
    let text = format!("SWMTKN-1-{DIGEST}-{SECRET}");
    let token: JoinToken = format!(" {text}\n").parse().expect("it is valid");
    assert_eq!(token.as_sent(), text);
    assert_eq!(token.digest().to_string(), DIGEST);
}

#[test]
fn token_of_the_second_version_says_whether_the_cluster_is_fips() {
    let token: JoinToken = format!("SWMTKN-2-0-{DIGEST}-{SECRET}")
        .parse()
        .expect("it is valid");
    assert_eq!(token.digest().to_string(), DIGEST);
    let fips = format!("SWMTKN-2-1-{DIGEST}-{SECRET}").parse::<JoinToken>();
    assert!(matches!(fips, Err(Error::FipsCluster)), "{fips:?}");
}

#[test]
fn known_numbers_have_their_digits() {
    let of = |number: u8| {
        let mut bytes = [0; 32];
        bytes[31] = number;
        RootDigest(bytes)
    };
    assert_eq!(of(0).to_string(), "0".repeat(50));
    assert_eq!(of(35).to_string(), format!("{}z", "0".repeat(49)));
    assert_eq!(of(36).to_string(), format!("{}10", "0".repeat(48)));
    // 2^256 - 1, and one more.
    let most = RootDigest([0xff; 32]).to_string();
    assert_eq!(RootDigest::from_base36(&most), Some(RootDigest([0xff; 32])));
    let last = most.as_bytes()[49];
    let above = format!("{}{}", &most[..49], char::from(last + 1));
    assert!(
        last < b'z' && RootDigest::from_base36(&above).is_none(),
        "{above}"
    );
}

#[test]
fn tokens_that_are_none_are_refused_with_a_reason_and_a_cure() {
    let cut = &DIGEST[1..];
    let upper = SECRET.to_uppercase();
    for (text, reason) in [
        (String::new(), "does not begin with SWMTKN"),
        ("SWMTKN".to_owned(), "version"),
        (format!("SWMTKN-3-{DIGEST}-{SECRET}"), "version"),
        (
            format!("SWMTKN-1-{cut}-{SECRET}"),
            "digest does not have 50",
        ),
        (
            format!("SWMTKN-1-{}-{SECRET}", "z".repeat(50)),
            "digest is no number",
        ),
        (format!("SWMTKN-1-{DIGEST}"), "secret does not have 25"),
        (
            format!("SWMTKN-1-{DIGEST}-{SECRET}x"),
            "secret does not have 25",
        ),
        (format!("SWMTKN-1-{DIGEST}-{upper}"), "small letters"),
        (
            format!("SWMTKN-1-{DIGEST}-{SECRET}-{SECRET}"),
            "too many parts",
        ),
        (format!("SWMTKN-2-{DIGEST}-{SECRET}"), "neither 0 nor 1"),
        (
            format!("SWMTKN-1-{DIGEST}-{SECRET}").repeat(1000),
            "longer than any",
        ),
    ] {
        let message = refused(&text);
        assert!(
            message.contains(reason) && message.contains("docker swarm join-token worker"),
            "{message}"
        );
    }
}

#[test]
fn neither_form_of_output_shows_the_secret() {
    let token: JoinToken = format!("SWMTKN-1-{DIGEST}-{SECRET}")
        .parse()
        .expect("it is valid");
    for shown in [format!("{token:?}"), token.to_string()] {
        assert!(shown.contains(DIGEST) && !shown.contains(SECRET), "{shown}");
    }
    let message = refused(&format!("SWMTKN-1-{DIGEST}-{SECRET}-more"));
    assert!(!message.contains(SECRET), "{message}");
}

proptest! {
    #[test]
    fn every_digest_is_read_back(bytes: [u8; 32]) {
        let digest = RootDigest(bytes);
        let text = digest.to_string();
        prop_assert_eq!(text.len(), 50);
        prop_assert_eq!(RootDigest::from_base36(&text), Some(digest));
        let token: JoinToken = format!("SWMTKN-1-{text}-{SECRET}").parse().expect("it is valid");
        prop_assert_eq!(token.digest(), digest);
    }

    #[test]
    fn no_text_makes_a_panic_or_shows_itself(text in "(SWMTKN-)?[0-9a-zA-Z-]{0,120}|.{0,300}") {
        match text.parse::<JoinToken>() {
            Ok(token) => prop_assert_eq!(token.as_sent(), text.trim()),
            Err(error) => prop_assert!(text.trim().len() < 12 || !error.to_string().contains(text.trim())),
        }
    }
}
