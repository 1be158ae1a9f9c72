//! What this containerd can do, asked of itself whenever contact is made, and never read from its version.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use containerd_client::services::v1 as api;
use switchyard_core::Result;

use crate::client::{Client, QUICK, call};

/// What is known of containerd's abilities; nothing until it has been asked. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContainerdFeatures {
    features: Arc<Mutex<FeatureSet>>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct FeatureSet {
    /// Snapshotters that put a snapshot onto its parent when it is committed.
    rebase: BTreeSet<String>,
    /// A store of sandboxes, in which records of ours are safe.
    sandboxes: bool,
}

/// The namespace that containerd's own CRI works in. Where it is on, it takes every sandbox in there for its own: it deletes what it
/// does not know, or, in some versions, does not start.
const CRI_NAMESPACE: &str = "k8s.io";

impl ContainerdFeatures {
    /// Whether this snapshotter takes layers that were unpacked apart from each other.
    pub(crate) fn supports_rebase(&self, snapshotter: &str) -> bool {
        self.features.lock().unwrap_or_else(PoisonError::into_inner).rebase.contains(snapshotter)
    }

    /// Whether containerd keeps the exit of a task that ends while it is away, if there is a record of it in its store of
    /// sandboxes.
    pub(crate) fn has_sandbox_store(&self) -> bool {
        self.features.lock().unwrap_or_else(PoisonError::into_inner).sandboxes
    }

    /// Notes that the store of sandboxes is not there after all.
    pub(crate) fn mark_no_sandbox_store(&self) {
        self.features.lock().unwrap_or_else(PoisonError::into_inner).sandboxes = false;
    }

    /// Asks now. If there is no answer, what was known stays.
    pub(crate) async fn refresh(&self, client: &Client) {
        if let Err(error) = self.query(client).await {
            tracing::warn!(error = error.report(), "containerd does not say what it can do");
        }
    }

    async fn query(&self, client: &Client) -> Result<()> {
        let request = api::PluginsRequest { filters: Vec::new() };
        let plugins = call("list its plugins", QUICK, client.introspection().plugins(request)).await?.plugins;
        let known = FeatureSet::of(&plugins, client.namespace());
        tracing::debug!(?known, "containerd says what it can do");
        *self.features.lock().unwrap_or_else(PoisonError::into_inner) = known;
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
            .filter(|plugin| plugin.capabilities.iter().any(|capability| capability == "rebase"))
            .map(|plugin| plugin.id.clone())
            .collect();
        let shared = namespace == CRI_NAMESPACE && has("io.containerd.grpc.v1", "cri");
        Self { rebase, sandboxes: has("io.containerd.sandbox.store.v1", "") && !shared }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin(kind: &str, id: &str, capabilities: &[&str]) -> api::Plugin {
        api::Plugin {
            r#type: kind.to_owned(),
            id: id.to_owned(),
            capabilities: capabilities.iter().map(|capability| (*capability).to_owned()).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn abilities_are_read_from_plugins_that_work() {
        let overlay = plugin("io.containerd.snapshotter.v1", "overlayfs", &["remap-ids", "rebase"]);
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
