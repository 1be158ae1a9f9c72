//! Lost layers: those that were not synced before a power cut. They are removed with all snapshots on top of
//! them, when the daemon starts and, if that failed, when an image needs them; until then nothing uses them.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use futures::stream::{self, StreamExt, TryStreamExt};
use switchyard_core::{Error, Result};
use switchyard_crash_points::{CrashPoint, reach};

use super::layer_sync::LayerSync;
use super::snapshots::{self, SnapshotInfo, UNSYNCED, is_stale};

/// Maximum number of snapshots of an image that are looked up concurrently.
const LOOK_UPS: usize = 8;

/// Snapshots whose files a power cut may have lost.
#[derive(Debug, Default, PartialEq, Eq)]
struct LostLayers {
    /// Layers to remove, with all snapshots on top of them; children come before their parents.
    removable: Vec<String>,
    /// Layers to keep, because a snapshot on top of them may be in use.
    in_use: Vec<String>,
}

/// The snapshots of an image that containerd has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChainState {
    /// All of them.
    Whole,
    /// Some are missing.
    Incomplete,
    /// This one may lack files.
    Lost(String),
}

// === impl LayerSync ===

impl LayerSync {
    /// Looks up which snapshots of an image, from the lowest to the highest, a snapshotter has.
    pub(crate) async fn chain_state(
        &self,
        snapshotter: &str,
        chain: &[String],
    ) -> Result<ChainState> {
        let looked_up = stream::iter(chain.iter().cloned().map(|name| async move {
            let found = snapshots::stat(&self.client, snapshotter, &name).await?;
            Ok::<_, Error>(match found {
                None => ChainState::Incomplete,
                Some(info) if is_lost(info.labels.get(UNSYNCED), &self.boot) => {
                    ChainState::Lost(name)
                }
                Some(_) => ChainState::Whole,
            })
        }));
        let states: Vec<ChainState> = looked_up.buffered(LOOK_UPS).try_collect().await?;
        let worst =
            |is_it: fn(&ChainState) -> bool| states.iter().find(|state| is_it(state)).cloned();
        let lost = worst(|state| matches!(state, ChainState::Lost(_)));
        let missing = || worst(|state| *state == ChainState::Incomplete);
        // Lost layers take precedence: they have to be removed before missing ones are unpacked on them.
        Ok(lost.or_else(missing).unwrap_or(ChainState::Whole))
    }

    /// Removes what a power cut may have emptied of the snapshots of an image, before the image is unpacked.
    ///
    /// # Errors
    /// `FailedPrecondition` if that is not possible.
    pub(crate) async fn clear_chain(&self, snapshotter: &str, chain: &[String]) -> Result<()> {
        let ChainState::Lost(_) = self.chain_state(snapshotter, chain).await? else {
            return Ok(());
        };
        let kept = {
            let ended = self.ended.lock().await;
            let layers = snapshots::list(&self.client, snapshotter).await?;
            self.remove_lost(snapshotter, &layers, &ended, &|| ()).await
        };
        let ChainState::Lost(name) = self.chain_state(snapshotter, chain).await? else {
            return Ok(());
        };
        let why = kept
            .get(&name)
            .cloned()
            .unwrap_or_else(|| "a layer below it is kept".to_owned());
        Err(Error::failed_precondition(format!(
            "snapshot {name} of the image may lack files since a power cut, and cannot be removed from {snapshotter}: {why}"
        )))
    }

    /// Sets the ids of our tasks that exited with an earlier boot: their snapshots are removed with the lost
    /// layers that they are on. To be called before any layer is removed.
    pub(crate) async fn set_ended(&self, ended: &HashSet<String>) {
        self.ended.lock().await.clone_from(ended);
    }

