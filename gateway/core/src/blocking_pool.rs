//! Threads for file system calls on host paths. Such a call can hang for ever on a dead network file system
//! and then occupies a thread that cannot be ended, so the number of these threads is bounded, and each owner has its
//! own.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use switchyard_linux::blocking;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::{Error, Result};
use crate::id::Owner;

/// Limit for one job.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Maximum number of objects that an error names whose jobs occupy the threads.
const NAMED: usize = 3;

/// A bounded pool of blocking threads for jobs on host paths.
#[derive(Debug)]
pub struct BlockingPool {
    threads: Arc<Semaphore>,
    size: usize,
    /// The jobs that run: at most one for each thread.
    jobs: Mutex<Vec<Job>>,
    limit: Duration,
}

/// A pool for each owner, so that a file system that hangs stops no other owner.
#[derive(Debug)]
pub struct OwnerPools(BTreeMap<Owner, BlockingPool>);

/// A job, from its begin until its thread returns.
#[derive(Debug)]
struct Job {
    /// The object that it is for.
    object: String,
    began: Instant,
    /// Alive until the thread returns.
    returned: Weak<()>,
}

// === impl Job ===

impl Job {
    /// Returns whether it has run for longer than `limit`.
    fn hangs(&self, now: Instant, limit: Duration) -> bool {
        self.returned.strong_count() > 0 && self.began + limit <= now
    }
}

// === impl OwnerPools ===

impl OwnerPools {
    /// Pools of at most `threads` threads each; each job may take `limit`.
    #[must_use]
    pub fn new(threads: usize, limit: Duration) -> Self {
        Self(
            Owner::ALL
                .into_iter()
                .map(|owner| (owner, BlockingPool::new(threads, limit)))
                .collect(),
        )
    }

    /// The pool of an owner.
    #[must_use]
    pub fn of(&self, owner: Owner) -> &BlockingPool {
        self.0
            .get(&owner)
            .expect("there is one for each of all owners")
    }
}

// === impl BlockingPool ===

impl BlockingPool {
    /// A pool of at most `threads` threads; each job may take `limit`.
    #[must_use]
    pub fn new(threads: usize, limit: Duration) -> Self {
        Self {
            threads: Arc::new(Semaphore::new(threads)),
            size: threads,
            jobs: Mutex::default(),
            limit,
        }
    }

    /// Runs `job` on a thread of the pool, on behalf of `object`, for example `sandbox 3f…`.
    /// Cancel-safe; the thread continues until the file system answers.
    ///
    /// # Errors
    /// `Unavailable` if no thread becomes free, or the job does not end, within the limit; and immediately while a job
    /// of the same `object` hangs, so that repeated requests for one object block one thread only, or while all
    /// threads do. Otherwise the errors of `job`.
    pub async fn run<T: Send + 'static>(
        &self,
        object: String,
        job: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = self.thread_for(&object).await?;
        let returned = Arc::new(());
        self.jobs.lock().push(Job {
            object: object.clone(),
            began: Instant::now(),
            returned: Arc::downgrade(&returned),
        });
        let running = blocking("the thread for host paths", move || {
            // Moved into the job: a caller that goes away or times out does not free a thread that still
            // hangs.
            let _until_it_returns = (returned, permit);
            job()
        });
        match timeout(self.limit, running).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::unavailable(format!(
                "the host paths of {object} could not be accessed within {:?}: does a file system hang?",
                self.limit
            ))),
        }
    }

    /// Returns whether a job of this object has not ended within the limit, and runs still.
    #[must_use]
    pub fn hangs(&self, object: &str) -> bool {
        let now = Instant::now();
        let jobs = self.jobs.lock();
        jobs.iter()
            .any(|job| job.object == object && job.hangs(now, self.limit))
    }

    /// Waits for a thread, while it is possible that one becomes free. Cancel-safe.
    async fn thread_for(&self, object: &str) -> Result<OwnedSemaphorePermit> {
        let give_up = Instant::now() + self.limit;
        let mut thread = pin!(Arc::clone(&self.threads).acquire_owned());
        loop {
            let look_again = self.check(object)?.unwrap_or(give_up).min(give_up);
            tokio::select! {
                // A thread that has become free takes precedence over the time limit.
                biased;
                thread = &mut thread => return thread.map_err(|closed| {
                    Error::internal("wait for a thread for host paths").with_source(closed)
                }),
                () = sleep_until(look_again) => {}
            }
            if Instant::now() >= give_up {
                self.check(object)?;
                return Err(Error::unavailable(format!(
                    "no thread became free within {:?} for the host paths of {object}: {} take long",
                    self.limit,
                    named(&self.jobs.lock())
                )));
            }
        }
    }

    /// Refuses a job that would only wait for one that hangs; returns when the next of the running jobs will count as
    /// hanging.
    fn check(&self, object: &str) -> Result<Option<Instant>> {
        let mut jobs = self.jobs.lock();
        // Threads that have returned since the last check.
        jobs.retain(|job| job.returned.strong_count() > 0);
        let now = Instant::now();
        let hangs = |job: &&Job| job.hangs(now, self.limit);
        if jobs.iter().filter(hangs).any(|job| job.object == object) {
            return Err(Error::unavailable(format!(
                "a host file system that {object} needs still hangs: check its host paths"
            )));
        }
        if jobs.iter().filter(hangs).count() >= self.size {
            return Err(Error::unavailable(format!(
                "no thread is left for the host paths of {object}: those of {} do not answer; does a file system hang?",
                named(&jobs)
            )));
        }
        Ok(jobs
            .iter()
            .filter(|job| !hangs(job))
            .map(|job| job.began + self.limit)
            .min())
    }
}

