//! Watches for full disks.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::backend::Inner;
use crate::disks::shortages;
use crate::fs::blocking;

/// The interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

impl Inner {
    /// Checks the disks of the state and run directories periodically until `stop`.
    pub(crate) async fn watch_disks(self: Arc<Self>, stop: CancellationToken) {
        let dirs = [self.settings.state.clone(), self.settings.run.clone()];
        loop {
            let checked = dirs.clone();
            match blocking(move || Ok(shortages(&checked))).await {
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

    /// The ids of the tasks whose exits are not persisted yet, for the status; `None` if there are none.
    pub(crate) fn unrecorded_exits(&self) -> Option<String> {
        let tasks = self.tasks();
        let ended = tasks.values().filter(|task| task.has_unpersisted_exit());
        let mut ids: Vec<_> = ended.map(|task| task.id.to_string()).collect();
        ids.sort();
        (!ids.is_empty()).then(|| ids.join(", "))
    }
}
