//! Watches for full disks, and for trees on them that were set aside and that an operator has removed.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::base::disks::shortages;
use crate::base::fs::blocking;
use crate::base::trees::Trees;
use crate::node::Node;

/// The interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

impl Node {
    /// Checks the disks of the state and run directories periodically until `stop`.
    pub(crate) async fn watch_disks(self: Arc<Self>, trees: Arc<Trees>, stop: CancellationToken) {
        let dirs = [self.context.settings().state.clone(), self.context.settings().run.clone()];
        loop {
            let checked = dirs.clone();
            let trees = Arc::clone(&trees);
            let check = move || {
                trees.forget_removed();
                Ok(shortages(&checked))
            };
            match blocking(check).await {
                Ok(full) => self.disks.update(full),
                Err(error) => {
                    tracing::error!(error = error.report(), "the free space of the disks cannot be checked")
                }
            }
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = stop.cancelled() => return,
            }
        }
    }
}
