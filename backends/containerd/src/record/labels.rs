//! The labels of container objects.

use std::collections::HashMap;

use switchyard_core::spec::Meta;

use super::{CADVISOR_KIND, INSTANCE, KIND, OWNER};
use crate::base::reserved::is_reserved;

/// containerd's limit on a label in bytes, key and value together.
const LABEL_MAX: usize = 4096;

/// Maximum number of labels of a client on an object. containerd's database takes a time that grows with
/// their square, in its one write transaction: 46 s for 60,000.
const LABELS_MAX: usize = 256;

/// Limit for their total size in bytes.
const LABEL_BYTES_MAX: usize = 64 << 10;

/// Prefix of the labels by which cAdvisor and operators identify pods and containers.
const KUBERNETES: &str = "io.kubernetes.";

/// The labels of a new object: ours, and those that the client asked for, which cAdvisor and operators use.
/// Labels of the client that are reserved, longer than containerd accepts, or too many are in the record only.
pub(crate) fn labels(meta: &Meta, kind: &str, instance: &str) -> HashMap<String, String> {
    let usable = |key: &str, value: &str| {
        key.len() + value.len() <= LABEL_MAX && !key.is_empty() && !is_reserved(key)
    };
    let mut asked: Vec<_> = meta
        .labels
        .iter()
        .filter(|(key, value)| usable(key, value))
        .collect();
    // A stable sort: otherwise they stay in the order of their keys.
    asked.sort_by_key(|(key, _)| !key.starts_with(KUBERNETES));
    let mut bytes = 0;
    let mut labels: HashMap<String, String> = asked
        .into_iter()
        .take(LABELS_MAX)
        .take_while(|(key, value)| {
            bytes += key.len() + value.len();
            bytes <= LABEL_BYTES_MAX
        })
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    labels.insert(OWNER.to_owned(), meta.owner.as_str().to_owned());
    labels.insert(INSTANCE.to_owned(), instance.to_owned());
    labels.insert(KIND.to_owned(), kind.to_owned());
    labels.insert(
        CADVISOR_KIND.to_owned(),
        if kind == "task" { "container" } else { kind }.to_owned(),
    );
    labels
}
