//! Properties that hold for any bytes of an operator, a manager or a file. Called only by fuzz targets and tests.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use prost::Message;
use switchyard_proto::docker::swarmkit::v1 as swarm;

use crate::certificates::{NodeChain, RootBundle};
use crate::error::Error;
use crate::from_image;
use crate::health::{self, ResolvedCheck};
use crate::managers::{Managers, Peer};
use crate::plan::HealthCheck;
use crate::session::assignments::{Assignments, Change, ITEMS_MAX};
use crate::store;
use crate::token::JoinToken;

/// Reads the bytes as a join token: one that is accepted is sent as it is, and no secret is in an error or in what is
/// printed.
///
/// # Panics
/// If a property does not hold.
pub fn token(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match text.parse::<JoinToken>() {
        Ok(token) => {
            assert_eq!(token.as_sent(), text.trim());
            let secret = text.trim().rsplit('-').next().expect("a token has parts");
            let shown = format!("{token} {token:?}");
            assert!(secret.len() == 25 && !shown.contains(secret), "{shown}");
            assert!(text.contains(&token.digest().to_string()));
        }
        Err(error) => {
            assert!(
                matches!(error, Error::InvalidToken { .. } | Error::FipsCluster)
                    && error.report().len() < 300
            );
        }
    }
}

/// Reads the bytes as roots and as a node's chain, which are kept unchanged, and verifies one by the other.
///
/// # Panics
/// If a property does not hold.
pub fn certificates(data: &[u8]) {
    let roots = RootBundle::from_pem(data);
    let chain = NodeChain::from_pem(data);
    for error in [roots.as_ref().err(), chain.as_ref().err()]
        .into_iter()
        .flatten()
    {
        assert!(
            matches!(error, Error::InvalidCertificate { .. }) && error.report().len() < 1000,
            "{error:?}"
        );
    }
    if let Ok(roots) = &roots {
        assert!(roots.pem() == data && !roots.store().is_empty());
    }
    if let Ok(chain) = chain {
        let subject = chain.subject();
        for id in [&subject.node, &subject.cluster] {
            assert!(
                (1..=64).contains(&id.len()) && !id.contains('/') && !id.contains(char::is_control)
            );
        }
        if let Ok(roots) = roots {
            let _ = chain.verify(
                &roots,
                SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
            );
        }
    }
}

/// Reads the bytes as files of a membership: what is accepted is bounded.
///
/// # Panics
/// If a property does not hold.
pub fn files(data: &[u8]) {
    match store::pending(data) {
        Ok(join) => assert!(join.key.public_key().is_ok()),
        Err(reason) => assert!(!reason.contains("PRIVATE"), "{reason}"),
    }
    if let Ok(managers) = store::managers(data) {
        assert!(managers.peers().count() <= 64);
    }
    if let Err(reason) = store::device_check::parse(data, "c1") {
        assert!(reason.len() < 300, "{reason}");
    }
}

/// Decodes the bytes as messages, one after the other, each behind its length: what is assigned is bounded, and what
/// tasks need comes before them. The list of managers is bounded, and so is what is asked for of logs.
///
/// # Panics
/// If a property does not hold.
pub fn messages(data: &[u8]) {
    let mut assigned = Assignments::default();
    let mut rest = data;
    while let Some((length, more)) = rest.split_first() {
        let (bytes, after) = more.split_at(more.len().min(usize::from(*length)));
        rest = after;
        crate::log_broker::request::check(bytes);
        if let Ok(message) = swarm::SessionMessage::decode(bytes) {
            let peers = message
                .managers
                .into_iter()
                .filter_map(|manager| manager.peer);
            let managers = Managers::of(peers.map(|peer| Peer {
                node: peer.node_id,
                address: peer.addr,
            }));
            assert!(
                managers
                    .peers()
                    .all(|peer| !peer.address.is_empty() && peer.address.len() <= 260)
            );
        }
        let Ok(message) = swarm::AssignmentsMessage::decode(bytes) else {
            continue;
        };
        let known: BTreeSet<String> = assigned.tasks().map(|task| task.id.clone()).collect();
        let Ok(changes) = assigned.apply(message) else {
            assert!(
                assigned.tasks().map(|task| &task.id).eq(&known),
                "an error changes nothing"
            );
            assigned.begin_stream();
            continue;
        };
        let places = changes.list.iter().map(|change| match change {
            Change::Secret(_) | Change::Config(_) | Change::Volume(_) => 0,
            Change::Task(_) => 1,
            Change::TaskGone(_) => 2,
            Change::VolumeGone(_) | Change::SecretGone(_) | Change::ConfigGone(_) => 3,
        });
        assert!(places.is_sorted() && assigned.tasks().count() <= ITEMS_MAX);
    }
}

/// Expands bytes as a template of a config.
///
/// # Panics
/// The result is not bounded, or differs from one time to the next.
pub fn template(data: &[u8]) {
    crate::template::any_bytes::check_any(data);
}

/// Reads bytes as the configuration of an image: a health check in it has a command of a bounded length, and pauses.
///
/// # Panics
/// If a property does not hold.
pub fn image_health(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(image) = from_image::health(text) else {
        return;
    };
    let Ok(Some(check)) = health::resolve(&HealthCheck::default(), &image) else {
        return;
    };
    let ResolvedCheck {
        command,
        timeout,
        schedule,
    } = check;
    assert!(!command.is_empty() && command.iter().map(String::len).sum::<usize>() <= 128 << 10);
    assert!(command.iter().all(|word| !word.contains('\0')));
    let shortest = timeout.min(schedule.interval).min(schedule.start_interval);
    assert!(shortest >= Duration::from_millis(1) && schedule.retries > 0);
}

/// Decodes bytes as a task of a service.
///
/// # Panics
/// A task gets more access to the node than docker gives to services.
pub fn task(data: &[u8]) {
    crate::from_proto::any_bytes::check(data);
}

/// Plans the task that the bytes encode, on a node that has the secret `s` and the config `c`.
///
/// # Errors
/// The bytes encode no task, or the task is refused.
pub fn task_spec(data: &[u8]) -> switchyard_core::Result<switchyard_core::spec::TaskSpec> {
    crate::from_proto::any_bytes::task_spec(data)
}
