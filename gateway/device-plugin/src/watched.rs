//! The streams of ListAndWatch: whether a kubelet has one, whether it was told the devices, and when it ends.

use std::sync::Arc;

use tokio::sync::watch;

/// The streams of one endpoint. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Streams(Arc<watch::Sender<Counts>>);

/// A stream that is open, until it is dropped.
#[derive(Debug)]
pub(crate) struct Open(Streams);

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// Opened since the endpoint was made.
    opened: u64,
    /// Open now.
    open: u64,
    /// All devices were told on one of them.
    told: bool,
}

// === impl Streams ===

impl Streams {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Counts::default())))
    }

    /// A further stream.
    pub(crate) fn open(&self) -> Open {
        self.0.send_modify(|counts| {
            counts.opened += 1;
            counts.open += 1;
        });
        Open(self.clone())
    }

    /// Returns once there has been one. Cancel-safe.
    pub(crate) async fn opened(&self) {
        self.until(|counts| counts.opened > 0).await;
    }

    /// Returns once the devices were told on one, or there was one that has ended. Cancel-safe.
    pub(crate) async fn told(&self) {
        self.until(|counts| counts.told || (counts.opened > 0 && counts.open == 0)).await;
    }

    /// Returns once none is open. Cancel-safe.
    pub(crate) async fn ended(&self) {
        self.until(|counts| counts.open == 0).await;
    }

    async fn until(&self, condition: impl FnMut(&Counts) -> bool) {
        // The sender lives as long as we do.
        let _ = self.0.subscribe().wait_for(condition).await;
    }
}

// === impl Open ===

impl Open {
    /// The first message was taken to be sent. Idempotent.
    pub(crate) fn tell(&self) {
        self.0.0.send_if_modified(|counts| !std::mem::replace(&mut counts.told, true));
    }
}

impl Drop for Open {
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
        assert_eq!(streams.opened().now_or_never(), None);
        let first = streams.open();
        let second = streams.open();
        assert_eq!(streams.opened().now_or_never(), Some(()));
        assert_eq!(streams.told().now_or_never(), None);
        second.tell();
        assert_eq!(streams.told().now_or_never(), Some(()));
        drop(first);
        assert_eq!(streams.ended().now_or_never(), None);
        drop(second);
        assert_eq!(streams.ended().now_or_never(), Some(()));
    }

    #[test]
    fn a_stream_that_breaks_off_before_it_is_told_is_not_waited_for() {
        let streams = Streams::new();
        drop(streams.open());
        assert_eq!((streams.told().now_or_never(), streams.ended().now_or_never()), (Some(()), Some(())));
    }
}
