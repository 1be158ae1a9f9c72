//! Threads for file system calls on host paths. Such a call can hang for ever on a dead network file system
//! and then occupies a thread that cannot be ended, so the number of these threads is bounded.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::error::{Error, Result};

/// How long one job may take.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A bounded pool of blocking threads for jobs on host paths.
#[derive(Debug)]
pub struct BlockingPool {
    threads: Arc<Semaphore>,
    /// Jobs that exceeded the limit, by the object they were for; an entry stays alive until the job's thread
    /// returns.
    timed_out: Mutex<HashMap<String, Weak<()>>>,
    limit: Duration,
}

impl BlockingPool {
    /// A pool of at most `threads` threads; each job may take `limit`.
    #[must_use]
    pub fn new(threads: usize, limit: Duration) -> Self {
        Self { threads: Arc::new(Semaphore::new(threads)), timed_out: Mutex::default(), limit }
    }

    /// Runs `job` on a thread of the pool, on behalf of `object`, for example `sandbox 3f…`.
    /// Cancel-safe; the thread continues until the file system answers.
    ///
    /// # Errors
    /// `Unavailable` if the job takes longer than the limit, and immediately while a timed-out job of the
    /// same `object` has not returned: repeated requests for one object thus block one thread only. Otherwise
    /// the errors of `job`.
    pub async fn run<T: Send + 'static>(
        &self,
        object: String,
        job: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if self.is_hung(&object) {
            return Err(Error::unavailable(format!(
                "a host file system that {object} needs still hangs: check its host paths"
            )));
        }
        let returned = Arc::new(());
        let returns = Arc::downgrade(&returned);
        let running = async {
            let permit = Arc::clone(&self.threads).acquire_owned().await;
            let permit = permit
                .map_err(|closed| Error::internal("wait for a thread for host paths").with_source(closed))?;
            let running = tokio::task::spawn_blocking(move || {
                let _until_it_returns = (returned, permit);
                job()
            });
            running.await.unwrap_or_else(|fault| {
                Err(Error::internal("the thread for host paths panicked or was aborted").with_source(fault))
            })
        };
        match tokio::time::timeout(self.limit, running).await {
            Ok(answer) => answer,
            Err(_) => {
                let mut timed_out = self.timed_out.lock();
                timed_out.retain(|_, returns| returns.strong_count() > 0);
                let error = Error::unavailable(format!(
                    "the host paths of {object} could not be accessed within {:?}: does a file system hang?",
                    self.limit
                ));
                timed_out.insert(object, returns);
                Err(error)
            }
        }
    }

    fn is_hung(&self, object: &str) -> bool {
        let timed_out = self.timed_out.lock();
        timed_out.get(object).is_some_and(|returns| returns.strong_count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::ErrorKind;

    #[tokio::test]
    async fn hung_file_system_blocks_one_thread_per_object_within_the_pool_limit() {
        let pool = BlockingPool::new(2, Duration::from_millis(50));
        let [dead, other, third] = ["dead", "other", "third"].map(|name| move || format!("sandbox {name}"));
        let hang = || {
            let (answers, answer) = mpsc::channel::<()>();
            (answers, move || answer.recv().map_err(|_| Error::internal("it answers")))
        };
        let (answers, look) = hang();
        let error = pool.run(dead(), look).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let error = pool.run(dead(), || Ok(())).await.unwrap_err();
        assert!(error.report().contains("still hangs"), "{}", error.report());
        pool.run(other(), || Ok(())).await.unwrap();

        let (more_answers, look) = hang();
        pool.run(other(), look).await.unwrap_err();
        let error = pool.run(third(), || Ok(())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "the pool has no thread left");

        drop((answers, more_answers));
        let all = pool.threads.acquire_many(2).await.unwrap();
        drop(all);
        for whose in [dead(), other(), third()] {
            pool.run(whose, || Ok(())).await.unwrap();
        }
    }
}
