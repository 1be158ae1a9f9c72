//! Keys and requests, read by openssl.

use std::io::Write;
use std::process::{Command, Stdio};

use super::NodeKey;

/// Returns the output of openssl for this input.
fn openssl(words: &[&str], input: &str) -> String {
    let mut child = Command::new("openssl")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl runs; it is in the Debian package openssl");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).expect("openssl reads");
    drop(stdin);
    let output = child.wait_with_output().expect("openssl ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {words:?}: {errors}");
    format!("{}{errors}", String::from_utf8_lossy(&output.stdout))
}

#[test]
fn request_is_of_the_key_with_an_empty_subject() {
    let key = NodeKey::generate().expect("there are random numbers");
    let request = key.certificate_request().expect("it can be signed");
    let text = openssl(&["req", "-noout", "-text", "-verify"], &request);
    assert!(
        text.contains("verify OK") && text.contains("P-256") && text.contains("ecdsa-with-SHA256"),
        "{text}"
    );
    let subject = openssl(&["req", "-noout", "-subject"], &request);
    assert_eq!(subject.trim(), "subject=");
    let public = openssl(&["req", "-noout", "-pubkey"], &request);
    assert_eq!(public, openssl(&["pkey", "-pubout"], &key.to_pem()));
}

#[test]
fn stored_key_is_read_back_and_every_key_is_another() {
    let key = NodeKey::generate().expect("there are random numbers");
    let read = NodeKey::from_pem(key.to_pem().as_bytes()).expect("it is one");
    assert_eq!(
        read.public_key().expect("it can be encoded"),
        key.public_key().expect("it can be encoded")
    );
    let other = NodeKey::generate().expect("there are random numbers");
    assert_ne!(
        other.public_key().expect("it can be encoded"),
        key.public_key().expect("it can be encoded")
    );
}

#[test]
fn other_keys_are_refused_and_nothing_of_one_is_printed() {
    let key = NodeKey::generate().expect("there are random numbers");
    assert_eq!(format!("{key:?}"), "NodeKey");
    let other = openssl(&["genpkey", "-algorithm", "ed25519"], "");
    for wrong in [
        "",
        "x",
        &other,
        "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
    ] {
        let error = NodeKey::from_pem(wrong.as_bytes())
            .expect_err("it is no key")
            .to_string();
        assert!(
            error.contains("cannot read the private key of this node"),
            "{error}"
        );
    }
}
