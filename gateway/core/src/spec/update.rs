//! Changes to an existing task.

use std::collections::BTreeMap;

use super::{ComputeClaim, Resources, Throttle};

/// A change to a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskUpdate {
    /// Limits.
    pub resources: Resources,
    /// Annotations of the runtime spec; others stay.
    pub annotations: BTreeMap<String, String>,
    /// Limits on block devices; others stay.
    pub throttles: Vec<Throttle>,
    /// The new reservation of processors and memory; `None` keeps the old one.
    pub compute: Option<ComputeClaim>,
}

impl From<&Resources> for TaskUpdate {
    /// A change of limits alone.
    fn from(resources: &Resources) -> Self {
        Self {
            resources: resources.clone(),
            ..Self::default()
        }
    }
}
