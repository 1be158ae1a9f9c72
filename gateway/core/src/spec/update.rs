//! Changes to a task that is there already.

use std::collections::BTreeMap;

use super::Resources;

/// A change to a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskUpdate {
    /// Limits.
    pub resources: Resources,
    /// Annotations of the runtime spec; those not named stay.
    pub annotations: BTreeMap<String, String>,
}

impl From<&Resources> for TaskUpdate {
    /// A change of limits alone.
    fn from(resources: &Resources) -> Self {
        Self { resources: resources.clone(), annotations: BTreeMap::new() }
    }
}
