//! Which tasks count as known to nobody.

use std::collections::BTreeMap;

use switchyard_core::backend::SandboxDetails;
use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::spec::Meta;
use switchyard_core::state::SandboxState;

use super::*;
use crate::identity::network_meta;

const GRACE: Duration = Duration::from_secs(300);
const ID: &str = "3a7c/web/0123abcd";

fn sandbox(age: Duration) -> Sandbox {
    let record = Record { id: ID.into(), alloc_dir: "/opt/nomad/alloc/3a7c".into(), ..Record::default() };
    let meta = Meta {
        owner: Owner::Nomad,
        name: ID.into(),
        labels: BTreeMap::new(),
        created_at: SystemTime::now() - age,
        record: record.encode(),
    };
    Sandbox {
        id: SandboxId::from_bytes([1; 32]),
        meta: Arc::new(meta),
        handler: String::new(),
        details: SandboxDetails::default(),
        state: SandboxState::Ready,
    }
}

fn agent() -> Option<Agent> {
    Agent::new("/opt/nomad/alloc/else", "")
}

fn later() -> (Instant, SystemTime) {
    (Instant::now() + GRACE, SystemTime::now())
}

#[test]
fn a_task_that_no_session_has_named_is_dangling_once_its_agent_is_here_for_a_while() {
    let seen = Seen::default();
    let old = sandbox(GRACE * 2);
    assert!(!seen.is_dangling("1", &old, GRACE, later()), "its agent is not here");
    seen.agent("1", agent());
    assert!(!seen.is_dangling("1", &old, GRACE, (Instant::now(), SystemTime::now())), "it has just come");
    assert!(seen.is_dangling("1", &old, GRACE, later()));
    assert!(!seen.is_dangling("2", &old, GRACE, later()), "another session has another agent");
    assert!(!seen.is_dangling("1", &sandbox(GRACE / 2), GRACE, later()), "it is young");
}

#[test]
fn a_task_that_any_session_has_named_is_known_until_it_is_destroyed() {
    let seen = Seen::default();
    let old = sandbox(GRACE * 2);
    seen.agent("1", agent());
    seen.task("2", ID);
    assert!(!seen.is_dangling("1", &old, GRACE, later()));
    seen.forget(ID);
    assert!(seen.is_dangling("1", &old, GRACE, later()));
}

#[test]
fn a_session_that_has_ended_knows_nothing_any_more() {
    let seen = Seen::default();
    seen.agent("1", agent());
    seen.task("2", ID);
    let one = Session {
        id: "1".into(),
        driver: "switchyard".into(),
        config: Arc::default(),
        processors: crate::session::Processors::default(),
    };
    seen.keep(&[Arc::new(one)], |_| true);
    assert!(seen.is_dangling("1", &sandbox(GRACE * 2), GRACE, later()));
}

#[test]
fn an_agent_of_another_directory_is_no_reason_and_neither_is_a_network_or_what_says_nothing() {
    let seen = Seen::default();
    seen.agent("1", Agent::new("/srv/nomad/alloc/3a7c", ""));
    assert!(!seen.is_dangling("1", &sandbox(GRACE * 2), GRACE, later()));
    seen.agent("1", agent());
    let network =
        Sandbox { meta: Arc::new(network_meta("3a7c", "", SystemTime::UNIX_EPOCH)), ..sandbox(GRACE) };
    assert!(!seen.is_dangling("1", &network, GRACE, later()));
}
