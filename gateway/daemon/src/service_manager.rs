//! Notifications to systemd (sd_notify(3)). Without systemd they do nothing.

use std::time::Duration;

use sd_notify::NotifyState;

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

/// Until the daemon ends, notifies systemd's watchdog, if it is enabled, that the daemon's scheduler runs.
pub async fn feed_watchdog(shutdown: Shutdown) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let mut ticks = tokio::time::interval((limit / 2).max(Duration::from_millis(100)));
    loop {
        tokio::select! {
            () = shutdown.ended() => return,
            _ = ticks.tick() => notify(&[NotifyState::Watchdog]),
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}
