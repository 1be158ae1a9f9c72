//! Recovery at the daemon's start: it waits for the processes that the daemon needs, and is repeated until it succeeds.

use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

use switchyard_core::backoff::Backoff;
use switchyard_core::gateway::Gateway;
use switchyard_operator::metrics::RecoveryMetrics;
use tokio::sync::watch;

use super::processes::ProcessStates;
use super::{Daemon, StartTimes};
use crate::managed::State;
use crate::service_manager;

/// Limit for which recovery waits for the logkeeper before it continues without it.
const LOGKEEPER_LIMIT: Duration = Duration::from_secs(10);

/// The first and the longest pause between attempts to recover.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Interval at which an unfinished recovery is logged.
const SLOW_RECOVERY: Duration = Duration::from_secs(60);

// === impl Daemon ===

impl Daemon {
    /// Starts the recovery; `errors` gets the error of each try that fails.
    pub(super) fn start_recovery(
        &self,
        gateway: Gateway,
        errors: watch::Sender<Option<String>>,
        states: ProcessStates,
        begin: StartTimes,
    ) {
        let metrics = self.metrics.recovery();
        let recovery = recover(gateway, errors, metrics, states, begin);
        self.spawn("recovery", recovery);
    }
}

const fn is_up(state: &State) -> bool {
    matches!(state, State::Up { .. })
}

/// Runs the recovery of the predecessor's objects, and repeats it until it succeeds. Cancel-safe.
async fn recover(
    gateway: Gateway,
    recovery_errors: watch::Sender<Option<String>>,
    metrics: RecoveryMetrics,
    (containerd, logkeeper): ProcessStates,
    begin: StartTimes,
) {
    let processes = async {
        if let Some(mut containerd) = containerd {
            // The sender exists as long as the daemon.
            let _ = containerd.wait_for(is_up).await;
        }
        let mut logkeeper = logkeeper;
        let waited = tokio::time::timeout(LOGKEEPER_LIMIT, logkeeper.wait_for(is_up)).await;
        if waited.is_err() {
            tracing::warn!("recovering without the logkeeper, which does not answer");
        }
    };
    processes.await;
    let processes = begin.at.elapsed();
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    let mut last_logged = String::new();
    while let Err(error) = reported_if_slow(gateway.recover()).await {
        metrics.failed();
        let report = error.report();
        recovery_errors.send_replace(Some(report.clone()));
        if last_logged != report {
            tracing::warn!(
                error = report,
                "recovery failed; trying again until it succeeds"
            );
            service_manager::status(&format!("Recovery failed: {error}"));
            last_logged = report;
        }
        backoff.wait().await;
    }
    let served = begin.at.elapsed();
    metrics.served_after(served);
    let sandboxes = gateway.sandboxes().count();
    let tasks = gateway.tasks().count();
    let sum = |counts: switchyard_core::table::Counts| counts.values().sum::<u64>();
    tracing::info!(
        sandboxes = sum(sandboxes),
        tasks = sum(tasks),
        locked_after = ?begin.locked,
        processes_after = ?processes,
        served_after = ?served,
        "recovered; requests are served"
    );
    service_manager::status("Serving");
}

/// Waits for an attempt to recover, and logs that it takes long: a disk that hangs holds it up for ever.
async fn reported_if_slow<T>(attempt: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let mut attempt = pin!(attempt);
    loop {
        tokio::select! {
            done = &mut attempt => return done,
            () = tokio::time::sleep(SLOW_RECOVERY) => tracing::warn!(
                after = ?begun.elapsed(),
                "recovery is not done, and no request is served before it is: does a disk hang, or does containerd answer slowly?"
            ),
        }
    }
}
