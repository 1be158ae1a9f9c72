//! Changing the limits of a task, in force and on record.

use std::collections::BTreeMap;

use containerd_client::services::v1 as api;
use serde_json::{Map, Value};
use switchyard_core::id::TaskId;
use switchyard_core::spec::{Resources, TaskUpdate};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_runtime_spec::resources::linux_resources;

use super::TaskEntry;
use crate::backend::Inner;
use crate::client::{QUICK, RESOURCES_TYPE, SPEC_TYPE, call, gone_is_done, json_any};
use crate::leftovers::Leftover;
use crate::record::{self, ResourcesRecord};
use crate::steps::Step;
use crate::text::io_error;

impl Inner {
    /// First in force, then on record; if the record fails the old limits are put in force again. A mark says meanwhile that the two may
    /// differ: whoever finds it puts those on record in force.
    pub(crate) async fn update_task(&self, id: TaskId, update: &TaskUpdate) -> Result<()> {
        let TaskUpdate { resources, annotations } = update;
        let entry = self.task(id)?;
        let _turn = entry.take_limits_turn().await;
        let limits = self.oci_limits(resources)?;
        if !entry.runs() {
            return self.put_on_record(&entry, update, &limits).await;
        }
        mark(&entry).await?;
        let changed = async {
            self.faults.reach(Step::TaskLimitsMarked)?;
            self.enforce(id, &limits, annotations).await?;
            self.put_on_record(&entry, update, &limits).await
        };
        let Err(error) = changed.await else { return unmark(&entry).await };
        // Who did not answer now would not do so at once either, and may still come to change them.
        if matches!(error.kind(), ErrorKind::DeadlineExceeded | ErrorKind::Unavailable) {
            self.leftovers.keep(Leftover::Limits(entry));
        } else if let Err(undo) = self.put_back(&entry).await {
            tracing::warn!(task.id = %id, error = undo.report(), "the limits on record are put in force later");
            self.leftovers.keep(Leftover::Limits(entry));
        }
        Err(error)
    }

    async fn put_on_record(&self, entry: &TaskEntry, update: &TaskUpdate, limits: &Value) -> Result<()> {
        self.faults.reach(Step::TaskLimited)?;
        self.record_update(entry, update, limits).await?;
        entry.record().resources = ResourcesRecord::from_core(&update.resources);
        self.faults.reach(Step::TaskLimitsRecorded)
    }

    /// Puts the limits on record in force, if others may be. Idempotent.
    pub(crate) async fn restore_limits(&self, entry: &TaskEntry) -> Result<()> {
        let _turn = entry.take_limits_turn().await;
        if entry.dirs.limiting().exists() { self.put_back(entry).await } else { Ok(()) }
    }

    async fn put_back(&self, entry: &TaskEntry) -> Result<()> {
        if entry.runs() {
            let limits = self.oci_limits(&entry.record().resources.to_core())?;
            gone_is_done(self.enforce(entry.id, &limits, &BTreeMap::new()).await)?;
        }
        unmark(entry).await
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
        let (id, what) = (id.to_string(), format!("update task {id}"));
        self.of_shim(&id, &what, self.client.tasks().update(request)).await.map(drop)
    }

    async fn record_update(&self, entry: &TaskEntry, update: &TaskUpdate, limits: &Value) -> Result<()> {
        let mut spec = self.stored_spec(&entry.id.to_string()).await?;
        let stored = spec
            .pointer_mut("/linux/resources")
            .ok_or_else(|| Error::internal(format!("the stored spec of task {} has no limits", entry.id)))?;
        // Device rules are no limits, and those of block devices never change: they stay.
        let kept = ["devices", "blockIO"].map(|key| (key, stored.get(key).cloned()));
        *stored = limits.clone();
        if let Some(stored) = stored.as_object_mut() {
            stored.extend(kept.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
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

    /// The part of a task's spec that says how a process is made in it; it never changes.
    pub(crate) async fn stored_process(&self, entry: &TaskEntry) -> Result<Value> {
        let id = entry.id.to_string();
        let read = || async { Ok::<_, Error>(self.stored_spec(&id).await?["process"].to_string().into()) };
        let text = entry.process_spec.get_or_try_init(read).await?;
        serde_json::from_str(text).map_err(|fault| {
            Error::internal(format!("the process in the spec of {id} cannot be read")).with_source(fault)
        })
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

/// Notes that the limits in force may not be those on record.
async fn mark(entry: &TaskEntry) -> Result<()> {
    let path = entry.dirs.limiting();
    tokio::fs::write(&path, []).await.map_err(|fault| io_error("write", &path, fault))
}

async fn unmark(entry: &TaskEntry) -> Result<()> {
    let path = entry.dirs.limiting();
    match tokio::fs::remove_file(&path).await {
        Err(fault) if fault.kind() != std::io::ErrorKind::NotFound => Err(io_error("remove", &path, fault)),
        Ok(()) | Err(_) => {
            switchyard_steps::reach(Step::LimitsUnmarked);
            Ok(())
        }
    }
}
