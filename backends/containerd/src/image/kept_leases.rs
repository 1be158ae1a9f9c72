//! Leases of pulls that a predecessor did not complete. They hold what has arrived, so that the next pull of the same image
//! continues where the last one was. They end with that pull, with the removal of any image, since somebody needs the
//! space then, and after [`KEPT`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use containerd_client::services::v1 as api;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The label of a lease by which a successor recognizes what is pulled under it.
pub(super) const PULL: &str = "switchyard.io/pull";

/// Time for which such a lease is kept: callers repeat a pull within minutes.
const KEPT: Duration = Duration::from_secs(3600);

/// The longest age of a lease that is kept at a start, in seconds, so that one which is never used ends although the
/// daemon is restarted again and again. A clock that was wrong makes a pull begin again, and nothing else.
const OLDEST: i64 = 24 * 3600;

/// The leases that are kept, by their ids. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct KeptLeases {
    by_id: Arc<Mutex<BTreeMap<String, KeptLease>>>,
}

#[derive(Debug)]
struct KeptLease {
    pull: String,
    end: Instant,
}

// === impl KeptLeases ===

impl KeptLeases {
    /// Keeps a lease for the pull that it is of. Idempotent.
    pub(super) fn keep(&self, id: String, pull: String) {
        let end = Instant::now() + KEPT;
        self.by_id.lock().insert(id, KeptLease { pull, end });
    }

    /// Takes those of a pull that is complete.
    pub(super) fn take_of(&self, pull: &str) -> Vec<String> {
        self.take(|kept| kept.pull == pull)
    }

    /// Takes those whose time is over.
    pub(super) fn take_expired(&self) -> Vec<String> {
        let now = Instant::now();
        self.take(|kept| kept.end <= now)
    }

    /// Takes all.
    pub(super) fn take_all(&self) -> Vec<String> {
        self.take(|_| true)
    }

    fn take(&self, ends: impl Fn(&KeptLease) -> bool) -> Vec<String> {
        let mut ended = Vec::new();
        self.by_id.lock().retain(|id, kept| {
            let ends = ends(kept);
            if ends {
                ended.push(id.clone());
            }
            !ends
        });
        ended
    }
}

/// The pull for which the lease of a predecessor is kept at this time, in seconds since 1970; `None` if the lease is to be
/// deleted. Pure.
pub(super) fn resumable_pull(lease: &api::Lease, now: i64) -> Option<&str> {
    let created = lease.created_at.as_ref()?.seconds;
    let is_recent = (0..OLDEST).contains(&now.saturating_sub(created));
    let pull = lease.labels.get(PULL)?;
    is_recent.then_some(pull.as_str())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn lease_of_a_recent_pull_is_resumable() {
        let lease = |created: Option<i64>, label: &str| api::Lease {
            id: "l".into(),
            created_at: created.map(|seconds| prost_types::Timestamp { seconds, nanos: 0 }),
            labels: HashMap::from([(label.to_owned(), "p".to_owned())]),
        };
        let now = 1_000_000;
        assert_eq!(resumable_pull(&lease(Some(now), PULL), now), Some("p"));
        let oldest = now - OLDEST + 1;
        assert_eq!(resumable_pull(&lease(Some(oldest), PULL), now), Some("p"));
        for (created, label) in [
            (Some(now - OLDEST), PULL),
            // From a clock that was ahead.
            (Some(now + 1), PULL),
            (None, PULL),
            (Some(now), "other"),
        ] {
            assert_eq!(
                resumable_pull(&lease(created, label), now),
                None,
                "{created:?} {label}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn kept_leases_end_with_their_pull_and_with_their_time() {
        let kept = KeptLeases::default();
        kept.keep("a".into(), "one".into());
        kept.keep("b".into(), "two".into());
        kept.keep("b".into(), "two".into());
        assert!(kept.take_expired().is_empty());
        assert_eq!(kept.take_of("two"), ["b"]);
        assert!(kept.take_of("two").is_empty());
        tokio::time::advance(KEPT).await;
        kept.keep("c".into(), "one".into());
        assert_eq!(kept.take_expired(), ["a"]);
        assert_eq!(kept.take_all(), ["c"]);
        assert!(kept.take_all().is_empty());
    }
}
