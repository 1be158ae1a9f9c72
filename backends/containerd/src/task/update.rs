//! Changes the limits of a task, both those in force and those on record.

use std::collections::BTreeMap;

use containerd_client::services::v1 as api;
use serde_json::{Map, Value};
use switchyard_core::id::TaskId;
use switchyard_core::object::TaskDetails;
use switchyard_core::spec::{ComputeClaim, OomScoreAdj, Resources, TaskUpdate};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_linux::files::if_present;
use switchyard_runtime_spec::resources::{granted, linux_resources};

use super::TaskEntry;
use super::cgroups::score::Rescore;
use super::cgroups::throttle::Throttles;
use super::cleanup::{TaskCleanup, TaskCleanupKind};
use crate::base::crash_points::CrashPoint;
use crate::base::fs::io_error;
use crate::base::reserved::{is_reserved, matches_any};
use crate::client::{RESOURCES_TYPE, SPEC_TYPE, ignore_not_found, json_any};
use crate::record::{self, ComputeRecord, ResourcesRecord, TaskRecord, ThrottleRecord};
use crate::task::Tasks;

/// The keys of the resources in an OCI spec that an update replaces.
const LIMITS: [&str; 5] = ["memory", "cpu", "pids", "hugepageLimits", "unified"];

/// A change of limits, reduced to what this node supports.
struct Change {
    /// The limits that are in force afterwards, in the form of the task model and in that of the runtime.
    resources: Resources,
    limits: Value,
    annotations: BTreeMap<String, String>,
    /// The limits on block devices, if they change.
    throttles: Option<Throttles>,
    /// The change of the OOM score of its processes.
    score: Option<Rescore>,
    /// The processors and memory of the node that are reserved for it, if that changes.
    compute: Option<ComputeClaim>,
    /// The stored spec before the change.
    spec: Value,
}

impl Tasks {
    /// Applies the new limits first and records them then; if recording them fails, the old limits are
    /// applied again. A marker file says meanwhile that the two may differ: whoever finds it applies the
    /// limits on record.
    pub(crate) async fn update_task(&self, id: TaskId, update: &TaskUpdate) -> Result<TaskDetails> {
        let entry = self.table.get(id)?;
        let _guard = entry.lock_limits().await;
        let change = self.plan_change(&entry, update).await?;
        // The next start applies the limits on record, so that nothing can differ.
        if !entry.runs() {
            self.persist_change(&entry, &change).await?;
            return Ok(entry.record().details());
        }
        // Before the first effect: from here on the limits in force may differ from the record.
        write_limits_marker(&entry, change.score).await?;
        let Err(error) = self.change(&entry, &change).await else {
            return remove_limits_marker(&entry)
                .await
                .map(|()| entry.record().details());
        };
        // A shim or containerd that did not answer now would not answer an immediate retry either, and may
        // still apply the change.
        if matches!(
            error.kind(),
            ErrorKind::DeadlineExceeded | ErrorKind::Unavailable
        ) {
            self.cleanup
                .enqueue(TaskCleanup::new(self, entry, TaskCleanupKind::Limits));
        } else if let Err(undo) = self.reapply_limits(&entry).await {
            tracing::warn!(task = %id, error = undo.report(), "cannot restore the limits of a task: the cleanup queue retries it");
            self.cleanup
                .enqueue(TaskCleanup::new(self, entry, TaskCleanupKind::Limits));
        }
        Err(error)
    }

    async fn plan_change(&self, entry: &TaskEntry, update: &TaskUpdate) -> Result<Change> {
        let mut asked = update.resources.clone();
        let (handler, before, throttled) = {
            let record = entry.record();
            (
                record.handler.clone(),
                record.resources.oom_score_adj(),
                !record.throttles.is_empty(),
            )
        };
        if entry.runs()
            && asked.oom_score_adj != before
            && !self.context.has_host_processes(&handler)
        {
            tracing::warn!(task = %entry.id, "the OOM score of a task is not changed: its processes are not visible on this node");
            asked.oom_score_adj = before;
        }
        let throttles = match throttled || !update.throttles.is_empty() {
            true => Some(Throttles::resolve(update.throttles.clone()).await?),
            false => None,
        };
        let (resources, mut limits) = self.limits_of(&asked)?;
        if let Some(throttles) = &throttles {
            throttles.apply_to(&mut limits);
        }
        let spec = self.client.stored_spec(&entry.id.to_string()).await?;
        let pid = entry.started().map(|started| started.pid);
        let score = Rescore::plan(&spec, pid, resources.oom_score_adj.map(OomScoreAdj::get));
        let annotations = self.annotations_for(&handler, &update.annotations)?;
        Ok(Change {
            resources,
            limits,
            annotations,
            throttles,
            score,
            compute: update.compute,
            spec,
        })
    }