/// The objects of these jobs, as far as an error names them.
fn named(jobs: &[Job]) -> String {
    let mut objects: Vec<&str> = jobs.iter().map(|job| job.object.as_str()).collect();
    objects.sort_unstable();
    objects.dedup();
    let more = objects.len().saturating_sub(NAMED);
    let first = objects[..objects.len() - more].join(", ");
    if more == 0 {
        first
    } else {
        format!("{first} and {more} more")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::poll;

    use super::*;
    use crate::ErrorKind;

    /// Limit for a job of a test.
    const SHORT: Duration = Duration::from_millis(50);

    /// A job that hangs until the sender is dropped.
    fn hung() -> (
        mpsc::Sender<()>,
        impl FnOnce() -> Result<()> + Send + 'static,
    ) {
        let (answers, answer) = mpsc::channel::<()>();
        (answers, move || {
            answer.recv().map_err(|_| Error::internal("it answers"))
        })
    }

    /// Waits until all threads of a pool have returned.
    async fn returned(pool: &BlockingPool) {
        let all = u32::try_from(pool.size).unwrap();
        drop(pool.threads.acquire_many(all).await.unwrap());
    }

    #[track_caller]
    fn assert_refused<T: std::fmt::Debug>(answer: Result<T>, why: &str) {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.report().contains(why), "{}", error.report());
    }

    #[tokio::test]
    async fn hung_file_system_blocks_one_thread_per_object_within_the_pool_limit() {
        let pool = BlockingPool::new(2, SHORT);
        let [dead, other, third] =
            ["dead", "other", "third"].map(|name| move || format!("sandbox {name}"));
        let (answers, look) = hung();
        assert_refused(pool.run(dead(), look).await, "does a file system hang?");
        assert_refused(pool.run(dead(), || Ok(())).await, "still hangs");
        assert!(pool.hangs(&dead()) && !pool.hangs(&other()));
        pool.run(other(), || Ok(())).await.unwrap();

        let (more_answers, look) = hung();
        assert_refused(pool.run(other(), look).await, "does a file system hang?");
        assert_refused(
            pool.run(third(), || Ok(())).await,
            "those of sandbox dead, sandbox other do not answer",
        );

        drop((answers, more_answers));
        returned(&pool).await;
        assert!(!pool.hangs(&dead()));
        for whose in [dead(), other(), third()] {
            pool.run(whose, || Ok(())).await.unwrap();
        }
    }

    #[tokio::test]
    async fn hung_file_system_of_one_owner_stops_no_other_owner() {
        let pools = OwnerPools::new(1, SHORT);
        let (answers, look) = hung();
        pools
            .of(Owner::Nomad)
            .run("task 1".into(), look)
            .await
            .unwrap_err();
        assert_refused(
            pools.of(Owner::Nomad).run("task 2".into(), || Ok(())).await,
            "task 1 do not answer",
        );
        for owner in [Owner::Kubernetes, Owner::Swarm, Owner::Host] {
            let done = async {
                // A busy machine may take longer for one than the pool allows.
                while pools
                    .of(owner)
                    .run("task 3".into(), || Ok(()))
                    .await
                    .is_err()
                {
                    // A pool that refuses at once would keep the timeout from being noticed.
                    tokio::task::yield_now().await;
                }
            };
            timeout(Duration::from_secs(60), done)
                .await
                .expect("its threads are free");
        }
        drop(answers);
    }

    #[tokio::test]
    async fn all_hung_jobs_of_an_object_are_remembered() {
        let pool = BlockingPool::new(3, SHORT);
        let (first_answers, first) = hung();
        let (second_answers, second) = hung();
        let object = || "sandbox".to_owned();
        let (first, second) = tokio::join!(pool.run(object(), first), pool.run(object(), second));
        assert!(first.is_err() && second.is_err());
        for answers in [second_answers, first_answers] {
            assert_refused(pool.run(object(), || Ok(())).await, "still hangs");
            let free = pool.threads.available_permits();
            drop(answers);
            // The thread returns soon after.
            while pool.threads.available_permits() == free {
                tokio::task::yield_now().await;
            }
        }
        pool.run(object(), || Ok(())).await.unwrap();
    }

    #[tokio::test]
    async fn hung_job_is_remembered_although_its_caller_has_gone() {
        let pool = BlockingPool::new(2, SHORT);
        let (answers, look) = hung();
        {
            let mut gone = pin!(pool.run("sandbox".into(), look));
            assert!(poll!(&mut gone).is_pending());
        }
        tokio::time::sleep(SHORT).await;
        assert_refused(pool.run("sandbox".into(), || Ok(())).await, "still hangs");
        drop(answers);
    }

    #[tokio::test]
    async fn waiting_job_is_refused_once_all_threads_hang() {
        let pool = BlockingPool::new(1, SHORT);
        let (answers, look) = hung();
        let (hangs, waits) = tokio::join!(
            pool.run("dead".into(), look),
            pool.run("other".into(), || Ok(()))
        );
        assert_refused(hangs, "does a file system hang?");
        assert_refused(waits, "those of dead do not answer");
        drop(answers);
    }
}
