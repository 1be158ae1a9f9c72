//! Certificates of good and bad authorities.

use std::time::{Duration, SystemTime};

use super::{NodeChain, PEM_MAX, RootBundle, Unverified};
use crate::error::Error;
use crate::key::NodeKey;
use crate::testing::TestAuthority;

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory can be made")
}

fn request() -> String {
    let key = NodeKey::generate().expect("there are random numbers");
    key.certificate_request().expect("it can be signed")
}

#[track_caller]
fn refused_root(pem: &[u8], reason: &str) {
    match RootBundle::from_pem(pem) {
        Err(Error::InvalidCertificate { reason: found, .. }) => {
            assert!(found.contains(reason), "{found}")
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused_chain(pem: &[u8], reason: &str) {
    match NodeChain::from_pem(pem) {
        Err(Error::InvalidCertificate { reason: found, .. }) => {
            assert!(found.contains(reason), "{found}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn roots_of_common_kinds_are_read_and_kept_as_they_are() {
    let dir = dir();
    let mut bundle = Vec::new();
    for (number, key) in [
        &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"][..],
        &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp384r1"],
        &["-newkey", "rsa:2048"],
        &["-newkey", "rsa:2048", "-sha512"],
        &["-newkey", "ed25519"],
    ]
    .into_iter()
    .enumerate()
    {
        let root = TestAuthority::of_kind(dir.path(), &number.to_string(), key, "swarm-ca").root();
        assert_eq!(
            RootBundle::from_pem(&root).expect("it is a root").pem(),
            root
        );
        bundle.extend(root);
    }
    assert_eq!(
        RootBundle::from_pem(&bundle)
            .expect("all are roots")
            .certificates
            .len(),
        5
    );
}

#[test]
fn what_is_no_root_is_refused_with_its_reason() {
    let dir = dir();
    let authority = TestAuthority::new(dir.path(), "a");
    let other = TestAuthority::of_kind(dir.path(), "b", &["-newkey", "rsa:2048"], "other");
    refused_root(b"", "there is none");
    refused_root(&authority.root_key(), "there is none");
    refused_root(
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "",
    );
    refused_root(&vec![b'x'; PEM_MAX + 1], "more than");
    refused_root(&authority.root().repeat(17), "more than 16");
    refused_root(
        &authority.issue(&request(), "c", "swarm-worker", "n"),
        "not one of a certificate authority",
    );
    refused_root(&other.cross_sign(&authority), "issued by another");
    // The same name as its issuer, and signed by another key.
    let same_name = TestAuthority::new(dir.path(), "c");
    refused_root(&same_name.cross_sign(&authority), "not signed by itself");
    let weak = TestAuthority::of_kind(
        dir.path(),
        "d",
        &["-newkey", "rsa:2048", "-sha1"],
        "swarm-ca",
    );
    refused_root(&weak.root(), "SHA-2");
    let mut one_bad = authority.root();
    one_bad.extend(weak.root());
    refused_root(&one_bad, "SHA-2");
}

#[test]
fn chain_tells_node_cluster_and_role() {
    let dir = dir();
    let authority = TestAuthority::new(dir.path(), "a");
    let chain =
        NodeChain::from_pem(&authority.issue(&request(), "cluster1", "swarm-worker", "node1"));
    let chain = chain.expect("it is valid");
    let subject = chain.subject();
    assert_eq!(
        (
            subject.node.as_str(),
            subject.cluster.as_str(),
            subject.is_manager
        ),
        ("node1", "cluster1", false)
    );
    let validity = chain.validity();
    let whole = validity
        .not_after
        .duration_since(validity.not_before)
        .expect("it ends after it begins");
    assert_eq!(whole.as_secs() / 86_400, 90);
    let manager = NodeChain::from_pem(&authority.issue(&request(), "c", "swarm-manager", "m"));
    assert!(manager.expect("it is valid").subject().is_manager);
}

#[test]
fn subjects_that_are_not_of_a_node_are_refused() {
    let dir = dir();
    let authority = TestAuthority::new(dir.path(), "a");
    let sign = |subject: &str| authority.sign(&request(), subject, "basicConstraints=CA:FALSE\n");
    refused_chain(&sign("/OU=swarm-worker/CN=n"), "no organisation");
    refused_chain(&sign("/O=c/OU=swarm-worker"), "no common name");
    refused_chain(&sign("/O=c/CN=n"), "no organisational unit");
    refused_chain(&sign("/O=c/OU=swarm-ca/CN=n"), "not a role");
    refused_chain(
        &sign("/O=c/OU=swarm-worker/OU=swarm-manager/CN=n"),
        "more than one",
    );
    refused_chain(&sign("/O=c/OU=swarm-worker/CN=n w"), "an id that is none");
    refused_chain(
        &sign("/O=..\\/x/OU=swarm-worker/CN=n"),
        "an id that is none",
    );
    refused_chain(b"", "there is none");
}

#[test]
fn chain_is_verified_up_to_the_root_and_at_the_time() {
    let dir = dir();
    let authority = TestAuthority::new(dir.path(), "a");
    let other = TestAuthority::new(dir.path(), "b");
    let now = SystemTime::now() + Duration::from_secs(60);
    let chain = NodeChain::from_pem(&authority.issue(&request(), "c", "swarm-worker", "n"))
        .expect("it is valid");
    let roots = RootBundle::from_pem(&authority.root()).expect("it is a root");
    let issuer = chain.verify(&roots, now).expect("it leads to the root");
    assert!(
        issuer.public_key.len() > 80 && issuer.subject.windows(8).any(|part| part == b"swarm-ca")
    );
    let others = RootBundle::from_pem(&other.root()).expect("it is a root");
    assert!(matches!(
        chain.verify(&others, now),
        Err(Unverified::Invalid(_))
    ));
    let later = now + Duration::from_secs(91 * 86_400);
    assert_eq!(chain.verify(&roots, later), Err(Unverified::Expired));
    assert_eq!(
        chain.verify(&roots, SystemTime::UNIX_EPOCH),
        Err(Unverified::NotValidYet)
    );
}

#[test]
fn issuer_is_the_second_certificate_of_the_verified_chain() {
    let dir = dir();
    let old = TestAuthority::new(dir.path(), "old");
    let new = TestAuthority::new(dir.path(), "new");
    let mut rotated = new.issue(&request(), "c", "swarm-worker", "n");
    rotated.extend(old.cross_sign(&new));
    let chain = NodeChain::from_pem(&rotated).expect("it is valid");
    let now = SystemTime::now() + Duration::from_secs(60);
    let roots =
        |authority: &TestAuthority| RootBundle::from_pem(&authority.root()).expect("it is a root");
    let key_of = |authority: &TestAuthority| {
        let issued = authority.issue(&request(), "c", "swarm-worker", "n");
        let chain = NodeChain::from_pem(&issued).expect("it is valid");
        chain
            .verify(&roots(authority), now)
            .expect("it leads to the root")
            .public_key
    };
    // Both roots have the same name: before and after the rotation the key is that of the new one.
    let before = chain
        .verify(&roots(&old), now)
        .expect("it leads to the old root by the intermediate one");
    let after = chain
        .verify(&roots(&new), now)
        .expect("it leads to the new root");
    assert_eq!(before.public_key, key_of(&new));
    assert_eq!(after.public_key, key_of(&new));
    assert_ne!(before.public_key, key_of(&old));
    let mut both = old.root();
    both.extend(new.root());
    let both = RootBundle::from_pem(&both).expect("both are roots");
    assert_eq!(
        chain
            .verify(&both, now)
            .expect("it leads to a root")
            .public_key,
        key_of(&new)
    );
}
