//! Notifications to systemd (sd_notify(3)). Without systemd they do nothing.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;

use crate::self_check::SelfCheck;
use crate::shutdown::Shutdown;

/// Notifies that the daemon serves.
pub fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Notifies that the daemon reloads its configuration, until the answer is dropped.
pub fn reloading() -> Reloading {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "cannot read the monotonic clock for the service manager"),
    }
    Reloading(())
}

/// A reload in progress, for the service manager. However it ends, the daemon is ready afterwards.
#[derive(Debug)]
#[must_use]
pub struct Reloading(());

impl Drop for Reloading {
    fn drop(&mut self) {
        notify(&[NotifyState::Ready]);
    }
}

/// Sets the status text, one line.
pub fn status(status: &str) {
    notify(&[NotifyState::Status(status)]);
}

/// Notifies that the daemon is stopping.
pub fn stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("Draining")]);
}

/// Until the daemon ends, notifies systemd's watchdog, if it is enabled, each time all servers of the daemon have
/// answered. Three checks fit into the watchdog's limit.
pub async fn feed_watchdog(check: SelfCheck, shutdown: Shutdown) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let interval = (limit / 3).max(Duration::from_millis(100));
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let checks = async {
        loop {
            ticks.tick().await;
            match check.run(interval).await {
                Ok(()) => notify(&[NotifyState::Watchdog]),
                Err(error) => {
                    tracing::warn!(%error, "the self-check failed; the service manager restarts the daemon if that goes on");
                }
            }
        }
    };
    tokio::select! {
        () = shutdown.ended() => {}
        () = checks => {}
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}
