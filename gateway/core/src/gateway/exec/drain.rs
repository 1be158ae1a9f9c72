//! The output of a command that has exited, while children of it keep it open.

use std::time::Duration;

use tokio::time::Instant;

use crate::backend::{ExecControl, cut_by};
use crate::error::Error;

/// The error for a command that has ended while a child of it keeps its output open. It is no `DeadlineExceeded`:
/// kubelets replace the text of that by one of their own, that the command has timed out, which it has not. It begins
/// with containerd's words, by which its suite of tests knows it.
pub(super) fn output_kept_open(code: i32, drain: Duration) -> Error {
    Error::failed_precondition(format!(
        "failed to drain exec process: the command has ended with code {code}, but a child of it kept its output open for \
         {drain:?}: redirect the output of what the command leaves running"
    ))
}

/// The error for output that was cut off and does not end.
pub(super) fn output_not_closed(code: i32, limit: Duration) -> Error {
    Error::unavailable(format!(
        "the command has ended with code {code}, but the runtime has not closed its output, which a child of it keeps \
         open, within {limit:?}"
    ))
}

/// Closes the output of a process that has exited, once children have kept it open for `drain` without
/// writing. Children that continue to write are cut off at the deadline of the command, but no earlier than
/// after `drain`. Returns [`CUT_PATIENCE`](crate::backend::CUT_PATIENCE) after the output was cut off.
/// Cancel-safe.
pub(super) async fn cut_output(
    control: &dyn ExecControl,
    drain: Duration,
    deadline: Option<Instant>,
) {
    // A time that the clock cannot represent is no limit.
    let latest =
        deadline.and_then(|deadline| Some(deadline.max(Instant::now().checked_add(drain)?)));
    let latest = async {
        match latest {
            Some(latest) => tokio::time::sleep_until(latest).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = control.cut_output(drain) => {}
        () = latest => if let Some(error) = cut_by(control.delete()).await {
            tracing::debug!(error, "cannot end the output of a command");
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::future::BoxFuture;

    use super::*;
    use crate::backend::CUT_PATIENCE;
    use crate::error::Result;
    use crate::spec::Signal;

    const DRAIN: Duration = Duration::from_secs(2);

    /// An exited process whose children write without a pause.
    #[derive(Default)]
    struct Noisy {
        deleted: AtomicU32,
    }

    impl ExecControl for Noisy {
        fn wait(&self) -> BoxFuture<'_, Result<i32>> {
            Box::pin(async { Ok(0) })
        }

        fn signal(&self, _: Signal) -> BoxFuture<'_, Result<()>> {
            Box::pin(async { Ok(()) })
        }

        fn resize(&self, _: u16, _: u16) -> BoxFuture<'_, Result<()>> {
            Box::pin(async { Ok(()) })
        }

        fn cut_output(&self, _: Duration) -> BoxFuture<'_, ()> {
            Box::pin(std::future::pending())
        }

        fn delete(&self) -> BoxFuture<'_, Result<()>> {
            Box::pin(async {
                self.deleted.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        }
    }

    /// After how long the output of a noisy process is given up whose command had this much time left at its exit.
    async fn cut_after(left: Duration) -> Duration {
        let begun = Instant::now();
        let process = Noisy::default();
        cut_output(&process, DRAIN, begun.checked_add(left)).await;
        assert_eq!(process.deleted.load(Ordering::Relaxed), 1);
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn children_that_never_pause_are_cut_off_at_the_deadline_but_not_before_the_drain_time() {
        assert_eq!(
            cut_after(Duration::from_secs(60)).await,
            Duration::from_secs(60) + CUT_PATIENCE
        );
        assert_eq!(
            cut_after(Duration::from_secs(1)).await,
            DRAIN + CUT_PATIENCE
        );
    }
}