    /// Removes the lost layers of a snapshotter, and syncs those that a predecessor has unpacked in this boot. A
    /// layer is kept if an active snapshot is on top of it that is not of a task which has ended
    /// ([`LayerSync::set_ended`]): the snapshot may be in use by another client of this containerd, which may
    /// run before this daemon does. What is kept is logged. `removed` is called after each removal.
    ///
    /// `list` makes the list of all snapshots, while nobody else removes layers: a pull gives a layer that it
    /// unpacks again the same name, which a list from before would have removed. Returns the list.
    ///
    /// # Errors
    /// That of `list`.
    pub(crate) async fn recover_layers<L: Borrow<BTreeMap<String, SnapshotInfo>>>(
        &self,
        snapshotter: &str,
        list: impl Future<Output = Result<L>>,
        removed: &(dyn Fn() + Sync),
    ) -> Result<L> {
        let ended = self.ended.lock().await;
        let listed = list.await?;
        let layers = listed.borrow();
        self.spawn_sync(snapshotter, find_unsynced(layers, &self.boot), None);
        for (layer, why) in self.remove_lost(snapshotter, layers, &ended, removed).await {
            tracing::warn!(
                snapshotter,
                layer,
                reason = why,
                "a layer may lack files since a power cut and cannot be removed: no new task uses it"
            );
        }
        Ok(listed)
    }

    /// Removes the lost layers among these snapshots. Returns those that are kept, with the reason. One call at
    /// a time, with the list that was made in it: a layer that was unpacked again has the same name.
    async fn remove_lost(
        &self,
        snapshotter: &str,
        layers: &BTreeMap<String, SnapshotInfo>,
        ended: &HashSet<String>,
        removed: &(dyn Fn() + Sync),
    ) -> BTreeMap<String, String> {
        // Views and unpackings of predecessors are not in use: these daemons have ended.
        let ended = |key: &str| ended.contains(key) || is_stale(&self.client, key);
        let LostLayers { removable, in_use } = find_lost_layers(layers, &self.boot, ended);
        let in_use = in_use
            .into_iter()
            .map(|layer| (layer, "a snapshot on it may be in use".to_owned()));
        let mut kept: BTreeMap<String, String> = in_use.collect();
        for key in removable {
            tracing::info!(
                snapshotter,
                key,
                "removing a snapshot whose files may not have been synced before a power cut"
            );
            match snapshots::remove(&self.client, snapshotter, &key).await {
                Ok(()) => removed(),
                Err(error) => drop(kept.insert(key, error.report())),
            }
            reach(CrashPoint::RecoveryLayerGone);
        }
        kept
    }
}

/// Returns whether a power cut may have emptied a snapshot with this value of the label [`UNSYNCED`].
fn is_lost(unsynced: Option<&String>, boot: &str) -> bool {
    unsynced.is_some_and(|made| !made.is_empty() && made != boot)
}

/// Finds the lost layers of a snapshotter. `layers` are all its snapshots by name, `boot` is the id of the
/// current boot, and `ended` returns whether an uncommitted snapshot is certainly not in use.
fn find_lost_layers(
    layers: &BTreeMap<String, SnapshotInfo>,
    boot: &str,
    ended: impl Fn(&str) -> bool,
) -> LostLayers {
    let mut children: HashMap<&str, Vec<&str>> = HashMap::new();
    for (name, layer) in layers {
        children
            .entry(layer.parent.as_str())
            .or_default()
            .push(name);
    }
    let suspect = |layer: &SnapshotInfo| is_lost(layer.unsynced.as_ref(), boot);
    let mut removable = BTreeSet::new();
    let mut in_use = Vec::new();
    for (name, _) in layers.iter().filter(|(_, layer)| suspect(layer)) {
        let mut tree = BTreeSet::new();
        let mut next = vec![name.as_str()];
        while let Some(name) = next.pop() {
            if tree.insert(name) {
                next.extend(children.get(name).into_iter().flatten());
            }
        }
        // A snapshotter refuses to remove a layer that others are on, so the whole tree is removed or none of
        // it.
        if tree
            .iter()
            .all(|name| layers[*name].committed || ended(name))
        {
            removable.extend(tree);
        } else {
            in_use.push(name.clone());
        }
    }
    let depth = |name: &str| {
        // `take` ends the walk if a damaged database has a circle of parents.
        std::iter::successors(layers.get(name), |layer| layers.get(&layer.parent))
            .take(layers.len())
            .count()
    };
    let mut removable: Vec<String> = removable.into_iter().map(str::to_owned).collect();
    // Children first: a snapshot with children cannot be removed.
    removable.sort_by_key(|name| std::cmp::Reverse(depth(name)));
    LostLayers { removable, in_use }
}

