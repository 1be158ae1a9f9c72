//! Limits the concurrent connections of a socket.
//!
//! All clients that may connect can become root. The limit protects against faulty clients: one that opens
//! connections and forgets them uses files and memory of the daemon only up to the limit, and leaves
//! connections for the kubelet.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The minimum time between two log lines about refused connections.
const QUIET: Duration = Duration::from_secs(60);

/// The connection limit of one socket. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct ConnectionLimiter {
    limit: usize,
    /// The configuration key of the limit.
    key: &'static str,
    open: Arc<Mutex<OpenConnections>>,
}

/// The permit of one connection, returned when it is dropped.
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

// === impl ConnectionLimiter ===

impl ConnectionLimiter {
    pub(super) fn new(limit: usize, key: &'static str) -> Self {
        Self {
            limit,
            key,
            open: Arc::default(),
        }
    }

    /// A permit for a connection of this process; one process gets at most half of the limit. Logs a refusal
    /// at most once a minute.
    pub(super) fn acquire(&self, process: Option<i32>) -> Option<ConnectionPermit> {
        let mut taken = lock(&self.open);
        let all = taken.total;
        let of = taken.by_process.get(&process).copied().unwrap_or_default();
        let share = self.limit.div_ceil(2);
        if all < self.limit && of < share {
            taken.total += 1;
            taken.by_process.insert(process, of + 1);
            return Some(ConnectionPermit {
                open: Arc::clone(&self.open),
                process,
            });
        }
        let is_logged = taken.logged.is_none_or(|logged| logged.elapsed() >= QUIET);
        if is_logged {
            taken.logged = Some(Instant::now());
        }
        drop(taken);
        if is_logged {
            let limit = self.limit;
            let key = self.key;
            tracing::warn!(
                pid = process,
                open = all,
                of_this_process = of,
                "connection refused: {key} allows {limit} concurrent connections, and {share} of one process"
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

fn lock(taken: &Mutex<OpenConnections>) -> parking_lot::MutexGuard<'_, OpenConnections> {
    taken.lock()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_limit_gives_one_process_at_most_half() {
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
        assert!(
            lock(&places.open).by_process.is_empty(),
            "who has gone is forgotten"
        );
    }

    #[test]
    fn connection_limit_of_one_admits_one() {
        let places = ConnectionLimiter::new(1, "cri.max_connections");
        let place = places.acquire(None).unwrap();
        assert!(places.acquire(None).is_none());
        drop(place);
        assert!(places.acquire(None).is_some());
    }
}
