//! The features of the running containerd, read from its list of plugins each time it comes up, never
//! inferred from its version.

use std::collections::BTreeSet;
use std::sync::Arc;

use containerd_client::services::v1 as api;
use parking_lot::Mutex;
use switchyard_core::Result;

use crate::client::{Client, QUICK, call};

/// The features of containerd; none until it has been queried. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContainerdFeatures {
    features: Arc<Mutex<FeatureSet>>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct FeatureSet {
    /// The snapshotters that can set a snapshot's parent when it is committed.
    rebase: BTreeSet<String>,
    /// It has a sandbox store in which our records are safe.
    sandboxes: bool,
}

/// The namespace of containerd's own CRI plugin. If that is enabled, it takes every sandbox in the namespace
/// for its own: depending on the version, it deletes those that it does not know, or containerd does not
/// start.
const CRI_NAMESPACE: &str = "k8s.io";

impl ContainerdFeatures {
    /// Returns whether this snapshotter accepts layers that were unpacked without their parents.
    pub(crate) fn supports_rebase(&self, snapshotter: &str) -> bool {
        self.features.lock().rebase.contains(snapshotter)
    }

    /// Returns whether containerd has a sandbox store in which a record protects the exit of a task that
    /// exits while containerd is down.
    pub(crate) fn has_sandbox_store(&self) -> bool {
        self.features.lock().sandboxes
    }

    /// Records that containerd has no sandbox store after all.
    pub(crate) fn mark_no_sandbox_store(&self) {
        self.features.lock().sandboxes = false;
    }

    /// Queries containerd. If that fails, the known features stay.
    pub(crate) async fn refresh(&self, client: &Client) {
        if let Err(error) = self.query(client).await {
            tracing::warn!(
                error = error.report(),
                "the features of containerd cannot be queried"
            );
        }
    }

    async fn query(&self, client: &Client) -> Result<()> {
        let request = api::PluginsRequest {
            filters: Vec::new(),
        };
        let plugins = call(
            "list its plugins",
            QUICK,
            client.introspection().plugins(request),
        )
        .await?
        .plugins;
        let known = FeatureSet::of(&plugins, client.namespace());
        tracing::debug!(?known, "the features of containerd are known");
        *self.features.lock() = known;
        Ok(())
    }
}

impl FeatureSet {
    fn of(plugins: &[api::Plugin], namespace: &str) -> Self {
        let working = || plugins.iter().filter(|plugin| plugin.init_err.is_none());
        let has = |kind: &str, id: &str| {
            working().any(|plugin| plugin.r#type == kind && (id.is_empty() || plugin.id == id))
        };
        let rebase = working()
            .filter(|plugin| plugin.r#type == "io.containerd.snapshotter.v1")
            .filter(|plugin| {
                plugin
                    .capabilities
                    .iter()
                    .any(|capability| capability == "rebase")
            })
            .map(|plugin| plugin.id.clone())
            .collect();
        let shared = namespace == CRI_NAMESPACE && has("io.containerd.grpc.v1", "cri");
        Self {
            rebase,
            sandboxes: has("io.containerd.sandbox.store.v1", "") && !shared,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin(kind: &str, id: &str, capabilities: &[&str]) -> api::Plugin {
        api::Plugin {
            r#type: kind.to_owned(),
            id: id.to_owned(),
            capabilities: capabilities
                .iter()
                .map(|capability| (*capability).to_owned())
                .collect(),
            ..Default::default()
        }
    }

    #[test]
    fn abilities_are_read_from_plugins_that_work() {
        let overlay = plugin(
            "io.containerd.snapshotter.v1",
            "overlayfs",
            &["remap-ids", "rebase"],
        );
        let native = plugin("io.containerd.snapshotter.v1", "native", &[]);
        let broken = api::Plugin {
            init_err: Some(containerd_client::google::rpc::Status::default()),
            ..plugin("io.containerd.snapshotter.v1", "erofs", &["rebase"])
        };
        let store = plugin("io.containerd.sandbox.store.v1", "local", &[]);
        let known = FeatureSet::of(&[overlay, native, broken, store], CRI_NAMESPACE);
        assert_eq!(known.rebase, BTreeSet::from(["overlayfs".to_owned()]));
        assert!(known.sandboxes);
        assert_eq!(FeatureSet::of(&[], CRI_NAMESPACE), FeatureSet::default());
    }

    #[test]
    fn the_store_of_sandboxes_is_not_shared_with_containerds_own_cri() {
        let plugins = [
            plugin("io.containerd.sandbox.store.v1", "local", &[]),
            plugin("io.containerd.grpc.v1", "cri", &[]),
        ];
        assert!(!FeatureSet::of(&plugins, CRI_NAMESPACE).sandboxes);
        assert!(FeatureSet::of(&plugins, "switchyard").sandboxes);
    }
}
