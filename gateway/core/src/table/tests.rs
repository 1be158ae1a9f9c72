//! Tests of look-ups by name, of failures of sandboxes, and of exits.

use std::collections::BTreeMap;

use super::*;
use crate::backend::{HeldClaims, ObjectFacts, UnreadableKind};
use crate::image::ImageId;
use crate::object::ResolvedUser;
use crate::spec::{ComputeClaim, Meta, Resources};
use crate::state::ExitCause;
use crate::stop_request::StopReason;

fn insert(table: &Table, owner: Owner, name: &str, number: u8) {
    let meta = Meta {
        owner,
        name: name.to_owned(),
        labels: BTreeMap::new(),
        created_at: SystemTime::UNIX_EPOCH,
        record: Vec::new(),
    };
    let sandbox = Sandbox {
        id: SandboxId::from_bytes([number; 32]),
        meta: Arc::new(meta),
        handler: String::new(),
        details: SandboxDetails::default(),
        state: SandboxState::Ready,
    };
    table.insert_sandbox(sandbox).unwrap();
}

#[test]
fn sandboxes_are_found_by_name_prefix_and_owner() {
    let table = Table::new(EventBus::default());
    let names = [
        "a/web/2",
        "a/web/1",
        "a/web",
        "a/web-2/1",
        "a/we",
        "b/web/1",
        "",
        "\u{10ffff}",
    ];
    for (number, name) in (1..).zip(names) {
        insert(&table, Owner::Nomad, name, number);
        insert(&table, Owner::Kubernetes, name, number + 100);
    }
    let found = |beginning: &str| -> Vec<String> {
        let found = table.sandboxes_with_prefix(Owner::Nomad, beginning);
        assert!(
            found
                .iter()
                .all(|sandbox| sandbox.meta.owner == Owner::Nomad)
        );
        found
            .iter()
            .map(|sandbox| sandbox.meta.name.clone())
            .collect()
    };
    assert_eq!(found("a/web/"), ["a/web/1", "a/web/2"]);
    assert_eq!(found("a/web"), ["a/web", "a/web-2/1", "a/web/1", "a/web/2"]);
    assert_eq!(found("\u{10ffff}"), ["\u{10ffff}"]);
    assert!(found("c").is_empty() && found("a/web/11").is_empty());
    assert_eq!(found("").len(), names.len());
    let last = table.sandboxes_with_prefix(Owner::Nomad, "a/web/1");
    table.remove_sandbox(last[0].id);
    assert_eq!(found("a/web/"), ["a/web/2"]);
}

#[test]
fn objects_that_cannot_be_read_are_searched_without_the_lock() {
    let table = Table::new(EventBus::default());
    let held = Unreadable {
        id: "ab".to_owned(),
        kind: UnreadableKind::Task,
        owner: None,
        name: String::new(),
        sandbox: None,
        reason: String::new(),
        claims: HeldClaims::default(),
        facts: ObjectFacts::default(),
    };
    table.lock().unreadable.push(Arc::new(held));
    let found = table.find_unreadable(|_| table.objects.try_lock().is_some());
    assert!(found.is_some());
}

#[test]
fn failure_is_recorded_only_of_a_sandbox_that_is_as_it_was_found() {
    let table = Table::new(EventBus::default());
    insert(&table, Owner::Kubernetes, "pod", 1);
    let id = SandboxId::from_bytes([1; 32]);
    let is_ready = |sandbox: &Sandbox| sandbox.state.is_ready();
    table
        .apply_sandbox(id, SandboxEvent::StopRequested)
        .unwrap();
    assert!(!table.sandbox_failed(id, is_ready, "its process has ended"));
    table
        .apply_sandbox(id, SandboxEvent::Stopped)
        .expect("the stop is not overwritten");
    insert(&table, Owner::Kubernetes, "next", 2);
    let next = SandboxId::from_bytes([2; 32]);
    assert!(table.sandbox_failed(next, is_ready, "its process has ended"));
    assert_eq!(table.sandbox(next).unwrap().state.as_str(), "unknown");
}

#[tokio::test]
async fn exits_that_recovery_has_found_are_published_and_others_are_not() {
    let table = Table::new(EventBus::default());
    let exit = Exit::lost(SystemTime::UNIX_EPOCH);
    let mut events = table.events().subscribe(None);
    let found = exited_task(1).id;
    table.load(Recovered {
        tasks: vec![exited_task(1), exited_task(2)],
        found_exits: vec![found],
        ..Recovered::default()
    });
    table.publish_found_exits(&[found, TaskId::from_bytes([3; 32])]);
    table.announce(Owner::Host, EventKind::TaskRemoved(found));
    let event = events.next().await.unwrap().unwrap();
    let end = TaskEnd {
        stop: None,
        is_found: true,
    };
    assert_eq!(event.kind, EventKind::TaskExited(found, exit, end));
    assert_eq!(event.owner, Owner::Nomad);
    let next = events.next().await.unwrap().unwrap();
    assert_eq!(next.kind, EventKind::TaskRemoved(found));
}

#[tokio::test]
async fn exit_before_a_request_to_stop_is_not_by_that() {
    for (age, is_asked) in [(0, true), (60, false)] {
        let table = Table::new(EventBus::default());
        let running = Task {
            state: TaskState::Running {
                pid: 7,
                started_at: SystemTime::UNIX_EPOCH,
            },
            ..exited_task(1)
        };
        let id = running.id;
        table.load(Recovered {
            tasks: vec![running],
            ..Recovered::default()
        });
        let mut events = table.events().subscribe(None);
        let request = StopRequest::current(StopReason::Requested);
        table.note_stop(id, request.clone());
        table.note_signal(id, Signal::TERM, request.clone());
        let exit = Exit {
            code: 143,
            finished_at: SystemTime::now() - Duration::from_secs(age),
            cause: ExitCause::Exited,
        };
        table
            .apply_task(id, TaskEvent::Exited(exit.clone()))
            .unwrap();
        let end = TaskEnd {
            stop: is_asked.then_some(request),
            is_found: false,
        };
        let event = events.next().await.unwrap().unwrap();
        assert_eq!(event.kind, EventKind::TaskExited(id, exit, end));
    }
}

/// A task whose exit was not observed.
fn exited_task(number: u8) -> Task {
    Task {
        id: TaskId::from_bytes([number; 32]),
        sandbox: SandboxId::from_bytes([9; 32]),
        meta: Arc::new(Meta {
            owner: Owner::Nomad,
            name: format!("task {number}"),
            labels: BTreeMap::new(),
            created_at: SystemTime::UNIX_EPOCH,
            record: Vec::new(),
        }),
        details: task_details(),
        state: TaskState::Exited {
            started_at: None,
            exit: Exit::lost(SystemTime::UNIX_EPOCH),
        },
    }
}

fn task_details() -> TaskDetails {
    TaskDetails {
        image_id: ImageId::new("sha256:00"),
        image_ref: String::new(),
        image_volumes: Vec::new(),
        volume_images: Vec::new(),
        user: ResolvedUser::default(),
        stop_signal: Signal::TERM,
        resources: Resources::default(),
        throttles: Vec::new(),
        log_path: None,
        project: None,
        leases: Vec::new(),
        compute: ComputeClaim::default(),
        warnings: Vec::new(),
    }
}
