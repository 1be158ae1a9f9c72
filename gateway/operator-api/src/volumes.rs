//! Named volumes, as `/v1/volumes` shows them.

use serde::{Deserialize, Serialize};
use switchyard_core::backend::NamedVolume;

use crate::text::rfc3339;

/// A named volume, for display.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeView {
    /// Its owner.
    pub owner: String,
    /// Its name among the owner's volumes.
    pub name: String,
    /// Time of its creation, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// The ids of the tasks that have it.
    pub tasks: Vec<String>,
}

impl From<NamedVolume> for VolumeView {
    fn from(volume: NamedVolume) -> Self {
        let NamedVolume {
            owner,
            name,
            created_at,
            tasks,
        } = volume;
        Self {
            owner: owner.to_string(),
            name,
            created_at: created_at.map(rfc3339),
            tasks: tasks.iter().map(ToString::to_string).collect(),
        }
    }
}