    /// The annotations of a change that are passed to the shim of this handler: those that its configuration
    /// lists.
    fn annotations_for(
        &self,
        handler: &str,
        asked: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>> {
        let listed = &self.context.runtime(handler)?.update_annotations;
        let given = asked
            .iter()
            .filter(|(key, _)| matches_any(listed, key) && !is_reserved(key));
        Ok(given
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect())
    }

    async fn change(&self, entry: &TaskEntry, change: &Change) -> Result<()> {
        self.context.faults.reach(CrashPoint::TaskLimitsMarked)?;
        self.enforce(entry.id, &change.limits, &change.annotations)
            .await?;
        if let Some(throttles) = &change.throttles {
            self.task_cgroups.throttle(entry, throttles).await?;
            self.context.faults.reach(CrashPoint::TaskThrottled)?;
        }
        if let Some(score) = change.score {
            self.task_cgroups.rescore(entry, score).await?;
            self.context.faults.reach(CrashPoint::TaskScored)?;
        }
        self.persist_change(entry, change).await
    }

    async fn persist_change(&self, entry: &TaskEntry, change: &Change) -> Result<()> {
        self.context.faults.reach(CrashPoint::TaskLimited)?;
        let record = self.record_change(entry, change).await?;
        *entry.record() = record;
        self.context.faults.reach(CrashPoint::TaskLimitsRecorded)
    }

    /// Applies the limits on record if a marker says that others may be in force. Idempotent.
    pub(crate) async fn restore_limits(&self, entry: &TaskEntry) -> Result<()> {
        let _guard = entry.lock_limits().await;
        if entry.dirs.limits_pending().exists() {
            self.reapply_limits(entry).await
        } else {
            Ok(())
        }
    }

    async fn reapply_limits(&self, entry: &TaskEntry) -> Result<()> {
        if entry.runs() {
            let (on_record, throttles) = {
                let record = entry.record();
                (
                    record.resources.to_core(),
                    record
                        .throttles
                        .iter()
                        .map(ThrottleRecord::to_core)
                        .collect(),
                )
            };
            let (resources, limits) = self.limits_of(&on_record)?;
            ignore_not_found(self.enforce(entry.id, &limits, &BTreeMap::new()).await)?;
            let throttles = Throttles::resolve_existing(throttles).await;
            self.task_cgroups.throttle(entry, &throttles).await?;
            let recorded = on_record.oom_score_adj.map(OomScoreAdj::get);
            let score = read_limits_marker(entry)
                .await?
                .map(|score| score.toward_record(recorded));
            if let Some(score) = score {
                self.task_cgroups.rescore(entry, score).await?;
            }
            // The new limits may have been recorded although the answer to that call was lost.
            let spec = self.client.stored_spec(&entry.id.to_string()).await?;
            let annotations = BTreeMap::new();
            let throttles = Some(throttles);
            let back = Change {
                resources,
                limits,
                annotations,
                throttles,
                score,
                compute: None,
                spec,
            };
            let record = entry.record().clone();
            self.write_spec_and_record(entry, &changed_spec(entry, &back)?, &record)
                .await?;
            switchyard_crash_points::reach(CrashPoint::LimitsPutBack);
        }
        remove_limits_marker(entry).await
    }

    /// The requested limits that this node can set, in the form of the task model and in that of the runtime.
    fn limits_of(&self, asked: &Resources) -> Result<(Resources, Value)> {
        let mut warnings = Vec::new();
        let resources = granted(asked, &self.context.host, &mut warnings)?;
        let limits = linux_resources(&resources, &self.context.host, &mut warnings)?;
        for warning in warnings {
            tracing::warn!(warning, "a limit is not set in full");
        }
        let limits = serde_json::to_value(limits)
            .map_err(|fault| Error::internal("serialize the limits").with_source(fault))?;
        Ok((resources, limits))
    }

    /// Has the runtime apply limits; annotations are for runtimes that support them.
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
        let what = format!("update task {id}");
        let id = id.to_string();
        self.shims
            .call_with_shim_timeout(&id, &what, self.client.tasks().update(request))
            .await
            .map(drop)
    }

    /// Writes the changed spec and record into the container object; returns the record.
    async fn record_change(&self, entry: &TaskEntry, change: &Change) -> Result<TaskRecord> {
        let spec = changed_spec(entry, change)?;
        let mut fresh = entry.record().clone();
        fresh.resources = ResourcesRecord::from_core(&change.resources);
        if let Some(throttles) = &change.throttles {
            fresh.throttles = throttles
                .asked
                .iter()
                .map(ThrottleRecord::from_core)
                .collect();
        }
        if let Some(compute) = change.compute {
            fresh.compute = ComputeRecord::from_core(compute);
        }
        if let Some(score) = change.score.filter(|_| entry.runs()) {
            // The runtime continues to give new processes the first score.
            fresh.made_score = fresh
                .made_score
                .or(Some(score.from))
                .filter(|made| *made != score.to);
        }
        self.write_spec_and_record(entry, &spec, &fresh).await?;
        Ok(fresh)
    }

