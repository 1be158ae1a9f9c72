//! Looks at paths of the host, which a dead network file system may hold up for ever, and with each a thread that nothing can end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::error::{Error, Result};

/// How long the host's file systems may take to be looked at.
pub const LIMIT: Duration = Duration::from_secs(30);

/// The looks that go on.
#[derive(Debug)]
pub struct BlockingPool {
    threads: Arc<Semaphore>,
    /// The looks that were given up, by whom they were for; each is there until its thread returns.
    timed_out: Mutex<HashMap<String, Weak<()>>>,
    limit: Duration,
}

impl BlockingPool {
    /// At most so many threads look at a time, and each look may take so long.
    #[must_use]
    pub fn new(threads: usize, limit: Duration) -> Self {
        Self { threads: Arc::new(Semaphore::new(threads)), timed_out: Mutex::default(), limit }
    }

    /// Has a thread look at the host for somebody, as `sandbox 3f…`. Cancel-safe; the thread goes on until the host answers.
    ///
    /// # Errors
    /// `Unavailable` if it takes too long, and at once while such a look for the same one has not returned: who asks again and again
    /// takes one thread. What `look` gives.
    pub async fn run<T: Send + 'static>(
        &self,
        whose: String,
        look: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if self.is_hung(&whose) {
            return Err(Error::unavailable(format!(
                "a file system of the host still hangs that {whose} needs: look at its host paths"
            )));
        }
        let returned = Arc::new(());
        let returns = Arc::downgrade(&returned);
        let looking = async {
            let turn = Arc::clone(&self.threads).acquire_owned().await;
            let turn = turn.map_err(|closed| Error::internal("look at the host").with_source(closed))?;
            let looking = tokio::task::spawn_blocking(move || {
                let _until_it_returns = (returned, turn);
                look()
            });
            looking.await.unwrap_or_else(|fault| {
                Err(Error::internal("a look at the host broke off").with_source(fault))
            })
        };
        match tokio::time::timeout(self.limit, looking).await {
            Ok(answer) => answer,
            Err(_) => {
                let mut given_up = self.timed_out.lock().unwrap_or_else(PoisonError::into_inner);
                given_up.retain(|_, returns| returns.strong_count() > 0);
                let error = Error::unavailable(format!(
                    "the host paths of {whose} could not be looked at within {:?}: does a file system hang?",
                    self.limit
                ));
                given_up.insert(whose, returns);
                Err(error)
            }
        }
    }

    fn is_hung(&self, whose: &str) -> bool {
        let given_up = self.timed_out.lock().unwrap_or_else(PoisonError::into_inner);
        given_up.get(whose).is_some_and(|returns| returns.strong_count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::ErrorKind;

    #[tokio::test]
    async fn a_file_system_that_hangs_costs_one_thread_of_whoever_looks_and_no_more_than_there_are() {
        let looks = BlockingPool::new(2, Duration::from_millis(50));
        let [dead, other, third] = ["dead", "other", "third"].map(|name| move || format!("sandbox {name}"));
        let hang = || {
            let (answers, answer) = mpsc::channel::<()>();
            (answers, move || answer.recv().map_err(|_| Error::internal("it answers")))
        };
        let (answers, look) = hang();
        let error = looks.run(dead(), look).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let error = looks.run(dead(), || Ok(())).await.unwrap_err();
        assert!(error.report().contains("still hangs"), "{}", error.report());
        looks.run(other(), || Ok(())).await.unwrap();

        let (more_answers, look) = hang();
        looks.run(other(), look).await.unwrap_err();
        let error = looks.run(third(), || Ok(())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "no thread is left for it");

        drop((answers, more_answers));
        let all = looks.threads.acquire_many(2).await.unwrap();
        drop(all);
        for whose in [dead(), other(), third()] {
            looks.run(whose, || Ok(())).await.unwrap();
        }
    }
}
