//! Looks at paths of the host, which a dead network file system may hold up for ever, and with each a thread that nothing can end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use switchyard_core::id::SandboxId;
use switchyard_core::{Error, Result};
use tokio::sync::Semaphore;

use crate::text::blocking;

/// How long the host's file systems may take to be looked at.
const LIMIT: Duration = Duration::from_secs(30);
/// How many threads may look at a time: a half of those that the daemon has, so that the rest of it goes on.
const THREADS: usize = 32;

/// The looks that go on.
#[derive(Debug)]
pub(crate) struct Looks {
    threads: Arc<Semaphore>,
    /// The looks that were given up; each is there until its thread returns.
    given_up: Mutex<HashMap<SandboxId, Weak<()>>>,
    limit: Duration,
}

impl Default for Looks {
    fn default() -> Self {
        Self::new(THREADS, LIMIT)
    }
}

impl Looks {
    fn new(threads: usize, limit: Duration) -> Self {
        Self { threads: Arc::new(Semaphore::new(threads)), given_up: Mutex::default(), limit }
    }

    /// Has a thread look at the host for a sandbox. Cancel-safe; the thread goes on until the host answers.
    ///
    /// # Errors
    /// `Unavailable` if it takes too long, and at once while such a look of the same sandbox has not returned: who asks again and again
    /// takes one thread. What `look` gives.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        sandbox: SandboxId,
        look: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if self.hangs(sandbox) {
            return Err(Error::unavailable(format!(
                "a file system of the host that sandbox {sandbox} mounts still hangs: look at its host paths"
            )));
        }
        let returned = Arc::new(());
        let returns = Arc::downgrade(&returned);
        let looking = async {
            let turn = Arc::clone(&self.threads).acquire_owned().await;
            let turn = turn.map_err(|closed| Error::internal("look at the host").with_source(closed))?;
            blocking(move || {
                let _until_it_returns = (returned, turn);
                look()
            })
            .await
        };
        match tokio::time::timeout(self.limit, looking).await {
            Ok(answer) => answer,
            Err(_) => {
                let mut given_up = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
                given_up.retain(|_, returns| returns.strong_count() > 0);
                given_up.insert(sandbox, returns);
                Err(Error::unavailable(format!(
                    "the host paths of sandbox {sandbox} could not be looked at within {:?}: does a file system hang?",
                    self.limit
                )))
            }
        }
    }

    fn hangs(&self, sandbox: SandboxId) -> bool {
        let given_up = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        given_up.get(&sandbox).is_some_and(|returns| returns.strong_count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use switchyard_core::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn a_file_system_that_hangs_costs_one_thread_of_a_sandbox_and_no_more_than_the_half_of_all() {
        let looks = Looks::new(2, Duration::from_millis(50));
        let [dead, other, third] = [(); 3].map(|()| SandboxId::random());
        let hang = || {
            let (answers, answer) = mpsc::channel::<()>();
            (answers, move || answer.recv().map_err(|_| Error::internal("it answers")))
        };
        let (answers, look) = hang();
        let error = looks.look(dead, look).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let error = looks.look(dead, || Ok(())).await.unwrap_err();
        assert!(error.report().contains("still hangs"), "{}", error.report());
        looks.look(other, || Ok(())).await.unwrap();

        let (more_answers, look) = hang();
        looks.look(other, look).await.unwrap_err();
        let error = looks.look(third, || Ok(())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "no thread is left for it");

        drop((answers, more_answers));
        let all = looks.threads.acquire_many(2).await.unwrap();
        drop(all);
        for sandbox in [dead, other, third] {
            looks.look(sandbox, || Ok(())).await.unwrap();
        }
    }
}
