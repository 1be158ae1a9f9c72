//! Counts of ended image pulls, by result.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::error::{Error, ErrorKind, Result};

/// The number of pulls that ended since the gateway was made, by result: `ok`, or the kind of error as
/// [`ErrorKind::as_str`] names it.
pub type PullsByResult = BTreeMap<&'static str, u64>;

/// Counts the pulls of all owners.
#[derive(Debug, Default)]
pub(super) struct PullCounts(Mutex<PullsByResult>);

/// Counts one pull when it is dropped.
struct PullGuard<'c> {
    counts: &'c PullCounts,
    result: &'static str,
}

// === impl PullCounts ===

impl PullCounts {
    /// Runs a pull and counts it. A pull whose future is dropped before its end counts as cancelled.
    pub(super) async fn count<T>(&self, pull: impl Future<Output = Result<T>>) -> Result<T> {
        let mut guard = PullGuard {
            counts: self,
            result: ErrorKind::Cancelled.as_str(),
        };
        let pulled = pull.await;
        guard.result = pulled
            .as_ref()
            .map_or_else(|error: &Error| error.kind().as_str(), |_| "ok");
        pulled
    }

    pub(super) fn current(&self) -> PullsByResult {
        self.0.lock().clone()
    }
}

// === impl PullGuard ===

impl Drop for PullGuard<'_> {
    fn drop(&mut self) {
        *self.counts.0.lock().entry(self.result).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_pull_counts_once_by_result_and_dropped_ones_as_cancelled() {
        let counts = PullCounts::default();
        counts.count(async { Ok(()) }).await.unwrap();
        counts.count(async { Ok(()) }).await.unwrap();
        let missing = counts.count(async { Err::<(), _>(Error::not_found("no such image")) });
        missing.await.unwrap_err();
        {
            let mut endless = Box::pin(counts.count(std::future::pending::<Result<()>>()));
            assert!(futures::poll!(&mut endless).is_pending());
        }
        assert_eq!(
            counts.current(),
            BTreeMap::from([("cancelled", 1), ("not_found", 1), ("ok", 2)])
        );
    }
}
