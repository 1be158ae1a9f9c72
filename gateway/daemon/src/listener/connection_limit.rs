//! How many connections a socket serves at once.
//!
//! Whoever may connect is as good as root. The limit is for clients that go wrong: one that opens connections and forgets them takes
//! files and memory of the daemon, but neither all there are nor the kubelet's place.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long refusals are not logged after one that was.
const QUIET: Duration = Duration::from_secs(60);

/// The places of one socket. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct ConnectionLimiter {
    limit: usize,
    /// The key of the configuration that says the limit.
    key: &'static str,
    open: Arc<Mutex<OpenConnections>>,
}

/// A connection's place, given back when it is dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    open: Arc<Mutex<OpenConnections>>,
    process: Option<i32>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    total: usize,
    by_process: HashMap<Option<i32>, usize>,
    logged: Option<Instant>,
}

// === impl Places ===

impl ConnectionLimiter {
    pub(super) fn new(limit: usize, key: &'static str) -> Self {
        Self { limit, key, open: Arc::default() }
    }

    /// A place for a connection of this process, if there is one; at most half of them are for one process. Logs that there is none, once
    /// a minute.
    pub(super) fn acquire(&self, process: Option<i32>) -> Option<ConnectionPermit> {
        let mut taken = lock(&self.open);
        let all = taken.total;
        let of = taken.by_process.get(&process).copied().unwrap_or_default();
        let share = self.limit.div_ceil(2);
        if all < self.limit && of < share {
            taken.total += 1;
            taken.by_process.insert(process, of + 1);
            return Some(ConnectionPermit { open: Arc::clone(&self.open), process });
        }
        if taken.logged.is_none_or(|logged| logged.elapsed() >= QUIET) {
            taken.logged = Some(Instant::now());
            let limit = self.limit;
            let key = self.key;
            tracing::warn!(
                pid = process,
                open = all,
                of_this_process = of,
                "a connection is refused: {key} allows {limit} at once, and {share} to one process"
            );
        }
        None
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = lock(&self.open);
        taken.total -= 1;
        if let Some(of) = taken.by_process.get_mut(&self.process) {
            *of -= 1;
            if *of == 0 {
                taken.by_process.remove(&self.process);
            }
        }
    }
}

fn lock(taken: &Mutex<OpenConnections>) -> std::sync::MutexGuard<'_, OpenConnections> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_gets_half_of_the_places_and_all_together_no_more_than_there_are() {
        let places = ConnectionLimiter::new(5, "cri.max_connections");
        let take = |pid| places.acquire(Some(pid));
        let first: Vec<ConnectionPermit> = (0..3).map(|_| take(1).unwrap()).collect();
        assert!(take(1).is_none(), "the other places are for others");
        let second: Vec<ConnectionPermit> = (0..2).map(|_| take(2).unwrap()).collect();
        assert!(take(3).is_none(), "all are taken");
        drop(first);
        assert!(take(3).is_some() && take(1).is_some());
        drop(second);
        assert_eq!(lock(&places.open).total, 0);
        assert!(lock(&places.open).by_process.is_empty(), "who has gone is forgotten");
    }

    #[test]
    fn a_single_place_can_be_had() {
        let places = ConnectionLimiter::new(1, "cri.max_connections");
        let place = places.acquire(None).unwrap();
        assert!(places.acquire(None).is_none());
        drop(place);
        assert!(places.acquire(None).is_some());
    }
}
