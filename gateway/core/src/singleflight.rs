//! Concurrent callers of one operation share a single run of it.
//!
//! The first caller under a key starts the work as a spawned task, which continues if that caller goes away.
//! Callers that arrive while it runs wait for the same result, and the work can ask whether any of them still
//! does. When it is done the key is free again; a created object is then in the table under its name, where a
//! late retry finds it.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt, Shared};
use parking_lot::{Mutex, MutexGuard};
use tokio_util::task::TaskTracker;

use crate::error::{Error, Result};
use crate::operation;
use crate::waiters::Waiters;

type SharedResult<T> = Shared<BoxFuture<'static, Result<T>>>;

/// Operations in flight, by key. `T` is what each caller gets a clone of.
pub struct Singleflight<K, T> {
    in_flight: Arc<Mutex<HashMap<K, InFlight<T>>>>,
    tracker: TaskTracker,
}

struct InFlight<T> {
    request: Vec<u8>,
    result: SharedResult<T>,
    waiters: Waiters,
}

/// The decision for a caller; evaluated while no operation can begin or end under the same key.
#[derive(Debug)]
pub enum Decision<T> {
    /// Return this result; start nothing.
    Answer(Result<T>),
    /// Start the operation.
    Begin,
}

impl<K, T> fmt::Debug for Singleflight<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in flight", self.lock().len())
    }
}

impl<K, T> Singleflight<K, T> {
    /// Without operations; the work is spawned on `tracker`.
    #[must_use]
    pub fn new(tracker: TaskTracker) -> Self {
        Self {
            in_flight: Arc::default(),
            tracker,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, InFlight<T>>> {
        self.in_flight.lock()
    }
}

impl<K, T> Singleflight<K, T>
where
    K: Eq + Hash + Clone + Send + fmt::Display + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// Joins the operation under `key` if one is in flight; otherwise calls `decide`, and starts `work` if it
    /// returns [`Decision::Begin`].
    ///
    /// Two requests under one key are the same request if their `request` bytes are equal. Cancel-safe: the
    /// work continues.
    ///
    /// # Errors
    /// `AlreadyExists` if a different request is in flight under this key; otherwise the result of the work.
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
        self.run_watched(key, request, decide, |_| work()).await
    }

    /// As [`Singleflight::run`], for work that acts on whether its callers still wait: it is given them. Only
    /// callers of this operation count, not those that wait for its end to do something else.
    ///
    /// # Errors
    /// Those of [`Singleflight::run`].
    pub async fn run_watched<F>(
        &self,
        key: K,
        request: &[u8],
        decide: impl FnOnce() -> Decision<T>,
        work: impl FnOnce(Waiters) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (result, _waiter) = {
            let mut in_flight = self.lock();
            if let Some(flight) = in_flight.get(&key) {
                if flight.request != request {
                    return Err(Error::already_exists(format!(
                        "{key} is being made with another configuration"
                    )));
                }
                (flight.result.clone(), flight.waiters.join())
            } else {
                match decide() {
                    Decision::Answer(answer) => return answer,
                    Decision::Begin => {}
                }
                let waiters = Waiters::default();
                // Before the work begins: it must never see itself without callers.
                let waiter = waiters.join();
                let result = self.spawn(key.clone(), work(waiters.clone()));
                let flight = InFlight {
                    request: request.to_vec(),
                    result: result.clone(),
                    waiters,
                };
                in_flight.insert(key, flight);
                (result, waiter)
            }
        };
        result.await
    }

    /// Waits for the operation under `key`, if one is in flight. Cancel-safe.
    pub async fn wait_finished(&self, key: &K) {
        let flight = self.lock().get(key).map(|flight| flight.result.clone());
        if let Some(result) = flight {
            // The caller that started the operation gets the error.
            let _ = result.await;
        }
    }

    /// Waits for all operations that are in flight now and whose key `matches`. Cancel-safe.
    pub async fn wait_matching(&self, matches: impl Fn(&K) -> bool) {
        let results: Vec<_> = self
            .lock()
            .iter()
            .filter(|(key, _)| matches(key))
            .map(|(_, flight)| flight.result.clone())
            .collect();
        futures::future::join_all(results).await;
    }

    fn spawn<F>(&self, key: K, work: F) -> SharedResult<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let in_flight = Arc::clone(&self.in_flight);
        let name = key.to_string();
        let handle = self.tracker.spawn(operation::inherit(async move {
            // The guard frees the key also if the work panics.
            let _guard = InFlightGuard { in_flight, key };
            work.await
        }));
        async move {
            handle.await.unwrap_or_else(|fault| {
                Err(
                    Error::internal(format!("{name}: the operation panicked or was aborted"))
                        .with_source(fault),
                )
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
        self.in_flight.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests;
