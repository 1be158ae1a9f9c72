//! Container objects of earlier versions that hold what this version would not write: reserved labels that
//! clients asked for, and an empty spec without a process.
//!
//! containerd's restart monitor acts on both, on each of its rounds, as long as they exist.

use std::collections::HashMap;

use containerd_client::services::v1 as api;
use futures::future::BoxFuture;
use switchyard_core::Result;
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_runtime_spec::infra::without_process;

use crate::base::container_id::ContainerId;
use crate::base::reserved::is_reserved;
use crate::cleanup::Cleanup;
use crate::client::{Client, SPEC_TYPE, ignore_not_found, json_any};
use crate::record::{CADVISOR_KIND, MetaRecord, PREFIX};

/// The parts of a container object that have to be updated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutdatedObject {
    pub(crate) id: ContainerId,
    /// Keys of labels to remove.
    labels: Vec<String>,
    /// The spec is `{}` and has to be replaced.
    empty_spec: bool,
}

impl OutdatedObject {
    /// Compares a container object with the labels that its client asked for. `views` are the labels that
    /// keep snapshots of image views from garbage collection. Pure.
    pub(super) fn find(
        id: ContainerId,
        object: &api::Container,
        meta: &MetaRecord,
        views: &HashMap<String, String>,
    ) -> Option<Self> {
        let is_own =
            |key: &str| key.starts_with(PREFIX) || key == CADVISOR_KIND || views.contains_key(key);
        let is_clients = |key: &str, value: &String| meta.labels().get(key) == Some(value);
        let mut labels: Vec<_> = object
            .labels
            .iter()
            .filter(|(key, value)| is_reserved(key) && is_clients(key, value) && !is_own(key))
            .map(|(key, _)| key.clone())
            .collect();
        labels.sort_unstable();
        let empty_spec = object.spec.as_ref().is_some_and(|spec| spec.value == b"{}");
        (empty_spec || !labels.is_empty()).then_some(Self {
            id,
            labels,
            empty_spec,
        })
    }
}

/// Updates the outdated parts of a container object. Idempotent.
async fn update_outdated_object(client: &Client, outdated: &OutdatedObject) -> Result<()> {
    let OutdatedObject {
        id,
        labels,
        empty_spec,
    } = outdated;
    let mut paths: Vec<_> = labels.iter().map(|key| format!("labels.{key}")).collect();
    if *empty_spec {
        paths.push("spec".to_owned());
    }
    let container = api::Container {
        id: id.to_string(),
        // containerd removes a label that is set to the empty string.
        labels: labels
            .iter()
            .map(|key| (key.clone(), String::new()))
            .collect(),
        spec: empty_spec.then(|| json_any(SPEC_TYPE, &without_process())),
        ..Default::default()
    };
    ignore_not_found(client.update_container(container, paths).await)?;
    reach(CrashPoint::ObjectRenewed);
    tracing::info!(object = %id, ?labels, empty_spec, "a container object of an earlier version is brought up to date");
    Ok(())
}

/// Brings a container object of an earlier version up to date.
#[derive(Debug)]
pub(super) struct OutdatedObjectCleanup {
    client: Client,
    object: OutdatedObject,
}

impl OutdatedObjectCleanup {
    pub(super) fn new(client: &Client, object: OutdatedObject) -> Self {
        Self {
            client: client.clone(),
            object,
        }
    }
}

impl Cleanup for OutdatedObjectCleanup {
    fn description(&self) -> String {
        format!("outdated labels of container {}", &*self.object.id)
    }

    fn run(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { update_outdated_object(&self.client, &self.object).await })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    use containerd_client::services::v1::Container;
    use prost_types::Any;
    use switchyard_core::id::{Owner, TaskId};
    use switchyard_core::spec::Meta;

    use super::*;
    use crate::record::labels;

    const KEPT: &str = "containerd.io/gc.ref.snapshot.overlayfs/volume.0";

    fn meta(pairs: &[(&str, &str)]) -> Meta {
        Meta {
            owner: Owner::Kubernetes,
            name: "x".to_owned(),
            labels: pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            created_at: SystemTime::UNIX_EPOCH,
            record: Vec::new(),
        }
    }

    fn find(object: &Container, meta: &Meta) -> Option<(Vec<String>, bool)> {
        let views = HashMap::from([(KEPT.to_owned(), "view".to_owned())]);
        let found = OutdatedObject::find(
            TaskId::random().into(),
            object,
            &MetaRecord::from_core(meta),
            &views,
        )?;
        Some((found.labels, found.empty_spec))
    }

    fn spec(text: &str) -> Option<Any> {
        Some(Any {
            type_url: SPEC_TYPE.to_owned(),
            value: text.into(),
        })
    }

    #[test]
    fn reserved_labels_of_clients_go_and_no_other() {
        let asked = [
            ("app", "web"),
            ("containerd.io/restart.status", "running"),
            (CADVISOR_KIND, "container"),
            ("switchyard.io/kind", "task"),
            ("io.containerd.x", "asked"),
            (KEPT, "view"),
        ];
        let meta = meta(&asked);
        let mut object = Container {
            labels: labels(&meta, "task", "i"),
            spec: spec("{\"a\":1}"),
            ..Default::default()
        };
        object.labels.insert(KEPT.to_owned(), "view".to_owned());
        assert_eq!(
            find(&object, &meta),
            None,
            "nothing of what this version writes"
        );
        object.labels.insert(
            "containerd.io/restart.status".to_owned(),
            "running".to_owned(),
        );
        // Another client of containerd has changed this one since.
        object
            .labels
            .insert("io.containerd.x".to_owned(), "other".to_owned());
        assert_eq!(
            find(&object, &meta),
            Some((vec!["containerd.io/restart.status".to_owned()], false))
        );
    }

    #[test]
    fn an_empty_spec_is_written_anew() {
        let meta = Meta {
            labels: BTreeMap::new(),
            ..meta(&[])
        };
        let object = Container {
            spec: spec("{}"),
            ..Default::default()
        };
        assert_eq!(find(&object, &meta), Some((Vec::new(), true)));
    }
}
