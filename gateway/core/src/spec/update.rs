//! Changes to a task that is there already.

use std::collections::BTreeMap;

use super::{ComputeClaim, Resources, Throttle};

/// A change to a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskUpdate {
    /// Limits.
    pub resources: Resources,
    /// Annotations of the runtime spec; those not named stay.
    pub annotations: BTreeMap<String, String>,
    /// Limits on block devices; those not named stay.
    pub throttles: Vec<Throttle>,
    /// What of the node's processors and memory is kept for it from now on; `None`: as before.
    pub compute: Option<ComputeClaim>,
}

impl From<&Resources> for TaskUpdate {
    /// A change of limits alone.
    fn from(resources: &Resources) -> Self {
        Self { resources: resources.clone(), ..Self::default() }
    }
}
