//! The end of what is in flight when the daemon stops.

use std::time::Duration;

use switchyard_core::gateway::Gateway;
use tokio_util::task::TaskTracker;

/// Limit for running operations when the daemon stops. It is short, since new calls wait for the successor meanwhile, which
/// finishes what is cut off as after a kill.
pub(super) const DRAIN: Duration = Duration::from_millis(500);

/// Limit for servers to close their connections after that. Some never end by themselves.
pub(super) const CLOSE: Duration = Duration::from_millis(200);

/// Waits for running operations and then for `tasks`, each for a bounded time.
pub(super) async fn drain(gateway: &Gateway, tasks: &TaskTracker) {
    tracing::info!(limit = ?DRAIN, "draining");
    if let Err(error) = gateway.shut_down(DRAIN).await {
        tracing::warn!(
            error = error.report(),
            "not all operations ended within the deadline"
        );
    }
    tasks.close();
    // Streams of events never end by themselves, so this often runs into its timeout.
    if tokio::time::timeout(CLOSE, tasks.wait()).await.is_err() {
        tracing::debug!(left = tasks.len(), "connections are cut off");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use switchyard_contract::specs;
    use switchyard_core::gateway::Limits;
    use switchyard_core::id::Owner;
    use switchyard_fake::{Fake, Hold, Method};
    use tokio::task::JoinHandle;
    use tokio::time::{sleep, timeout};

    use super::*;

    /// A daemon that creates a pod.
    struct BusyDaemon {
        fake: Fake,
        gateway: Gateway,
        tasks: TaskTracker,
        hold: Hold,
        /// True if the client got its pod.
        creation: JoinHandle<bool>,
    }

    impl BusyDaemon {
        async fn new() -> Self {
            let fake = Fake::new();
            let gateway = Gateway::new(Arc::new(fake.clone()), Limits::default());
            gateway.recover().await.unwrap();
            let hold = fake.hold(Method::CreateSandbox);
            let scope = gateway.scope(Owner::Kubernetes);
            let creation = tokio::spawn(async move {
                let spec = specs::sandbox(Owner::Kubernetes, "pod");
                scope.sandboxes().create(spec).await.is_ok()
            });
            hold.arrived(1).await;
            Self {
                fake,
                gateway,
                tasks: TaskTracker::new(),
                hold,
                creation,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_never_ends_is_cut_off_before_clients_have_waited_for_a_second() {
        let daemon = BusyDaemon::new().await;
        daemon.tasks.spawn(std::future::pending::<()>());
        let end = drain(&daemon.gateway, &daemon.tasks);
        let ended = timeout(Duration::from_secs(1), end).await;
        assert!(ended.is_ok(), "the next daemon does not serve them yet");
        assert!(!daemon.creation.is_finished() && !daemon.tasks.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_within_some_tenths_of_a_second_is_waited_for() {
        let BusyDaemon {
            fake,
            gateway,
            tasks,
            hold,
            creation,
        } = BusyDaemon::new().await;
        tokio::spawn(async move {
            sleep(Duration::from_millis(400)).await;
            hold.release();
        });
        // An answer on its way.
        tasks.spawn(sleep(Duration::from_millis(500)));
        drain(&gateway, &tasks).await;
        assert_eq!(fake.sandboxes().len(), 1);
        assert!(tasks.is_empty());
        assert!(creation.await.unwrap());
    }
}
