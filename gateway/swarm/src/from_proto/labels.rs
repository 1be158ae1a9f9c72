//! Labels of a task: those of the service, and those by which docker's tools recognise tasks.

use std::collections::BTreeMap;

use switchyard_core::{Error, Result};

use super::devices::DEVICE_LABEL;
use super::request::TaskRequest;

/// Prefix of the labels that every task has, as docker sets them.
const PREFIX: &str = "com.docker.swarm.";

/// The domain of keys that the gateway acts on.
const OUR_DOMAIN: &str = "switchyard.io";

/// The most labels of a service or a task.
const LABELS_MAX: usize = 1024;

/// The labels of a task. Those that docker sets take precedence over those of the task, and these over those of
/// the service.
pub(super) fn labels(asked: &TaskRequest<'_>) -> Result<BTreeMap<String, String>> {
    let own = asked
        .task
        .annotations
        .as_ref()
        .map(|annotations| &annotations.labels);
    let mut labels = BTreeMap::new();
    // The label with devices is a setting: nothing else has to see it.
    let of_container = asked
        .container
        .labels
        .iter()
        .filter(|(name, _)| *name != DEVICE_LABEL);
    for (field, (name, value)) in of_container.map(|label| ("container.labels", label)).chain(
        own.into_iter()
            .flatten()
            .map(|label| ("annotations.labels", label)),
    ) {
        check(field, name)?;
        labels.insert(name.clone(), value.clone());
    }
    if labels.len() > LABELS_MAX {
        let why = format!(
            "there are {} with those of the task, and there may be {LABELS_MAX}",
            labels.len()
        );
        return Err(Error::invalid("container.labels", why));
    }
    let identity = &asked.identity;
    for (name, value) in [
        ("cluster.id", identity.cluster_id.as_str()),
        ("node.id", &identity.node_id),
        ("service.id", &identity.service_id),
        ("service.name", &identity.service_name),
        ("task", ""),
        ("task.id", &identity.task_id),
        ("task.name", &identity.task_name),
    ] {
        labels.insert(format!("{PREFIX}{name}"), value.to_owned());
    }
    Ok(labels)
}

/// Refuses the name of a label that would change what the gateway does, or that is no name.
fn check(field: &str, name: &str) -> Result<()> {
    let domain = name.split('/').next().unwrap_or(name);
    let is_ours = domain == OUR_DOMAIN || domain.ends_with(".switchyard.io");
    if name.is_empty() || is_ours || name.chars().any(char::is_control) {
        return Err(Error::invalid(
            field,
            format!("{name:?} cannot be the name of a service's label"),
        ));
    }
    Ok(())
}
