//! Tests of which tasks and networks count as dangling.

use std::collections::BTreeMap;

use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::object::SandboxDetails;
use switchyard_core::spec::Meta;
use switchyard_core::state::SandboxState;
use switchyard_linux::process::ProcessId;

use super::references::AgentReferences;
use super::*;
use crate::identity::network_meta;

const GRACE: Duration = Duration::from_secs(300);
const ID: &str = "3a7c/web/0123abcd";
const NETWORK: &str = "network/3a7c";

/// Start time of the daemon.
const BEGAN: u64 = 1000;

fn sandbox(age: Duration) -> Sandbox {
    let record = Record {
        id: ID.into(),
        alloc_dir: "/opt/nomad/alloc/3a7c".into(),
        ..Record::default()
    };
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
    Agent::new("/opt/nomad/alloc/else")
}

/// An agent process that was started this much later than the daemon.
fn life(after: u64) -> Option<ProcessId> {
    Some(ProcessId {
        pid: 7,
        started: BEGAN + after,
    })
}

fn open(id: &str) -> Arc<Session> {
    Arc::new(Session {
        id: id.into(),
        driver: "switchyard".into(),
        config: Arc::default(),
        processors: crate::session::Processors::default(),
        version: String::new(),
    })
}

fn network(age: Duration) -> Sandbox {
    let meta = network_meta("3a7c", "", agent().as_ref(), SystemTime::now() - age);
    Sandbox {
        meta: Arc::new(meta),
        ..sandbox(age)
    }
}

#[track_caller]
fn check_network(seen: &AgentReferences, expected: bool, why: &str) {
    assert_eq!(
        is_dangling_network(seen, GRACE * 2, later()),
        expected,
        "{why}"
    );
}

/// The result for a network of this age without tasks, whose allocation exists.
fn is_dangling_network(seen: &AgentReferences, age: Duration, now: (Instant, SystemTime)) -> bool {
    let agent = agent().expect("it has a directory");
    seen.is_past_grace("1", &network(age), &agent, GRACE, now) && seen.is_unreferenced("1", NETWORK)
}

fn later() -> (Instant, SystemTime) {
    (Instant::now() + GRACE, SystemTime::now())
}

#[test]
fn unreferenced_task_is_dangling_after_its_agents_grace_time() {
    let seen = AgentReferences::new(Some(BEGAN));
    let old = sandbox(GRACE * 2);
    assert!(
        !seen.is_dangling("1", &old, GRACE, later()),
        "its agent is not here"
    );
    seen.note_agent("1", agent());
    assert!(
        !seen.is_dangling("1", &old, GRACE, (Instant::now(), SystemTime::now())),
        "it has just come"
    );
    assert!(seen.is_dangling("1", &old, GRACE, later()));
    assert!(
        !seen.is_dangling("2", &old, GRACE, later()),
        "another session has another agent"
    );
    assert!(
        !seen.is_dangling("1", &sandbox(GRACE / 2), GRACE, later()),
        "it is young"
    );
}

#[test]
fn task_referenced_by_any_session_is_known_until_destroyed() {
    let seen = AgentReferences::new(Some(BEGAN));
    let old = sandbox(GRACE * 2);
    seen.note_agent("1", agent());
    seen.note_task("2", ID);
    assert!(!seen.is_dangling("1", &old, GRACE, later()));
    seen.forget(ID);
    assert!(seen.is_dangling("1", &old, GRACE, later()));
}

#[test]
fn ended_session_references_nothing() {
    let seen = AgentReferences::new(Some(BEGAN));
    seen.note_agent("1", agent());
    seen.note_task("2", ID);
    seen.retain(&[open("1")], |_| true);
    assert!(seen.is_dangling("1", &sandbox(GRACE * 2), GRACE, later()));
}

#[test]
fn other_agents_networks_and_unreadable_records_are_not_dangling() {
    let seen = AgentReferences::new(Some(BEGAN));
    seen.note_agent("1", Agent::new("/srv/nomad/alloc/3a7c"));
    assert!(!seen.is_dangling("1", &sandbox(GRACE * 2), GRACE, later()));
    seen.note_agent("1", agent());
    let network = Sandbox {
        meta: Arc::new(network_meta("3a7c", "", None, SystemTime::UNIX_EPOCH)),
        ..sandbox(GRACE)
    };
    assert!(!seen.is_dangling("1", &network, GRACE, later()));
}

#[test]
fn network_not_requested_since_agent_start_is_dangling() {
    let seen = AgentReferences::new(Some(BEGAN));
    check_network(&seen, false, "its agent is not here");
    seen.note_process("1", life(1));
    seen.note_agent("1", agent());
    check_network(&seen, true, "nobody knows it");
    assert!(
        !is_dangling_network(&seen, GRACE / 2, later()),
        "it is young"
    );
    let now = (Instant::now(), SystemTime::now());
    assert!(
        !is_dangling_network(&seen, GRACE * 2, now),
        "the agent has just come"
    );
    seen.note_network("1", NETWORK);
    check_network(&seen, false, "it is asked for");
    seen.forget(NETWORK);
    check_network(&seen, true, "it is not needed any more");
}

#[test]
fn network_is_kept_while_its_request_may_be_unseen() {
    let seen = AgentReferences::new(Some(BEGAN));
    seen.note_agent("1", agent());
    check_network(&seen, false, "who calls is not known");
    seen.note_process("1", life(0));
    check_network(&seen, false, "the agent was there before the daemon");
    let seen = AgentReferences::new(None);
    seen.note_process("1", life(1));
    seen.note_agent("1", agent());
    check_network(&seen, false, "it is not known when the daemon began");
}

#[test]
fn restarted_plugin_inherits_network_references_of_its_agent() {
    let seen = AgentReferences::new(Some(BEGAN));
    seen.note_process("0", life(1));
    seen.note_network("0", NETWORK);
    seen.retain(&[], |_| true);
    seen.note_process("1", life(1));
    seen.note_agent("1", agent());
    seen.retain(&[open("1")], |_| true);
    check_network(&seen, false, "the plugin alone was killed");
    // The agent reattaches to its plugin.
    seen.note_process("1", life(2));
    let agent = agent().expect("it has a directory");
    assert!(
        seen.agents("1").is_empty(),
        "it has to show itself, and gets its time, again"
    );
    seen.note_agent("1", Some(agent));
    check_network(&seen, true, "its first life needed it");
    seen.note_network("1", NETWORK);
    check_network(&seen, false, "so does its second");
}

#[test]
fn network_requested_by_an_unknown_caller_is_kept() {
    let seen = AgentReferences::new(Some(BEGAN));
    seen.note_network("0", NETWORK);
    seen.note_process("1", life(1));
    seen.note_agent("1", agent());
    check_network(&seen, false, "somebody asked for it");
    seen.retain(&[open("1")], |_| false);
    check_network(&seen, true, "that one was another of the same name");
}
