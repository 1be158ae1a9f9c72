//! The features of the running containerd, read from its list of plugins each time it comes up, never
//! inferred from its version.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use containerd_client::services::v1 as api;
use parking_lot::Mutex;
use switchyard_core::{Error, Result};
use switchyard_linux::beginning;
use switchyard_linux::host_features::in_user_namespace;

use crate::base::fs::blocking;
use crate::base::selinux::set_label;
use crate::client::{Client, QUICK, call};

mod overlay_trial;

use overlay_trial::overlay_fault;

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
    /// All its snapshotters, with containerd's reason for those that cannot be used here; `None` until they are known.
    snapshotters: Option<BTreeMap<String, Option<String>>>,
    /// Reason why the kernel mounts no overlay on the disk of `overlayfs`, which containerd does not try.
    overlay_fault: Option<String>,
}

/// The type of snapshotters among containerd's plugins.
const SNAPSHOTTER: &str = "io.containerd.snapshotter.v1";

/// The reason of the condition of a snapshotter that containerd cannot use on this node.
pub const SNAPSHOTTER_UNUSABLE: &str = "SnapshotterUnusable";

/// The snapshotter whose mounts are tried.
const OVERLAYFS: &str = "overlayfs";

/// The snapshotter that needs nothing of the kernel and of the file system.
const NATIVE: &str = "native";

/// The most of a reason of containerd that is kept, in characters: it may have the output of a program.
const REASON_MAX: usize = 500;

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

    /// Returns that and why containerd cannot use a snapshotter, in its own words; `None` if it can, or if it was not queried
    /// yet.
    pub(crate) fn snapshotter_fault(&self, snapshotter: &str) -> Option<String> {
        self.features.lock().snapshotter_fault(snapshotter)
    }

    /// Records that containerd has no sandbox store after all.
    pub(crate) fn mark_no_sandbox_store(&self) {
        self.features.lock().sandboxes = false;
    }

    /// Queries containerd. If that fails, the known features stay. `label` is the SELinux label of its snapshots, if they are to
    /// have one.
    pub(crate) async fn refresh(&self, client: &Client, label: Option<&str>) {
        if let Err(error) = self.query(client, label).await {
            tracing::warn!(
                error = error.report(),
                "the features of containerd cannot be queried"
            );
        }
    }

    async fn query(&self, client: &Client, label: Option<&str>) -> Result<()> {
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
        if let Some(label) = label {
            label_snapshots(&plugins, label).await;
        }
        let mut known = FeatureSet::of(&plugins, client.namespace(), in_user_namespace());
        if let Some(root) = overlay_root(&plugins) {
            known.overlay_fault = match overlay_fault(&root, client.instance()).await {
                Ok(fault) => {
                    if let Some(error) = &fault {
                        tracing::warn!(error, "the snapshotter overlayfs cannot be used");
                    }
                    fault
                }
                Err(error) => {
                    tracing::debug!(
                        error = error.report(),
                        "it cannot be tried whether the kernel mounts an overlay on containerd's disk"
                    );
                    self.features.lock().overlay_fault.clone()
                }
            };
        }
        tracing::debug!(?known, "the features of containerd are known");
        *self.features.lock() = known;
        Ok(())
    }
}

