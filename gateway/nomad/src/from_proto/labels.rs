//! Labels of a task: those of the job, and those with facts from Nomad.

use std::collections::BTreeMap;

use switchyard_core::{Error, Result};

use super::request::TaskRequest;
use crate::plugin_config::{LABEL_NAMES, matches};

/// Prefix of the labels with facts from Nomad, as in the docker driver.
pub(crate) const PREFIX: &str = "com.hashicorp.nomad.";

/// Maximum number of labels that a job may give a task.
const LABELS_MAX: usize = 1024;

/// Limit for their total size in bytes.
const BYTES_MAX: usize = 256 << 10;

/// The labels of a task. Facts from Nomad override labels of the job.
pub(super) fn labels(request: &TaskRequest<'_>) -> Result<BTreeMap<String, String>> {
    let task = request.task;
    let mut labels = request.options.labels.clone();
    let bytes: usize = labels
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    if labels.len() > LABELS_MAX || bytes > BYTES_MAX {
        let count = labels.len();
        let why = format!(
            "there are {count} with {bytes} bytes, and there may be {LABELS_MAX} with {BYTES_MAX} bytes"
        );
        return Err(Error::invalid("labels", why));
    }
    for name in labels.keys() {
        if name.is_empty() || name.starts_with("switchyard.io/") {
            return Err(Error::invalid(
                "labels",
                format!("{name:?} cannot be the name of a job's label"),
            ));
        }
    }
    labels.insert(format!("{PREFIX}alloc_id"), task.alloc_id.clone());
    let values = [
        &task.job_name,
        &task.job_id,
        &task.parent_job_id,
        &task.task_group_name,
        &task.name,
        &task.namespace,
        &task.node_name,
        &task.node_id,
    ];
    for (name, value) in LABEL_NAMES.iter().zip(values) {
        if request
            .session
            .config
            .extra_labels
            .iter()
            .any(|pattern| matches(pattern, name))
        {
            labels.insert(format!("{PREFIX}{name}"), value.clone());
        }
    }
    Ok(labels)
}
