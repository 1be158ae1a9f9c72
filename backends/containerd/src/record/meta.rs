//! The part that the records of sandboxes and tasks have in common.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use switchyard_core::id::Owner;
use switchyard_core::spec::Meta;
use switchyard_core::{Error, Result};

use super::{from_ns, newer, to_ns};

/// Owner, name, labels, and the frontend's own data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MetaRecord {
    /// The word for its owner.
    pub(super) owner: String,
    pub(super) name: String,
    labels: BTreeMap<String, String>,
    created_at_ns: u64,
    /// Opaque bytes of the frontend, in hexadecimal.
    record: String,
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

// === impl MetaRecord ===

impl MetaRecord {
    pub(crate) fn from_core(meta: &Meta) -> Self {
        let Meta {
            owner,
            name,
            labels,
            created_at,
            record,
        } = meta;
        Self {
            owner: owner.as_str().to_owned(),
            name: name.clone(),
            labels: labels.clone(),
            created_at_ns: to_ns(*created_at),
            record: hex::encode(record),
            unknown: Map::new(),
        }
    }

    pub(crate) fn to_core(&self) -> Result<Arc<Meta>> {
        let Self {
            owner: _,
            name,
            labels,
            created_at_ns,
            record,
            unknown: _,
        } = self;
        let owner = self.owner()?;
        let request = hex::decode(record).map_err(|fault| {
            Error::internal(format!("record of {name:?}: the bytes of its frontend"))
                .with_source(fault)
        })?;
        let meta = Meta {
            owner,
            name: name.clone(),
            labels: labels.clone(),
            created_at: from_ns(*created_at_ns),
            record: newer::request_read(request),
        };
        Ok(Arc::new(meta))
    }

    pub(crate) fn owner(&self) -> Result<Owner> {
        Owner::parse(&self.owner).ok_or_else(|| {
            Error::internal(format!(
                "record of {:?}: unknown owner {:?}",
                self.name, self.owner
            ))
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The labels that the client asked for.
    pub(crate) const fn labels(&self) -> &BTreeMap<String, String> {
        &self.labels
    }

    /// Returns the time at which the object was created.
    pub(crate) fn created_at(&self) -> SystemTime {
        from_ns(self.created_at_ns)
    }
}
