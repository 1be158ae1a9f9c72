//! New ids of traces and spans.

use std::hash::{BuildHasher, RandomState};
use std::num::{NonZeroU64, NonZeroU128};
use std::sync::atomic::{AtomicU64, Ordering};

use super::context::{SpanId, TraceId};

/// Makes ids that nobody can foresee and that do not repeat: a counter, hashed with random keys of this process.
#[derive(Debug, Default)]
pub(super) struct Ids {
    keys: RandomState,
    next: AtomicU64,
}

impl Ids {
    pub(super) fn trace(&self) -> TraceId {
        let id = (u128::from(self.number()) << 64) | u128::from(self.number());
        TraceId(NonZeroU128::new(id).unwrap_or(NonZeroU128::MIN))
    }

    pub(super) fn span(&self) -> SpanId {
        SpanId(NonZeroU64::new(self.number()).unwrap_or(NonZeroU64::MIN))
    }

    fn number(&self) -> u64 {
        self.keys
            .hash_one(self.next.fetch_add(1, Ordering::Relaxed))
    }
}
