//! Changing the limits of a task, in force and on record.

use std::collections::BTreeMap;

use containerd_client::services::v1 as api;
use serde_json::{Map, Value};
use switchyard_core::id::TaskId;
use switchyard_core::spec::{Resources, TaskUpdate};
use switchyard_core::{Error, Result};
use switchyard_runtime_spec::resources::linux_resources;

use super::TaskEntry;
use crate::backend::Inner;
use crate::client::{QUICK, RESOURCES_TYPE, SPEC_TYPE, call, json_any};
use crate::record::{self, ResourcesRecord};
use crate::steps::Step;

impl Inner {
    /// First in force, then on record; if the record fails the old limits are put in force again.
    pub(crate) async fn update_task(&self, id: TaskId, update: &TaskUpdate) -> Result<()> {
        let TaskUpdate { resources, annotations } = update;
        let entry = self.task(id)?;
        let old = entry.record().resources.to_core();
        let limits = self.oci_limits(resources)?;
        let runs = entry.started().is_some() && entry.exit().is_none();
        if runs {
            self.enforce(id, &limits, annotations).await?;
        }
        let recorded = match self.faults.reach(Step::TaskLimited) {
            Ok(()) => self.record_update(&entry, update, &limits).await,
            Err(error) => Err(error),
        };
        let Err(error) = recorded else {
            entry.record().resources = ResourcesRecord::from_core(resources);
            return self.faults.reach(Step::TaskLimitsRecorded);
        };
        if runs {
            let limits = self.oci_limits(&old)?;
            if let Err(undo) = self.enforce(id, &limits, &BTreeMap::new()).await {
                tracing::error!(task.id = %id, error = undo.report(), "the limits in force are not those on record");
            }
        }
        Err(error)
    }

    fn oci_limits(&self, resources: &Resources) -> Result<Value> {
        let mut warnings = Vec::new();
        let limits = linux_resources(resources, &self.host, &mut warnings)?;
        for warning in warnings {
            tracing::warn!(warning, "a limit is not set in full");
        }
        serde_json::to_value(limits)
            .map_err(|fault| Error::internal("limits cannot be written").with_source(fault))
    }

    /// Has the runtime put limits in force; the annotations are for runtimes that know what to make of them.
    async fn enforce(
        &self,
        id: TaskId,
        limits: &Value,
        annotations: &BTreeMap<String, String>,
    ) -> Result<()> {
        let request = api::UpdateTaskRequest {
            container_id: id.to_string(),
            resources: Some(json_any(RESOURCES_TYPE, limits)),
            annotations: annotations.clone().into_iter().collect(),
        };
        let limit = self.settings.containerd.shim_timeout();
        call(&format!("update task {id}"), limit, self.client.tasks().update(request)).await.map(drop)
    }

    async fn record_update(&self, entry: &TaskEntry, update: &TaskUpdate, limits: &Value) -> Result<()> {
        let mut spec = self.stored_spec(&entry.id.to_string()).await?;
        let stored = spec
            .pointer_mut("/linux/resources")
            .ok_or_else(|| Error::internal(format!("the stored spec of task {} has no limits", entry.id)))?;
        // Device rules are no limits: they stay.
        let devices = stored.get("devices").cloned();
        *stored = limits.clone();
        if let (Some(devices), Some(stored)) = (devices, stored.as_object_mut()) {
            stored.insert("devices".to_owned(), devices);
        }
        if !update.annotations.is_empty()
            && let Some(spec) = spec.as_object_mut()
        {
            let stored = spec.entry("annotations").or_insert_with(|| Value::Object(Map::new()));
            if let Some(stored) = stored.as_object_mut() {
                let fresh =
                    update.annotations.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str())));
                stored.extend(fresh);
            }
        }
        let mut fresh = entry.record().clone();
        fresh.resources = ResourcesRecord::from_core(&update.resources);
        let container = api::Container {
            id: entry.id.to_string(),
            spec: Some(json_any(SPEC_TYPE, &spec)),
            extensions: std::iter::once((record::EXTENSION.to_owned(), record::encode(&fresh))).collect(),
            ..Default::default()
        };
        self.update_container(container, vec!["spec".to_owned(), format!("extensions.{}", record::EXTENSION)])
            .await
    }

    /// The OCI spec that containerd holds for a container.
    pub(crate) async fn stored_spec(&self, id: &str) -> Result<Value> {
        let request = api::GetContainerRequest { id: id.to_owned() };
        let what = format!("look up container {id}");
        let container =
            call(&what, QUICK, self.client.containers().get(request)).await?.container.unwrap_or_default();
        let spec = container.spec.unwrap_or_default();
        serde_json::from_slice(&spec.value).map_err(|fault| {
            Error::internal(format!("the stored spec of {id} cannot be read")).with_source(fault)
        })
    }
}
