//! Tracks the ListAndWatch streams of an endpoint: whether one was opened, whether the devices were sent on
//! one, and whether all have ended.

use std::sync::Arc;

use tokio::sync::watch;

/// The streams of one endpoint. Clones share the state.
#[derive(Debug, Clone)]
pub(crate) struct Streams(Arc<watch::Sender<Counts>>);

/// Counts a stream as open until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenStream(Streams);

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// Number opened since the endpoint was created.
    opened: u64,
    /// Number of open ones.
    open: u64,
    /// True if all devices were sent on one of them.
    listed: bool,
}

// === impl Streams ===

impl Streams {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Counts::default())))
    }

    /// Counts a further stream.
    pub(crate) fn open(&self) -> OpenStream {
        self.0.send_modify(|counts| {
            counts.opened += 1;
            counts.open += 1;
        });
        OpenStream(self.clone())
    }

    /// Returns once a stream was opened. Cancel-safe.
    pub(crate) async fn wait_opened(&self) {
        self.wait_until(|counts| counts.opened > 0).await;
    }

    /// Returns once the devices were sent on a stream, or all opened streams have ended. Cancel-safe.
    pub(crate) async fn wait_listed(&self) {
        self.wait_until(|counts| counts.listed || (counts.opened > 0 && counts.open == 0))
            .await;
    }

    /// Returns once no stream is open. Cancel-safe.
    pub(crate) async fn wait_ended(&self) {
        self.wait_until(|counts| counts.open == 0).await;
    }

    async fn wait_until(&self, condition: impl FnMut(&Counts) -> bool) {
        // `self` holds the sender, so waiting cannot fail.
        let _ = self.0.subscribe().wait_for(condition).await;
    }
}

// === impl OpenStream ===

impl OpenStream {
    /// Notes that the transport has taken the first message. Idempotent.
    pub(crate) fn mark_listed(&self) {
        self.0
            .0
            .send_if_modified(|counts| !std::mem::replace(&mut counts.listed, true));
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.0.send_modify(|counts| counts.open -= 1);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn the_first_that_was_told_counts_and_the_end_of_the_last() {
        let streams = Streams::new();
        assert_eq!(streams.wait_opened().now_or_never(), None);
        let first = streams.open();
        let second = streams.open();
        assert_eq!(streams.wait_opened().now_or_never(), Some(()));
        assert_eq!(streams.wait_listed().now_or_never(), None);
        second.mark_listed();
        assert_eq!(streams.wait_listed().now_or_never(), Some(()));
        drop(first);
        assert_eq!(streams.wait_ended().now_or_never(), None);
        drop(second);
        assert_eq!(streams.wait_ended().now_or_never(), Some(()));
    }

    #[test]
    fn a_stream_that_breaks_off_before_it_is_told_is_not_waited_for() {
        let streams = Streams::new();
        drop(streams.open());
        assert_eq!(
            (
                streams.wait_listed().now_or_never(),
                streams.wait_ended().now_or_never()
            ),
            (Some(()), Some(()))
        );
    }
}
