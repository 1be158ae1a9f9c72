//! The containers and snapshots that recovery finds in containerd.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::str::FromStr;
use std::sync::Arc;

use containerd_client::services::v1 as api;
use futures::future::try_join_all;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::{Error, Result};

use crate::client::{Client, QUICK, call};
use crate::image::snapshots::{self, SnapshotInfo, stale_keys};
use crate::record::{INSTANCE, KIND, OWNER, viewed_keys};
use crate::recover::Recovery;

/// The container objects of this gateway, and the snapshots of all snapshotters in use.
pub(super) struct Inventory {
    pub(super) sandboxes: Vec<(SandboxId, Arc<api::Container>)>,
    pub(super) tasks: Vec<(TaskId, Arc<api::Container>)>,
    /// All containers of this gateway, by id.
    pub(super) containers: HashMap<String, Arc<api::Container>>,
    /// The ids of all containers with an owner label, including those of other gateways.
    pub(super) all: HashSet<String>,
    /// The ids of those that this version recognises neither as a sandbox nor as a task, and why.
    pub(super) unrecognized: Vec<(String, &'static str)>,
    pub(super) snapshots: Snapshots,
}

/// All snapshots, by snapshotter; `None` for a snapshotter that cannot be listed.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    by_name: HashMap<String, Option<BTreeMap<String, SnapshotInfo>>>,
}

impl Snapshots {
    /// Returns whether a snapshot exists. Also `true` if its snapshotter could not be listed: then nothing is
    /// known to be missing.
    pub(super) fn may_have(&self, snapshotter: &str, key: &str) -> bool {
        match self.by_name.get(snapshotter) {
            Some(Some(layers)) => layers.contains_key(key),
            Some(None) | None => true,
        }
    }

    /// Returns whether a snapshot exists for certain. `false` if its snapshotter could not be listed.
    pub(super) fn has(&self, snapshotter: &str, key: &str) -> bool {
        let layers = self.by_name.get(snapshotter).and_then(Option::as_ref);
        layers.is_some_and(|layers| layers.contains_key(key))
    }

    /// The top layers of the image that a container was made from and of those that it has as volumes: the parents of its
    /// snapshots, whatever its record says. Those of a snapshotter that could not be listed are not known.
    pub(super) fn top_layers<'s>(
        &'s self,
        container: &'s api::Container,
    ) -> impl Iterator<Item = &'s str> {
        let layers = self.by_name.get(&container.snapshotter);
        let layers = layers.and_then(Option::as_ref);
        let views = viewed_keys(&container.labels, &container.snapshotter);
        let keys = std::iter::once(container.snapshot_key.as_str()).chain(views);
        keys.filter_map(move |key| Some(layers?.get(key)?.parent.as_str()))
    }

    /// The keys of the views and the unfinished unpackings that predecessors left, by snapshotter.
    pub(super) fn stale(&self, client: &Client) -> BTreeMap<String, Vec<String>> {
        let keys = |layers| {
            stale_keys(client, layers)
                .into_iter()
                .map(str::to_owned)
                .collect()
        };
        self.listed()
            .map(|(snapshotter, layers)| (snapshotter.to_owned(), keys(layers)))
            .collect()
    }

    /// The snapshotters that could not be listed.
    pub(super) fn unlisted(&self) -> impl Iterator<Item = &str> {
        self.by_name
            .iter()
            .filter(|(_, layers)| layers.is_none())
            .map(|(snapshotter, _)| snapshotter.as_str())
    }

    /// Each snapshotter that could be listed, with all its snapshots by key.
    pub(super) fn listed(&self) -> impl Iterator<Item = (&str, &BTreeMap<String, SnapshotInfo>)> {
        self.by_name
            .iter()
            .filter_map(|(snapshotter, layers)| Some((snapshotter.as_str(), layers.as_ref()?)))
    }
}

