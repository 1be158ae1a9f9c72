//! Tests of plans: what each field of a service becomes, and what is refused by which name.

use switchyard_core::{Error, ErrorKind};

use super::*;
use crate::sample_tasks::{container, node, task};

mod files;
mod mounts;
mod networks;
mod process;
mod resources;
mod whole;

#[track_caller]
fn planned(container: swarm::ContainerSpec) -> TaskPlan {
    plan(&task(1, container), &node(), &Dependencies::default()).unwrap()
}

#[track_caller]
fn planned_task(task: &swarm::Task) -> TaskPlan {
    plan(task, &node(), &Dependencies::default()).unwrap()
}

#[track_caller]
fn refusal(task: &swarm::Task) -> Error {
    plan(task, &node(), &Dependencies::default()).unwrap_err()
}

/// Checks that a container is refused as malformed, with this text.
#[track_caller]
fn invalid(container: swarm::ContainerSpec, text: &str) {
    let error = refusal(&task(1, container));
    assert_eq!(
        (error.kind(), error.report().as_str()),
        (ErrorKind::InvalidArgument, text)
    );
}

/// Checks that a container is refused as not supported, with a text that begins so.
#[track_caller]
fn unsupported(container: swarm::ContainerSpec, text: &str) {
    let error = refusal(&task(1, container));
    assert_eq!(error.kind(), ErrorKind::Unimplemented, "{}", error.report());
    assert!(error.report().starts_with(text), "{}", error.report());
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn templates_make_all_fields_longer_by_a_bounded_amount() {
    let given = |count| {
        let env = vec!["A={{.Service.Labels.a}}".to_owned(); count];
        let mut given = task(1, swarm::ContainerSpec { env, ..container() });
        given.service_annotations.as_mut().unwrap().labels =
            [("a".into(), "x".repeat(60_000))].into();
        given
    };
    assert_eq!(planned_task(&given(100)).task.env[0].value.len(), 60_000);
    let error = refusal(&given(10_000)).report();
    assert!(
        error.contains("the fields of the task more than 6291456 bytes longer"),
        "{error}"
    );
}
