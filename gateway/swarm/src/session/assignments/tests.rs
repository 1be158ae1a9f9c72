//! Messages of the Assignments stream, in and out of order.

use std::collections::BTreeSet;

use proptest::prelude::*;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::docker::swarmkit::v1::assignment::Item;
use switchyard_proto::docker::swarmkit::v1::assignment_change::AssignmentAction;
use switchyard_proto::docker::swarmkit::v1::assignments_message::Type;

use super::{Assignments, Change, ITEMS_MAX, Unapplicable};

fn change(action: AssignmentAction, item: Item) -> swarm::AssignmentChange {
    swarm::AssignmentChange {
        assignment: Some(swarm::Assignment { item: Some(item) }),
        action: action.into(),
    }
}

fn task(id: &str) -> Item {
    Item::Task(Box::new(swarm::Task {
        id: id.to_owned(),
        ..Default::default()
    }))
}

fn secret(id: &str) -> Item {
    Item::Secret(swarm::Secret {
        id: id.to_owned(),
        ..Default::default()
    })
}

fn config(id: &str) -> Item {
    Item::Config(swarm::Config {
        id: id.to_owned(),
        ..Default::default()
    })
}

fn volume(id: &str) -> Item {
    Item::Volume(swarm::VolumeAssignment {
        id: id.to_owned(),
        ..Default::default()
    })
}

fn update(item: Item) -> swarm::AssignmentChange {
    change(AssignmentAction::Update, item)
}

fn remove(item: Item) -> swarm::AssignmentChange {
    change(AssignmentAction::Remove, item)
}

fn complete(results_in: &str, changes: Vec<swarm::AssignmentChange>) -> swarm::AssignmentsMessage {
    swarm::AssignmentsMessage {
        r#type: Type::Complete.into(),
        applies_to: String::new(),
        results_in: results_in.to_owned(),
        changes,
    }
}

fn incremental(
    from: &str,
    to: &str,
    changes: Vec<swarm::AssignmentChange>,
) -> swarm::AssignmentsMessage {
    swarm::AssignmentsMessage {
        r#type: Type::Incremental.into(),
        applies_to: from.to_owned(),
        results_in: to.to_owned(),
        changes,
    }
}

/// The kind and id of each change.
fn shown(list: &[Change]) -> Vec<String> {
    let shown = list.iter().map(|change| match change {
        Change::Secret(secret) => format!("secret {}", secret.id),
        Change::Config(config) => format!("config {}", config.id),
        Change::Volume(volume) => format!("volume {}", volume.id),
        Change::Task(task) => format!("task {}", task.id),
        Change::TaskGone(id) => format!("-task {id}"),
        Change::VolumeGone(id) => format!("-volume {id}"),
        Change::SecretGone(id) => format!("-secret {id}"),
        Change::ConfigGone(id) => format!("-config {id}"),
    });
    shown.collect()
}

#[test]
fn what_tasks_need_comes_before_them_and_goes_after_them() {
    let mut assigned = Assignments::default();
    let first = vec![
        update(task("t")),
        update(config("c")),
        update(volume("v")),
        update(secret("s")),
    ];
    let changes = assigned.apply(complete("1", first)).unwrap();
    assert!(changes.is_complete);
    assert_eq!(
        shown(&changes.list),
        ["secret s", "config c", "volume v", "task t"]
    );
    let last = vec![
        remove(secret("s")),
        remove(volume("v")),
        update(task("u")),
        remove(config("c")),
        remove(task("t")),
    ];
    let changes = assigned.apply(incremental("1", "2", last)).unwrap();
    assert!(!changes.is_complete);
    assert_eq!(
        shown(&changes.list),
        ["task u", "-task t", "-volume v", "-secret s", "-config c"]
    );
}

#[test]
fn complete_message_removes_what_it_lacks_but_no_volume() {
    let mut assigned = Assignments::default();
    let all = vec![
        update(task("a")),
        update(task("b")),
        update(secret("s")),
        update(config("c")),
        update(volume("v")),
    ];
    assigned.apply(complete("1", all)).unwrap();
    assigned.begin_stream();
    let changes = assigned
        .apply(complete("1", vec![update(task("b"))]))
        .unwrap();
    assert_eq!(
        shown(&changes.list),
        ["task b", "-task a", "-secret s", "-config c"]
    );
    let changes = assigned
        .apply(incremental("1", "2", vec![remove(volume("v"))]))
        .unwrap();
    assert_eq!(shown(&changes.list), ["-volume v"]);
}

