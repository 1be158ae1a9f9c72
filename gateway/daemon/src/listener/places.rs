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
pub(super) struct Places {
    limit: usize,
    /// The key of the configuration that says the limit.
    key: &'static str,
    taken: Arc<Mutex<Taken>>,
}

/// A connection's place, given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    taken: Arc<Mutex<Taken>>,
    process: Option<i32>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    of: HashMap<Option<i32>, usize>,
    logged: Option<Instant>,
}

// === impl Places ===

impl Places {
    pub(super) fn new(limit: usize, key: &'static str) -> Self {
        Self { limit, key, taken: Arc::default() }
    }

    /// A place for a connection of this process, if there is one; at most half of them are for one process. Logs that there is none, once
    /// a minute.
    pub(super) fn take(&self, process: Option<i32>) -> Option<Place> {
        let mut taken = lock(&self.taken);
        let all = taken.all;
        let of = taken.of.get(&process).copied().unwrap_or_default();
        let share = self.limit.div_ceil(2);
        if all < self.limit && of < share {
            taken.all += 1;
            taken.of.insert(process, of + 1);
            return Some(Place { taken: Arc::clone(&self.taken), process });
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

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        taken.all -= 1;
        if let Some(of) = taken.of.get_mut(&self.process) {
            *of -= 1;
            if *of == 0 {
                taken.of.remove(&self.process);
            }
        }
    }
}

fn lock(taken: &Mutex<Taken>) -> std::sync::MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_gets_half_of_the_places_and_all_together_no_more_than_there_are() {
        let places = Places::new(5, "cri.max_connections");
        let take = |pid| places.take(Some(pid));
        let first: Vec<Place> = (0..3).map(|_| take(1).unwrap()).collect();
        assert!(take(1).is_none(), "the other places are for others");
        let second: Vec<Place> = (0..2).map(|_| take(2).unwrap()).collect();
        assert!(take(3).is_none(), "all are taken");
        drop(first);
        assert!(take(3).is_some() && take(1).is_some());
        drop(second);
        assert_eq!(lock(&places.taken).all, 0);
        assert!(lock(&places.taken).of.is_empty(), "who has gone is forgotten");
    }

    #[test]
    fn a_single_place_can_be_had() {
        let places = Places::new(1, "cri.max_connections");
        let place = places.take(None).unwrap();
        assert!(places.take(None).is_none());
        drop(place);
        assert!(places.take(None).is_some());
    }
}