impl Recovery {
    pub(super) async fn list_inventory(&self) -> Result<Inventory> {
        let request = api::ListContainersRequest {
            filters: vec![format!("labels.\"{OWNER}\"")],
        };
        let containers = call(
            "list containers",
            QUICK,
            self.client.containers().list(request),
        )
        .await?
        .containers;
        self.settle_name(&containers).await?;
        let all = containers
            .iter()
            .map(|container| container.id.clone())
            .collect();
        let (ours, others): (Vec<_>, Vec<_>) = containers.into_iter().partition(|container| {
            container
                .labels
                .get(INSTANCE)
                .is_some_and(|name| name == self.client.instance())
        });
        if !others.is_empty() {
            tracing::warn!(
                containers = others.len(),
                "this containerd holds containers of another switchyard, or of this one before its state directory was lost"
            );
        }
        let mut snapshotters: BTreeSet<String> = self
            .storage
            .images
            .policy()
            .snapshotters
            .all()
            .into_iter()
            .map(str::to_owned)
            .collect();
        snapshotters.extend(
            ours.iter()
                .map(|container| container.snapshotter.clone())
                .filter(|name| !name.is_empty()),
        );
        let mut sandboxes = Vec::new();
        let mut tasks = Vec::new();
        let mut unrecognized = Vec::new();
        let mut containers = HashMap::new();
        for container in ours.into_iter().map(Arc::new) {
            containers.insert(container.id.clone(), Arc::clone(&container));
            match container.labels.get(KIND).map(String::as_str) {
                Some("sandbox") => unrecognized.extend(push_parsed(&mut sandboxes, container)),
                Some("task") => unrecognized.extend(push_parsed(&mut tasks, container)),
                Some(_) | None => {
                    unrecognized.push((container.id.clone(), "its kind is not known"));
                }
            }
        }
        Ok(Inventory {
            sandboxes,
            tasks,
            containers,
            all,
            unrecognized,
            snapshots: self.list_snapshots(snapshotters).await?,
        })
    }

    /// Lists the snapshots of all these snapshotters at once. One that does not answer, or that containerd
    /// lacks, delays nobody: what it has is dealt with when it answers (`SnapshotterCleanup`).
    ///
    /// # Errors
    /// If containerd itself does not answer.
    async fn list_snapshots(&self, snapshotters: BTreeSet<String>) -> Result<Snapshots> {
        let away = self.storage.images.snapshotters();
        let listed = snapshotters.into_iter().map(|snapshotter| async move {
            let list = snapshots::list(&self.client, &snapshotter);
            let listed = away.ask(&self.client, &snapshotter, list).await?;
            Ok::<_, Error>((snapshotter, listed.ok()))
        });
        Ok(Snapshots {
            by_name: try_join_all(listed).await?.into_iter().collect(),
        })
    }
}

/// Adds a container to the list. Returns its id if that is not one that this gateway gives.
fn push_parsed<I: FromStr>(
    list: &mut Vec<(I, Arc<api::Container>)>,
    container: Arc<api::Container>,
) -> Option<(String, &'static str)> {
    let Ok(id) = container.id.parse() else {
        return Some((container.id.clone(), "its id is malformed"));
    };
    list.push((id, container));
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child_of(parent: &str) -> SnapshotInfo {
        SnapshotInfo {
            parent: parent.to_owned(),
            committed: false,
            unsynced: None,
        }
    }

    #[test]
    fn layers_below_a_container_are_those_of_its_image_and_of_its_views() {
        let listed = [("task", "app"), ("task-0", "data"), ("other", "other-app")];
        let listed = listed.map(|(key, parent)| (key.to_owned(), child_of(parent)));
        let snapshots = Snapshots {
            by_name: HashMap::from([
                ("overlayfs".to_owned(), Some(BTreeMap::from(listed))),
                ("away".to_owned(), None),
            ]),
        };
        let container = |snapshotter: &str| {
            let view = format!("containerd.io/gc.ref.snapshot.{snapshotter}/volume.0");
            let labels = [
                (view, "task-0".to_owned()),
                ("another".to_owned(), "other".to_owned()),
            ];
            api::Container {
                snapshotter: snapshotter.to_owned(),
                snapshot_key: "task".to_owned(),
                labels: labels.into(),
                ..Default::default()
            }
        };
        let layers = |container: &api::Container| -> BTreeSet<String> {
            let layers = snapshots.top_layers(container);
            layers.map(str::to_owned).collect()
        };
        let expected = ["app", "data"].map(str::to_owned);
        assert_eq!(layers(&container("overlayfs")), BTreeSet::from(expected));
        assert!(layers(&container("away")).is_empty());
        assert!(layers(&api::Container::default()).is_empty());
    }
}