    /// Writes the spec and the record of a task into its container object.
    async fn write_spec_and_record(
        &self,
        entry: &TaskEntry,
        spec: &Value,
        record: &TaskRecord,
    ) -> Result<()> {
        let container = api::Container {
            id: entry.id.to_string(),
            spec: Some(json_any(SPEC_TYPE, spec)),
            extensions: record::task_extensions(record),
            ..Default::default()
        };
        let mut parts = vec!["spec".to_owned()];
        parts.extend(record::extension_paths());
        self.client.update_container(container, parts).await
    }

    /// The `process` part of a task's spec, from which execs are made. It never changes except for the OOM
    /// score, which a runtime takes from its own state.
    pub(crate) async fn stored_process(&self, entry: &TaskEntry) -> Result<Value> {
        let id = entry.id.to_string();
        let read = || async {
            Ok::<_, Error>(
                self.client.stored_spec(&id).await?["process"]
                    .to_string()
                    .into(),
            )
        };
        let text = entry.process_spec.get_or_try_init(read).await?;
        serde_json::from_str(text).map_err(|fault| {
            Error::internal(format!("the process in the spec of {id} cannot be read"))
                .with_source(fault)
        })
    }
}

/// The stored spec with a change applied.
fn changed_spec(entry: &TaskEntry, change: &Change) -> Result<Value> {
    let mut spec = change.spec.clone();
    let stored = spec.pointer_mut("/linux/resources").ok_or_else(|| {
        Error::internal(format!(
            "the stored spec of task {} has no limits",
            entry.id
        ))
    })?;
    replace_limits(stored, &change.limits);
    if let Some(throttles) = &change.throttles {
        throttles.apply_to(stored);
    }
    if let (Some(score), Some(process)) = (
        change.score,
        spec.get_mut("process").and_then(Value::as_object_mut),
    ) {
        process.insert("oomScoreAdj".to_owned(), score.to.into());
    }
    if !change.annotations.is_empty()
        && let Some(spec) = spec.as_object_mut()
    {
        let stored = spec
            .entry("annotations")
            .or_insert_with(|| Value::Object(Map::new()));
        if let Some(stored) = stored.as_object_mut() {
            let fresh = change
                .annotations
                .iter()
                .map(|(key, value)| (key.clone(), Value::from(value.as_str())));
            stored.extend(fresh);
        }
    }
    Ok(spec)
}

/// Replaces the limits in the resources of a stored spec by `limits`. All else stays: device rules, weights of
/// block devices, network priorities, and what this version does not know. Pure.
fn replace_limits(stored: &mut Value, limits: &Value) {
    let Some(stored) = stored.as_object_mut() else {
        return;
    };
    for key in LIMITS {
        match limits.get(key) {
            Some(limit) => drop(stored.insert(key.to_owned(), limit.clone())),
            // A limit that was removed must not stay from before.
            None => drop(stored.remove(key)),
        }
    }
}

/// Writes the marker which says that the limits and scores in force may differ from those on record.
async fn write_limits_marker(entry: &TaskEntry, score: Option<Rescore>) -> Result<()> {
    let path = entry.dirs.limits_pending();
    let text = score.map(Rescore::to_text).unwrap_or_default();
    tokio::fs::write(&path, text)
        .await
        .map_err(|fault| io_error("write", &path, fault))
}

/// The change of the score that the marker contains. A marker that was written in part was written before
/// anything was changed.
async fn read_limits_marker(entry: &TaskEntry) -> Result<Option<Rescore>> {
    let path = entry.dirs.limits_pending();
    let text = if_present(tokio::fs::read_to_string(&path).await);
    let text = text.map_err(|fault| io_error("read", &path, fault))?;
    Ok(text.and_then(|text| Rescore::parse(&text)))
}

async fn remove_limits_marker(entry: &TaskEntry) -> Result<()> {
    let path = entry.dirs.limits_pending();
    if_present(tokio::fs::remove_file(&path).await)
        .map_err(|fault| io_error("remove", &path, fault))?;
    switchyard_crash_points::reach(CrashPoint::LimitsUnmarked);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_update_replaces_limits_and_keeps_all_else() {
        let mut stored = json!({
            "devices": [{"allow": false}],
            "blockIO": {"weight": 500},
            "network": {"priorities": [{"name": "eth0", "priority": 7}]},
            "newer": true,
            "memory": {"limit": 1},
            "pids": {"limit": 9},
        });
        let mut expected = stored.clone();
        replace_limits(
            &mut stored,
            &json!({"memory": {"limit": 2}, "cpu": {"shares": 3}, "blockIO": {}}),
        );
        expected["memory"]["limit"] = 2.into();
        expected["cpu"] = json!({"shares": 3});
        expected.as_object_mut().unwrap().remove("pids");
        assert_eq!(stored, expected);
    }
}
