//! Operations that callers join instead of repeating.
//!
//! The first caller under a key starts the work as a task of its own: it goes on when that caller has gone. Everybody who comes
//! while it runs waits for the same result. Once it is done the key is free; for creations the object that was made stands in
//! the table under its name, and that is where a late retry finds it.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::{BoxFuture, FutureExt, Shared};
use tokio_util::task::TaskTracker;

use crate::error::{Error, Result};

type SharedResult<T> = Shared<BoxFuture<'static, Result<T>>>;

/// Operations in flight, by key. `T` is what each caller gets a clone of.
pub struct Singleflight<K, T> {
    in_flight: Arc<Mutex<HashMap<K, InFlight<T>>>>,
    tracker: TaskTracker,
}

struct InFlight<T> {
    request: Vec<u8>,
    result: SharedResult<T>,
}

/// What to do for a caller, decided while no operation can begin or end under the same key.
#[derive(Debug)]
pub enum Decision<T> {
    /// Give this result; nothing is to be done.
    Answer(Result<T>),
    /// Begin the operation.
    Begin,
}

impl<K, T> fmt::Debug for Singleflight<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in flight", self.lock().len())
    }
}

impl<K, T> Singleflight<K, T> {
    /// No flights; the work will be owned by `tracker`.
    #[must_use]
    pub fn new(tracker: TaskTracker) -> Self {
        Self { in_flight: Arc::default(), tracker }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, InFlight<T>>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, T> Singleflight<K, T>
where
    K: Eq + Hash + Clone + Send + fmt::Display + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// Joins the operation under `key` if one is in flight; else asks `decide`, and starts `work` if it says so.
    ///
    /// `request` are the bytes by which two requests under one key are told apart. Cancel-safe: the work goes on.
    ///
    /// # Errors
    /// `AlreadyExists` if another request is in flight under this key; else what the work gives.
    pub async fn run<F>(
        &self,
        key: K,
        request: &[u8],
        decide: impl FnOnce() -> Decision<T>,
        work: impl FnOnce() -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let result = {
            let mut flying = self.lock();
            if let Some(flight) = flying.get(&key) {
                if flight.request != request {
                    return Err(Error::already_exists(format!(
                        "{key} is being made with another configuration"
                    )));
                }
                flight.result.clone()
            } else {
                match decide() {
                    Decision::Answer(answer) => return answer,
                    Decision::Begin => {}
                }
                let result = self.spawn(key.clone(), work());
                flying.insert(key, InFlight { request: request.to_vec(), result: result.clone() });
                result
            }
        };
        result.await
    }

    /// Waits for the operation under `key`, if one is in flight. Cancel-safe.
    pub async fn wait_finished(&self, key: &K) {
        let flight = self.lock().get(key).map(|flight| flight.result.clone());
        if let Some(result) = flight {
            // Whoever started it hears of its failure.
            let _ = result.await;
        }
    }

    /// Waits for all operations that are in flight now and whose key `matches`. Cancel-safe.
    pub async fn wait_matching(&self, matches: impl Fn(&K) -> bool) {
        let flights: Vec<_> = self
            .lock()
            .iter()
            .filter(|(key, _)| matches(key))
            .map(|(_, flight)| flight.result.clone())
            .collect();
        futures::future::join_all(flights).await;
    }

    fn spawn<F>(&self, key: K, work: F) -> SharedResult<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let flying = Arc::clone(&self.in_flight);
        let name = key.to_string();
        let handle = self.tracker.spawn(async move {
            // The guard frees the key also if the work panics.
            let _landing = InFlightGuard { in_flight: flying, key };
            work.await
        });
        async move {
            handle.await.unwrap_or_else(|fault| {
                Err(Error::internal(format!("{name}: the operation broke off")).with_source(fault))
            })
        }
        .boxed()
        .shared()
    }
}

struct InFlightGuard<K: Eq + Hash, T> {
    in_flight: Arc<Mutex<HashMap<K, InFlight<T>>>>,
    key: K,
}

impl<K: Eq + Hash, T> Drop for InFlightGuard<K, T> {
    fn drop(&mut self) {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

#[cfg(test)]
mod tests;
