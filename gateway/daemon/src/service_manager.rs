//! Notifications to systemd (sd_notify(3)), which do nothing without it, and the directory that it gives a unit.
//!
//! Sending one waits while the manager does not read its socket. The daemon leaves that to a thread, so that a manager
//! that hangs blocks none of the threads that serve; what does not fit into the thread's queue is dropped.

use std::env;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;

use crate::self_check::SelfCheck;
use crate::shutdown::Shutdown;

/// Maximum number of notifications that wait for the service manager.
const QUEUE: usize = 16;

/// The queue of the thread that sends notifications; `None` if there is no service manager, or no thread for it.
static SENDER: LazyLock<Option<SyncSender<String>>> = LazyLock::new(|| {
    env::var_os("NOTIFY_SOCKET")?;
    start_sender(send)
});

/// The runtime directory of the unit that this process belongs to (`RuntimeDirectory=` of systemd.exec(5)), the
/// first if it has several; `None` without a unit, or in one that has none.
#[must_use]
pub fn runtime_dir() -> Option<PathBuf> {
    let dirs = env::var_os("RUNTIME_DIRECTORY")?;
    env::split_paths(&dirs).find(|dir| dir.is_absolute())
}

/// Notifies that the daemon serves.
pub fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Notifies that a process serves which has one thread: waits until the service manager has read it.
pub fn ready_of_single_thread(status: &str) {
    send(&lines(&[NotifyState::Ready, NotifyState::Status(status)]));
}

/// Notifies that the daemon reloads its configuration, until the answer is dropped.
pub fn reloading() -> Reloading {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => {
            tracing::warn!(%error, "cannot read the monotonic clock for the service manager")
        }
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
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return;
    };
    let interval = (limit / 3).max(Duration::from_millis(100));
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let checks = async {
        loop {
            ticks.tick().await;
            match check.run(interval).await {
                Ok(()) => notify(&[NotifyState::Watchdog]),
                Err(error) => {
                    tracing::warn!(%error, "the self-check failed; the service manager restarts the daemon if that continues");
                }
            }
        }
    };
    tokio::select! {
        () = shutdown.ended() => {}
        () = checks => {}
    }
}

/// Leaves a notification to the thread that sends them. Never waits.
fn notify(states: &[NotifyState<'_>]) {
    if let Some(sender) = &*SENDER {
        enqueue(sender, states);
    }
}

fn enqueue(sender: &SyncSender<String>, states: &[NotifyState<'_>]) {
    if let Err(error) = sender.try_send(lines(states)) {
        let why = match error {
            TrySendError::Full(_) => "it does not read them",
            TrySendError::Disconnected(_) => "the thread that sends them has ended",
        };
        tracing::warn!(
            reason = why,
            "a notification of the service manager is dropped"
        );
    }
}

/// Starts the thread, which lives as long as the process.
fn start_sender(send: impl Fn(&str) + Send + 'static) -> Option<SyncSender<String>> {
    let (sender, notifications) = sync_channel::<String>(QUEUE);
    let started = thread::Builder::new().name("notify".into()).spawn(move || {
        for notification in notifications {
            send(&notification);
        }
    });
    match started {
        Ok(_) => Some(sender),
        Err(error) => {
            tracing::warn!(%error, "cannot start the thread that notifies the service manager");
            None
        }
    }
}

/// The lines of a notification.
fn lines(states: &[NotifyState<'_>]) -> String {
    let lines: Vec<String> = states.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// Sends these lines; waits while the service manager does not read its socket.
fn send(lines: &str) {
    if let Err(error) = sd_notify::notify(&[NotifyState::Custom(lines)]) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn notifications_are_sent_in_their_order() {
        let (seen, texts) = mpsc::channel();
        let sender = start_sender(move |text| {
            seen.send(text.to_owned()).unwrap();
        });
        let sender = sender.unwrap();
        enqueue(
            &sender,
            &[NotifyState::Ready, NotifyState::Status("Serving")],
        );
        enqueue(&sender, &[NotifyState::Watchdog]);
        assert_eq!(
            [texts.recv().unwrap(), texts.recv().unwrap()],
            ["READY=1\nSTATUS=Serving", "WATCHDOG=1"]
        );
    }

    #[test]
    fn manager_that_does_not_read_blocks_nobody() {
        let (release, released) = mpsc::channel::<()>();
        let (seen, texts) = mpsc::channel();
        let sender = start_sender(move |text| {
            // Ends with the other side.
            let _ = released.recv();
            seen.send(text.to_owned()).unwrap();
        });
        let sender = sender.unwrap();
        for _ in 0..10 * QUEUE {
            enqueue(&sender, &[NotifyState::Watchdog]);
        }
        drop(release);
        drop(sender);
        // Those of the queue, and the one at which the thread waited if it had begun.
        let count = texts.iter().count();
        assert!((QUEUE..=QUEUE + 1).contains(&count), "{count}");
    }
}