/// Gives the directories of snapshots a label, which what containerd makes in them then gets by itself: the kernel asks for the
/// right to map a file of an image by the label in its snapshot, not by that of the mount. A failure is logged, and a disk that
/// does not answer within [`QUICK`] is not waited for: the next time that containerd comes up it is tried again. Cancel-safe.
async fn label_snapshots(plugins: &[api::Plugin], label: &str) {
    let roots = plugins
        .iter()
        .filter(|plugin| plugin.r#type == SNAPSHOTTER && plugin.init_err.is_none())
        .filter_map(|plugin| plugin.exports.get("root"));
    for root in roots {
        let dir = PathBuf::from(root).join("snapshots");
        let label = label.to_owned();
        let labelled = blocking(move || {
            if dir.is_dir() {
                set_label(&dir, &label)
            } else {
                Ok(())
            }
        });
        let late = |_| {
            Err(Error::deadline(format!(
                "label the snapshots in {root}: not done within {QUICK:?}"
            )))
        };
        let labelled = tokio::time::timeout(QUICK, labelled).await;
        if let Err(error) = labelled.unwrap_or_else(late) {
            tracing::warn!(
                error = error.report(),
                "confined containers may not run programs of their images"
            );
        }
    }
}

/// The directory of `overlayfs`, if containerd can use it.
fn overlay_root(plugins: &[api::Plugin]) -> Option<PathBuf> {
    let is_it = |plugin: &&api::Plugin| {
        plugin.r#type == SNAPSHOTTER && plugin.id == OVERLAYFS && plugin.init_err.is_none()
    };
    let root = plugins.iter().find(is_it)?.exports.get("root")?;
    Some(PathBuf::from(root))
}

impl FeatureSet {
    /// The features by the list of plugins. The records are in this namespace of containerd; whether it is in a user namespace is told of this
    /// process, which is beside it.
    fn of(plugins: &[api::Plugin], namespace: &str, in_user_namespace: bool) -> Self {
        let working = || plugins.iter().filter(|plugin| plugin.init_err.is_none());
        let has = |kind: &str, id: &str| {
            working().any(|plugin| plugin.r#type == kind && (id.is_empty() || plugin.id == id))
        };
        // A layer without those below it is unpacked as the upper directory of an overlay. In a user namespace containerd converts no whiteouts,
        // and mounts that overlay instead, which the kernel refuses without a lower directory. Some versions offer the ability all the same.
        let rebase = working()
            .filter(|plugin| plugin.r#type == SNAPSHOTTER && !in_user_namespace)
            .filter(|plugin| {
                plugin
                    .capabilities
                    .iter()
                    .any(|capability| capability == "rebase")
            })
            .map(|plugin| plugin.id.clone())
            .collect();
        let shared = namespace == CRI_NAMESPACE && has("io.containerd.grpc.v1", "cri");
        let snapshotters = plugins.iter().filter(|plugin| plugin.r#type == SNAPSHOTTER);
        let reason = |plugin: &api::Plugin| {
            let error = plugin.init_err.as_ref()?.message.trim();
            let text = if error.is_empty() {
                "containerd gives no reason"
            } else {
                error
            };
            Some(beginning(text, REASON_MAX).to_owned())
        };
        Self {
            rebase,
            sandboxes: has("io.containerd.sandbox.store.v1", "") && !shared,
            snapshotters: Some(
                snapshotters
                    .map(|plugin| (plugin.id.clone(), reason(plugin)))
                    .collect(),
            ),
            overlay_fault: None,
        }
    }

    fn snapshotter_fault(&self, snapshotter: &str) -> Option<String> {
        let known = self.snapshotters.as_ref()?;
        let why = match known.get(snapshotter) {
            Some(None) if snapshotter == OVERLAYFS => self.overlay_fault.clone()?,
            Some(fault) => fault.clone()?,
            None => {
                let usable = known.iter().filter(|(_, fault)| fault.is_none());
                let names: Vec<_> = usable.map(|(name, _)| name.as_str()).collect();
                format!(
                    "containerd has no such plugin, it has {}; one that was configured lately is there once containerd has been restarted",
                    names.join(", ")
                )
            }
        };
        let other = if snapshotter == NATIVE {
            ""
        } else {
            "; \"native\" works on every file system, with a copy of each layer: set it as containerd.snapshotter, or for the handler"
        };
        Some(format!(
            "the snapshotter {snapshotter} cannot be used: {why}{other}"
        ))
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
        let plugins = [overlay, native, broken, store];
        let known = FeatureSet::of(&plugins, CRI_NAMESPACE, false);
        assert_eq!(known.rebase, BTreeSet::from(["overlayfs".to_owned()]));
        assert!(known.sandboxes);
        let contained = FeatureSet::of(&plugins, CRI_NAMESPACE, true);
        assert!(contained.rebase.is_empty());
        let same = FeatureSet {
            rebase: BTreeSet::new(),
            ..known
        };
        assert_eq!(contained, same);
        let none = FeatureSet {
            snapshotters: Some(BTreeMap::new()),
            ..FeatureSet::default()
        };
        assert_eq!(FeatureSet::of(&[], CRI_NAMESPACE, false), none);
    }

    #[test]
    fn snapshotter_that_cannot_be_used_is_told_in_the_words_of_containerd() {
        let broken = |id: &str, message: &str| api::Plugin {
            init_err: Some(containerd_client::google::rpc::Status {
                message: message.to_owned(),
                ..Default::default()
            }),
            ..plugin(SNAPSHOTTER, id, &[])
        };
        let long = "x".repeat(REASON_MAX + 1);
        let known = FeatureSet::of(
            &[
                plugin(SNAPSHOTTER, "native", &[]),
                plugin(SNAPSHOTTER, "stargz", &[]),
                plugin("io.containerd.content.v1", "erofs", &[]),
                broken("overlayfs", "\"/x\" does not support d_type\n"),
                broken("zfs", "path /x must be a zfs file system: skip plugin"),
                broken("devmapper", ""),
                broken("blockfile", &long),
            ],
            CRI_NAMESPACE,
            false,
        );
        let fault = |name: &str| known.snapshotter_fault(name);
        assert_eq!(fault("native"), None);
        assert_eq!(fault("stargz"), None);
        for (name, why) in [
            ("overlayfs", "\"/x\" does not support d_type"),
            ("zfs", "path /x must be a zfs file system: skip plugin"),
            ("devmapper", "containerd gives no reason"),
            ("blockfile", &long[..REASON_MAX]),
            ("btrfs", "no such plugin, it has native, stargz;"),
            ("erofs", "no such plugin, it has native, stargz;"),
        ] {
            let text = fault(name).unwrap();
            let begins = format!("the snapshotter {name} cannot be used: ");
            assert!(text.starts_with(&begins) && text.contains(why), "{text}");
            assert!(text.contains("\"native\" works"), "{text}");
            assert!(text.len() < REASON_MAX + 300, "{text}");
        }
        // What containerd does not try is told of that one alone.
        let tried = FeatureSet {
            snapshotters: Some(BTreeMap::from(
                ["overlayfs", "native"].map(|name| (name.to_owned(), None)),
            )),
            overlay_fault: Some("no overlay on nfs4".to_owned()),
            ..FeatureSet::default()
        };
        let text = tried.snapshotter_fault("overlayfs").unwrap();
        assert!(
            text.contains("cannot be used: no overlay on nfs4; "),
            "{text}"
        );
        assert_eq!(tried.snapshotter_fault("native"), None);
        // It is not its own alternative.
        let lacking = FeatureSet::of(&[], CRI_NAMESPACE, false);
        let text = lacking.snapshotter_fault("native").unwrap();
        assert!(!text.contains("works on every"), "{text}");
        // Nothing is known of a containerd that was not queried, or has no such service.
        assert_eq!(FeatureSet::default().snapshotter_fault("overlayfs"), None);
    }

    #[test]
    fn the_store_of_sandboxes_is_not_shared_with_containerds_own_cri() {
        let plugins = [
            plugin("io.containerd.sandbox.store.v1", "local", &[]),
            plugin("io.containerd.grpc.v1", "cri", &[]),
        ];
        assert!(!FeatureSet::of(&plugins, CRI_NAMESPACE, false).sandboxes);
        assert!(FeatureSet::of(&plugins, "switchyard", false).sandboxes);
    }
}
