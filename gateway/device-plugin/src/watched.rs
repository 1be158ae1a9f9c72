//! The streams of ListAndWatch: whether a kubelet has one, and when it ends.

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
    fn the_end_is_that_of_the_last_stream() {
        let streams = Streams::new();
        assert_eq!(streams.opened().now_or_never(), None);
        let (first, second) = (streams.open(), streams.open());
        assert_eq!(streams.opened().now_or_never(), Some(()));
        drop(first);
        assert_eq!(streams.ended().now_or_never(), None);
        drop(second);
        assert_eq!(streams.ended().now_or_never(), Some(()));
    }
}
