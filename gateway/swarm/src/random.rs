//! Chance, for decisions that many nodes must not take alike.

use std::time::Duration;

/// A random number. If the system gives none, nodes decide alike, which is no fault of this node's.
pub(crate) fn number() -> u64 {
    let mut bytes = [0; 8];
    if let Err(error) = getrandom::fill(&mut bytes) {
        tracing::warn!(%error, "the system gives no random numbers");
    }
    u64::from_le_bytes(bytes)
}

/// A time below `limit`, chosen by `random`.
pub(crate) fn below(limit: Duration, random: u64) -> Duration {
    let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(random.checked_rem(millis).unwrap_or(0))
}
