//! Probes the configured OCI runtimes periodically, and reports whether the node can run containers.

use std::collections::BTreeSet;
use std::sync::Arc;

use switchyard_core::backend::Condition;
use tokio_util::sync::CancellationToken;

use crate::base::config::RUNC_TYPE;
use crate::client::contact::Contact;
use crate::client::features::SNAPSHOTTER_UNUSABLE;
use crate::node::Node;

impl Node {
    /// Probes the OCI runtimes, now, each time containerd comes back, since it and they may have been replaced
    /// by an update, when others are configured, and when disks can be used again, which trials need.
    pub(crate) async fn watch_runtime_features(self: Arc<Self>, stop: CancellationToken) {
        let mut contact = self.health.subscribe();
        let mut binaries = self.runtime_binaries();
        let state = self.context.layout.state();
        let run = self.context.layout.run();
        let mut logged = BTreeSet::new();
        self.probes.load_cached(&binaries, run).await;
        self.probes.probe_all(&binaries, state, run).await;
        self.log_advisories(&mut logged);
        // A containerd that answered for the first time during these probes needs no further ones.
        contact.mark_unchanged();
        loop {
            let returned = async {
                while contact.changed().await.is_ok() {
                    if matches!(*contact.borrow_and_update(), Contact::Up { .. }) {
                        return;
                    }
                }
                std::future::pending().await
            };
            tokio::select! {
                () = returned => {
                    self.layer_usage.forget_roots();
                    let label = self.context.snapshots_label();
                    self.features.refresh(&self.client, label).await;
                    self.probes.probe_all(&binaries, state, run).await;
                    self.log_advisories(&mut logged);
                }
                () = self.runtimes_changed.notified() => {
                    let before = std::mem::replace(&mut binaries, self.runtime_binaries());
                    if before != binaries {
                        self.probes.probe_all(&binaries, state, run).await;
                        self.log_advisories(&mut logged);
                    }
                }
                () = self.disks.mended() => self.probes.probe_all(&binaries, state, run).await,
                () = stop.cancelled() => return,
            }
        }
    }

    /// The programs of the configured runtimes that are called as runc is.
    fn runtime_binaries(&self) -> Vec<String> {
        let settings = self.context.settings();
        let runtimes = settings.containerd.runtimes.values();
        let runc_like = runtimes.filter(|runtime| runtime.type_ == RUNC_TYPE);
        runc_like.map(|runtime| runtime.binary.clone()).collect()
    }

    /// Reports whether pods can run. Clients read the features of handlers from the same status, so it is
    /// `False` until the runtimes have been probed.
    pub(crate) fn runtime_condition(&self) -> Condition {
        match self.health.condition() {
            Condition::True if !self.probes.is_complete() => Condition::False {
                reason: "AskingRuntimes".to_owned(),
                message: "the features of the OCI runtimes are being probed".to_owned(),
            },
            Condition::True => match self.disks.runtime_condition() {
                Condition::True => self.snapshotter_condition(),
                condition @ Condition::False { .. } => condition,
            },
            condition @ Condition::False { .. } => condition,
        }
    }

    /// Reports whether containerd can use the snapshotter without which nothing runs that names no handler.
    fn snapshotter_condition(&self) -> Condition {
        let settings = self.context.settings();
        let needed = settings.containerd.needed_snapshotter();
        match self.features.snapshotter_fault(needed) {
            None => Condition::True,
            Some(message) => Condition::False {
                reason: SNAPSHOTTER_UNUSABLE.to_owned(),
                message,
            },
        }
    }
}