/// The snapshots that a predecessor created in this boot and that may not be synced.
fn find_unsynced(layers: &BTreeMap<String, SnapshotInfo>, boot: &str) -> Vec<String> {
    let ours = layers
        .iter()
        .filter(|(_, layer)| layer.unsynced.as_deref() == Some(boot));
    ours.map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::super::snapshots::{extract_prefix, new_key, remove_all, stale_keys, view_prefix};
    use super::super::test_store::{BOOT, store_over};
    use super::*;
    use crate::client::model::ModelContainerd;

    fn unsynced_in(boot: &str) -> HashMap<String, String> {
        HashMap::from([(UNSYNCED.to_owned(), boot.to_owned())])
    }

    #[tokio::test(start_paused = true)]
    async fn list_is_made_while_nobody_else_removes_layers() {
        let model = ModelContainerd::default();
        model
            .store()
            .add_snapshot("overlayfs", "layer", "", unsynced_in("before"));
        let store = std::sync::Arc::new(store_over(&model));
        // A pull removes the lost layer, and unpacks it again under the same name.
        let held = model.hold_answer("Snapshots/Remove");
        let pull = std::sync::Arc::clone(&store);
        let pull = tokio::spawn(async move {
            let chain = ["layer".to_owned()];
            pull.layer_sync.clear_chain("overlayfs", &chain).await
        });
        held.arrived(1).await;
        let list = snapshots::list(&store.client, "overlayfs");
        let unpacked = async {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            assert_eq!(model.calls("Snapshots/List").len(), 1, "that of the pull");
            model
                .store()
                .add_snapshot("overlayfs", "layer", "", unsynced_in(BOOT));
            drop(held);
        };
        let cleanup = store.layer_sync.recover_layers("overlayfs", list, &|| ());
        let (listed, ()) = tokio::join!(cleanup, unpacked);
        assert_eq!(listed.unwrap()["layer"].unsynced.as_deref(), Some(BOOT));
        pull.await.unwrap().unwrap();
        assert_eq!(model.calls("Snapshots/Remove").len(), 1);
        assert!(
            model
                .store()
                .snapshots
                .contains_key(&("overlayfs".to_owned(), "layer".to_owned()))
        );
    }

    #[tokio::test]
    async fn lost_layer_under_what_ended_or_was_left_is_removed_and_under_what_runs_it_is_kept() {
        let model = ModelContainerd::default();
        let store = store_over(&model);
        let ended = "ended".to_owned();
        let own = new_key(&store.client, &view_prefix(&store.client));
        let left = new_key(&model.client(), &view_prefix(&store.client));
        for (key, is_removed) in [
            (ended.clone(), true),
            (left, true),
            (own, false),
            ("other".into(), false),
        ] {
            model.store().snapshots.clear();
            model
                .store()
                .add_snapshot("overlayfs", "layer", "", unsynced_in("before"));
            model.store().add_active("overlayfs", &key, "layer");
            store
                .layer_sync
                .set_ended(&HashSet::from([ended.clone()]))
                .await;
            let cleared = store
                .layer_sync
                .clear_chain("overlayfs", &["layer".to_owned()])
                .await;
            assert_eq!(cleared.is_ok(), is_removed, "{key}");
            assert_eq!(model.store().snapshots.is_empty(), is_removed, "{key}");
        }
    }

    #[tokio::test]
    async fn stale_snapshot_that_cannot_be_removed_keeps_no_other() {
        let model = ModelContainerd::default();
        let store = store_over(&model);
        let prefix = extract_prefix(&store.client);
        for name in ["a", "b", "c"] {
            model
                .store()
                .add_active("overlayfs", &format!("{prefix}{name}"), "");
        }
        model.refuse(
            &format!("Snapshots/Remove {prefix}a"),
            Some(Status::unknown("input/output error")),
        );
        let listed = snapshots::list(&store.client, "overlayfs").await.unwrap();
        let stale = stale_keys(&store.client, &listed);
        assert_eq!(stale.len(), 3);
        let error = remove_all(&store.client, "overlayfs", &stale, &|| ())
            .await
            .unwrap_err();
        assert!(
            error.report().contains("input/output error"),
            "{}",
            error.report()
        );
        let left: Vec<_> = model
            .store()
            .snapshots
            .keys()
            .map(|(_, key)| key.clone())
            .collect();
        assert_eq!(left, [format!("{prefix}a")]);
        model.refuse(&format!("Snapshots/Remove {prefix}a"), None);
        remove_all(&store.client, "overlayfs", &stale, &|| ())
            .await
            .unwrap();
        assert!(model.store().snapshots.is_empty());
    }

    /// Snapshots by name, parent and boot; those with a `:` in the name are committed.
    fn layers(list: &[(&str, &str, Option<&str>)]) -> BTreeMap<String, SnapshotInfo> {
        let layer = |(name, parent, unsynced): &(&str, &str, Option<&str>)| {
            let parent = (*parent).to_owned();
            let unsynced = unsynced.map(str::to_owned);
            (
                (*name).to_owned(),
                SnapshotInfo {
                    parent,
                    committed: name.contains(':'),
                    unsynced,
                },
            )
        };
        list.iter().map(layer).collect()
    }

    #[test]
    fn what_was_not_synced_before_a_reboot_goes_with_all_on_top_of_it() {
        let found = layers(&[
            (":base", "", None),
            (":z-app", ":base", Some("before")),
            ("a-task", ":z-app", None),
            (":b-top", ":z-app", Some("before")),
            ("c-task", ":b-top", None),
            (":other", ":base", Some("now")),
            (":synced", ":base", Some("")),
        ]);
        let LostLayers { removable, in_use } = find_lost_layers(&found, "now", |_| true);
        assert_eq!(
            (removable.len(), removable.last().map(String::as_str)),
            (4, Some(":z-app")),
            "{removable:?}"
        );
        let at = |name: &str| removable.iter().position(|other| other == name).unwrap();
        assert!(
            at("c-task") < at(":b-top") && at("a-task") < at(":z-app"),
            "{removable:?}"
        );
        assert!(in_use.is_empty());
        assert_eq!(find_unsynced(&found, "now"), [":other"]);
        assert_eq!(
            find_lost_layers(&found, "before", |_| true).removable,
            [":other"]
        );
    }

    #[test]
    fn what_may_run_on_a_layer_keeps_it_and_those_below() {
        let found = layers(&[
            (":base", "", Some("before")),
            (":app", ":base", Some("before")),
            ("running", ":app", None),
            ("ended", ":app", None),
            (":unused", ":base", Some("before")),
        ]);
        let expected = LostLayers {
            removable: vec![":unused".into()],
            in_use: vec![":app".into(), ":base".into()],
        };
        assert_eq!(
            find_lost_layers(&found, "now", |name| name == "ended"),
            expected
        );
    }

    #[test]
    fn a_ring_of_parents_ends() {
        let found = layers(&[(":a", ":b", Some("x")), (":b", ":a", None)]);
        assert_eq!(find_lost_layers(&found, "now", |_| true).removable.len(), 2);
    }
}
