//! Joins with a manager that is slow, odd or hostile.

use std::time::SystemTime;

use switchyard_proto::docker::swarmkit::v1::issuance_status::State;
use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;

use super::manager::{CLUSTER, ScriptedManager};
use crate::certificates::PEM_MAX;
use crate::error::Error;
use crate::identity::Identity;
use crate::join::{JoinRequest, join, resume_join};
use crate::key::NodeKey;
use crate::store::{PendingJoin, Store};
use crate::token::RootDigest;

struct Node {
    store: Store,
    dir: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self {
            store: Store::new(dir.path().join("swarm")),
            dir,
        }
    }

    async fn join(&self, manager: &ScriptedManager) -> Result<Identity, Error> {
        let request = manager.request(Availability::Drain);
        join(&self.store, &request).await
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("swarm")).map_or(0, Iterator::count)
    }
}

#[tokio::test]
async fn node_joins_a_manager_with_and_without_alpn() {
    for has_alpn in [true, false] {
        let manager = ScriptedManager::start(has_alpn).await;
        let node = Node::new();
        let identity = node.join(&manager).await.unwrap();
        assert_eq!((identity.node(), identity.cluster()), ("node1", CLUSTER));
        let asked = manager.shared.asked.lock();
        let [request] = &asked.requests[..] else {
            panic!("it asks once")
        };
        assert_eq!(
            (request.token.as_str(), request.availability()),
            (manager.token().as_sent(), Availability::Drain)
        );
        assert!(node.store.load(SystemTime::now()).unwrap().is_some());
    }
}

#[tokio::test]
async fn certificate_of_an_earlier_request_is_waited_past() {
    let manager = ScriptedManager::start(true).await;
    manager.change(|script| {
        script.earlier = 1;
        script.states = vec![State::Issued, State::Pending, State::Failed];
    });
    // The failure is of the earlier request, too.
    assert_eq!(Node::new().join(&manager).await.unwrap().node(), "node1");
}

#[tokio::test]
async fn refused_request_is_final_names_the_node_and_is_not_continued() {
    let manager = ScriptedManager::start(true).await;
    manager.change(|script| script.states = vec![State::Failed]);
    let node = Node::new();
    let error = node.join(&manager).await.unwrap_err();
    assert!(
        matches!(error, Error::CertificateRefused { .. }),
        "{error:?}"
    );
    let text = error.report();
    assert!(
        text.contains("docker node rm --force node1") && text.contains("the CA dislikes it"),
        "{text}"
    );
    assert_eq!(node.files(), 0);
    assert_eq!(node.join(&manager).await.unwrap().node(), "node2");
}

#[tokio::test]
async fn unfinished_join_is_continued_unless_the_manager_does_not_know_it() {
    let manager = ScriptedManager::start(true).await;
    let node = Node::new();
    let key = NodeKey::generate().unwrap();
    let request = key.certificate_request().unwrap();
    let roots = manager.token().digest();
    let pending = PendingJoin {
        node: "gone".to_owned(),
        roots,
        request: request.clone(),
        key,
    };
    node.store.save_join(&pending).unwrap();
    // The manager was asked nothing yet, so it does not know the node.
    assert_eq!(node.join(&manager).await.unwrap().node(), "node1");

    let other = Node::new();
    other.store.save_join(&pending).unwrap();
    manager.shared.asked.lock().requests.last_mut().unwrap().csr = request.into_bytes();
    assert_eq!(other.join(&manager).await.unwrap().node(), "gone");
    assert_eq!(manager.shared.asked.lock().requests.len(), 1);
}

#[tokio::test]
async fn join_waits_for_a_certificate_that_is_not_valid_yet_and_ends_with_one_that_has_expired() {
    let manager = ScriptedManager::start(true).await;
    manager.change(|script| script.between = Some(["20900101000000Z", "20910101000000Z"]));
    let node = Node::new();
    let error = node.join(&manager).await.unwrap_err();
    assert!(
        matches!(&error, Error::CertificateNotValidYet { .. }) && !error.is_final(),
        "{error:?}"
    );
    let error = resume_join(&node.store).await.unwrap_err();
    assert!(
        matches!(error, Error::CertificateNotValidYet { .. }),
        "{error:?}"
    );
    // As if the clock were set: the same node continues.
    manager.change(|script| script.between = None);
    assert_eq!(node.join(&manager).await.unwrap().node(), "node1");
    assert_eq!(
        manager.shared.asked.lock().requests.len(),
        1,
        "no other node was made"
    );

    let other = Node::new();
    manager.change(|script| script.between = Some(["20200101000000Z", "20200201000000Z"]));
    let error = other.join(&manager).await.unwrap_err();
    assert!(
        matches!(&error, Error::CertificateExpired { .. }) && error.is_final(),
        "{error:?}"
    );
    assert_eq!(other.files(), 0, "the join is given up");
}

#[tokio::test]
async fn certificates_that_are_not_this_nodes_are_refused() {
    let manager = ScriptedManager::start(true).await;
    manager.change(|script| script.role = "swarm-manager");
    let node = Node::new();
    let error = node.join(&manager).await.unwrap_err();
    assert!(
        matches!(&error, Error::ManagerRole { node } if node == "node1"),
        "{error:?}"
    );
    assert_eq!(node.files(), 0);
    manager.change(|script| {
        script.role = "swarm-worker";
        script.certified = Some("node 1".to_owned());
    });
    let error = node.join(&manager).await.unwrap_err();
    assert!(
        matches!(error, Error::InvalidCertificate { .. }),
        "{error:?}"
    );
    assert_eq!(node.files(), 0);
}

#[tokio::test]
async fn hostile_roots_and_ids_are_refused() {
    let manager = ScriptedManager::start(true).await;
    let node = Node::new();
    manager.change(|script| script.roots = Some(vec![b'x'; 1000]));
    let error = node.join(&manager).await.unwrap_err();
    assert!(matches!(error, Error::OtherRoot { .. }), "{error:?}");
    manager.change(|script| script.roots = Some(vec![b'x'; PEM_MAX * 2]));
    let error = node.join(&manager).await.unwrap_err();
    assert!(
        matches!(error, Error::Refused { .. }) && error.report().contains("too large"),
        "{}",
        error.report()
    );

    // What has the digest of the token and is no certificate.
    manager.change(|script| script.roots = Some(b"no certificate".to_vec()));
    let token = format!(
        "SWMTKN-1-{}-{}",
        RootDigest::of(b"no certificate"),
        super::manager::SECRET
    );
    let request = JoinRequest {
        managers: vec![manager.address.to_string()],
        token: token.parse().unwrap(),
        availability: Availability::Drain,
    };
    let error = join(&node.store, &request).await.unwrap_err();
    assert!(
        matches!(error, Error::InvalidCertificate { .. }),
        "{error:?}"
    );
    for hostile in ["", "../x", &"x".repeat(1 << 20)] {
        manager.change(|script| {
            script.roots = None;
            script.nodes.push(hostile.to_owned());
        });
        let error = node.join(&manager).await.unwrap_err();
        assert!(
            matches!(error, Error::InvalidAnswer { .. } | Error::Refused { .. }),
            "{error:?}"
        );
        assert!(error.report().len() < 500);
    }
    assert_eq!(node.files(), 0);
}
