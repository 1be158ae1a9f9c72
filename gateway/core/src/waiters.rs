//! Counts the callers that wait for one piece of work, so that the work notices when all of them have gone
//! away.

use std::sync::Arc;

use tokio::sync::watch;

/// The callers that wait for one piece of work. Clones count the same callers.
#[derive(Debug, Clone, Default)]
pub struct Waiters {
    count: Arc<watch::Sender<usize>>,
}

/// One caller that waits, until it is dropped.
#[derive(Debug)]
pub struct Waiter {
    count: Arc<watch::Sender<usize>>,
}

impl Waiters {
    /// Counts one caller more, for as long as the returned value lives.
    #[must_use = "the caller counts only as long as this lives"]
    pub fn join(&self) -> Waiter {
        self.count.send_modify(|count| *count += 1);
        Waiter {
            count: Arc::clone(&self.count),
        }
    }

    /// Returns whether nobody waits at the moment. That may change: a caller can still join.
    #[must_use]
    pub fn are_gone(&self) -> bool {
        *self.count.borrow() == 0
    }

    /// Returns as soon as nobody waits. Cancel-safe.
    pub async fn gone(&self) {
        // The sender lives as long as `self`.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.count.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn work_is_told_when_its_last_caller_leaves() {
        let waiters = Waiters::default();
        let first = waiters.join();
        let second = waiters.join();
        let mut gone = pin!(waiters.gone());
        assert!(poll!(&mut gone).is_pending());
        drop(first);
        assert!(poll!(&mut gone).is_pending() && !waiters.are_gone());
        drop(second);
        gone.await;
        assert!(waiters.are_gone());
        let _again = waiters.join();
        assert!(!waiters.are_gone());
    }
}
