//! Tests of which certificates make a valid identity.

use std::time::{Duration, SystemTime};

use super::Identity;
use crate::certificates::{NodeChain, RootBundle};
use crate::error::Error;
use crate::key::NodeKey;
use crate::testing::TestAuthority;

fn now() -> SystemTime {
    SystemTime::now() + Duration::from_secs(60)
}

/// An identity of a node with this role; its certificate is for `certified`, and its key is `own`.
fn made(
    authority: &TestAuthority,
    role: &str,
    certified: &NodeKey,
    own: NodeKey,
    at: SystemTime,
) -> Result<Identity, Error> {
    let request = certified.certificate_request()?;
    let chain = NodeChain::from_pem(&authority.issue(&request, "cluster1", role, "node1"))?;
    Identity::new(RootBundle::from_pem(&authority.root())?, chain, own, at)
}

#[test]
fn worker_with_its_own_key_is_a_member() {
    let dir = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new(dir.path(), "a");
    let key = NodeKey::generate().unwrap();
    let identity = made(&authority, "swarm-worker", &key, key.clone(), now()).unwrap();
    assert_eq!((identity.node(), identity.cluster()), ("node1", "cluster1"));
    let info = identity.tls_info();
    assert_eq!(info.trust_root, authority.root());
    assert!(!info.cert_issuer_public_key.is_empty() && !info.cert_issuer_subject.is_empty());
}

#[test]
fn manager_expired_and_foreign_certificates_are_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new(dir.path(), "a");
    let key = NodeKey::generate().unwrap();
    let manager = made(&authority, "swarm-manager", &key, key.clone(), now()).unwrap_err();
    assert!(matches!(manager, Error::ManagerRole { .. }), "{manager}");
    assert!(
        manager.to_string().contains("docker node rm --force node1"),
        "{manager}"
    );
    let late = now() + Duration::from_secs(91 * 86_400);
    let expired = made(&authority, "swarm-worker", &key, key.clone(), late).unwrap_err();
    assert!(
        matches!(expired, Error::CertificateExpired { .. }),
        "{expired}"
    );
    assert!(
        expired.to_string().contains("switchyard swarm leave"),
        "{expired}"
    );
    let foreign = made(
        &authority,
        "swarm-worker",
        &NodeKey::generate().unwrap(),
        key,
        now(),
    )
    .unwrap_err();
    assert!(
        foreign.to_string().contains("not of the private key"),
        "{foreign}"
    );
}

#[test]
fn other_roots_are_taken_only_if_the_certificate_leads_to_them() {
    let dir = tempfile::tempdir().unwrap();
    let old = TestAuthority::new(dir.path(), "old");
    let new = TestAuthority::new(dir.path(), "new");
    let key = NodeKey::generate().unwrap();
    let identity = made(&old, "swarm-worker", &key, key.clone(), now()).unwrap();
    let new_roots = RootBundle::from_pem(&new.root()).unwrap();
    assert!(identity.with_roots(new_roots.clone(), now()).is_err());
    let request = key.certificate_request().unwrap();
    let mut rotated = new.issue(&request, "cluster1", "swarm-worker", "node1");
    rotated.extend(old.cross_sign(&new));
    let chain = NodeChain::from_pem(&rotated).unwrap();
    let renewed = Identity::new(
        RootBundle::from_pem(&old.root()).unwrap(),
        chain,
        key,
        now(),
    )
    .unwrap();
    let changed = renewed.with_roots(new_roots, now()).unwrap();
    assert_eq!(changed.tls_info().trust_root, new.root());
    assert_eq!(
        changed.tls_info().cert_issuer_public_key,
        renewed.tls_info().cert_issuer_public_key
    );
}
