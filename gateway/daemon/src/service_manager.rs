//! What systemd is told (sd_notify(3)). Without systemd nothing is told.

use std::time::Duration;

use sd_notify::NotifyState;

use crate::shutdown::Shutdown;

/// Tells that the daemon serves.
pub fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Tells what the daemon is doing, in one line.
pub fn status(status: &str) {
    notify(&[NotifyState::Status(status)]);
}

/// Tells that the daemon is ending.
pub fn stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("Draining")]);
}

/// Tells the watchdog, where there is one, that the daemon's scheduler runs, until the daemon ends.
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
        tracing::warn!(%error, "cannot tell the service manager");
    }
}
