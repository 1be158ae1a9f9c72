//! The end of unused leases by their age.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::DeviceLeases;
use crate::ledger::{TickLimits, TickOutcome};

/// The interval at which unused leases are aged.
const TICK: Duration = Duration::from_secs(1);

impl DeviceLeases {
    /// Expires unused leases, until the gateway shuts down.
    pub(in crate::gateway) fn expire(self: &Arc<Self>) {
        let devices = Arc::clone(self);
        self.context.watchers.spawn(async move {
            devices
                .context
                .unwatched
                .run_until_cancelled(devices.tick())
                .await;
        });
        self.views.mark_changed();
    }

    async fn tick(&self) {
        let mut rounds = interval_at(Instant::now() + TICK, TICK);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            rounds.tick().await;
            let limits = self.context.limits.get();
            let ticks = TickLimits {
                unbound: ticks(limits.lease),
                grace: ticks(limits.restart_grace),
            };
            let TickOutcome { freed, expired } = {
                let mut ledger = self.claims.ledger();
                if ledger.devices.has_timers() {
                    ledger.devices.tick(ticks)
                } else {
                    TickOutcome::default()
                }
            };
            if freed {
                self.views.mark_changed();
            }
            // Leases whose start has failed are still in the store.
            self.remove_stored(&expired).await;
        }
    }
}

/// A duration in ticks, at least one.
fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX).max(1)
}