#[test]
fn missed_message_changes_nothing_and_asks_for_a_new_stream() {
    let mut assigned = Assignments::default();
    let expected = None;
    let found = "1".to_owned();
    let early = assigned.apply(incremental("1", "2", vec![update(task("t"))]));
    assert_eq!(early, Err(Unapplicable::OutOfSequence { expected, found }));
    assigned
        .apply(complete("1", vec![update(task("t"))]))
        .unwrap();
    let skipped = assigned.apply(incremental("2", "3", vec![remove(task("t"))]));
    assert!(
        matches!(skipped, Err(Unapplicable::OutOfSequence { .. })),
        "{skipped:?}"
    );
    assert_eq!(assigned.tasks().count(), 1);
    assigned.begin_stream();
    let old = assigned.apply(incremental("1", "2", vec![]));
    assert!(
        matches!(old, Err(Unapplicable::OutOfSequence { .. })),
        "it is of the stream before: {old:?}"
    );
}

#[test]
fn strange_messages_are_refused_or_skipped() {
    let mut assigned = Assignments::default();
    let mut unknown = complete("1", vec![]);
    unknown.r#type = 7;
    assert_eq!(assigned.apply(unknown), Err(Unapplicable::UnknownType(7)));
    let nothing = swarm::AssignmentChange {
        assignment: None,
        action: 0,
    };
    let empty = swarm::AssignmentChange {
        assignment: Some(swarm::Assignment { item: None }),
        action: 0,
    };
    let changes = assigned
        .apply(complete(
            "1",
            vec![nothing, empty, update(task("")), remove(secret(""))],
        ))
        .unwrap();
    assert_eq!(shown(&changes.list), [""; 0]);
    let twice = vec![
        remove(task("t")),
        update(task("t")),
        update(secret("s")),
        remove(secret("s")),
    ];
    let changes = assigned.apply(incremental("1", "2", twice)).unwrap();
    assert_eq!(
        shown(&changes.list),
        ["task t", "-secret s"],
        "the last change of an item counts"
    );
}

#[test]
fn more_items_than_a_node_can_have_are_refused_as_a_whole() {
    let many = |from: usize| {
        (from..from + ITEMS_MAX)
            .map(|id| update(task(&id.to_string())))
            .collect::<Vec<_>>()
    };
    let mut assigned = Assignments::default();
    assigned.apply(complete("1", many(0))).unwrap();
    assert_eq!(
        assigned.apply(incremental("1", "2", vec![update(task("x"))])),
        Err(Unapplicable::TooMany)
    );
    assert_eq!(assigned.tasks().count(), ITEMS_MAX);
    let swap = vec![remove(task("0")), update(task("x"))];
    assert_eq!(
        assigned
            .apply(incremental("1", "2", swap))
            .unwrap()
            .list
            .len(),
        2
    );
    assigned.apply(complete("3", many(ITEMS_MAX))).unwrap();
    assert_eq!(assigned.tasks().count(), ITEMS_MAX);
}

proptest! {
    /// For any messages the tasks are those of a simple model, and the order holds.
    #[test]
    fn tasks_are_those_of_a_model(
        messages in proptest::collection::vec(
            (any::<bool>(), any::<bool>(), proptest::collection::vec((any::<bool>(), any::<bool>(), 0_u8..6), 0..8)),
            0..12,
        ),
    ) {
        let mut assigned = Assignments::default();
        let mut model: BTreeSet<String> = BTreeSet::new();
        let mut sequence = 0;
        for (is_complete, is_next, changes) in messages {
            let list: Vec<_> = changes
                .iter()
                .map(|(set, is_task, id)| {
                    let item = if *is_task { task(&id.to_string()) } else { secret(&id.to_string()) };
                    if *set { update(item) } else { remove(item) }
                })
                .collect();
            let from = if is_next { sequence } else { sequence + 1 };
            let is_applied = is_complete || (is_next && sequence > 0);
            let message = if is_complete {
                complete(&(sequence + 1).to_string(), list)
            } else {
                incremental(&from.to_string(), &(sequence + 1).to_string(), list)
            };
            let result = assigned.apply(message);
            prop_assert_eq!(result.is_ok(), is_applied);
            let Ok(result) = result else { continue };
            sequence += 1;
            if is_complete {
                model.clear();
            }
            for (set, is_task, id) in changes {
                if is_task && set {
                    model.insert(id.to_string());
                } else if is_task {
                    model.remove(&id.to_string());
                }
            }
            let kinds: Vec<u8> = result.list.iter().map(|change| match change {
                Change::Secret(_) | Change::Config(_) | Change::Volume(_) => 0,
                Change::Task(_) => 1,
                Change::TaskGone(_) => 2,
                Change::VolumeGone(_) | Change::SecretGone(_) | Change::ConfigGone(_) => 3,
            }).collect();
            prop_assert!(kinds.is_sorted());
            let found: BTreeSet<String> = assigned.tasks().map(|task| task.id.clone()).collect();
            prop_assert_eq!(&found, &model);
        }
    }
}
