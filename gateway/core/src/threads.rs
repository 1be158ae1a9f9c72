//! The process's threads, and the division of those for blocking calls, so that slow calls never occupy all of them.
//!
//! The runtime has [`total`] such threads for the whole process. Bulk work (reading archives, filling
//! volumes, reading files of images, writing checkpoints, removing directory trees) and the
//! [pools](crate::blocking_pool) for host paths, whose file systems may hang for ever, have bounded shares,
//! those of host paths for each owner (ADR 66). The rest is left for short calls: records, mounts, cgroups,
//! status and cleanup.

use std::num::NonZero;
use std::thread::available_parallelism;

use switchyard_linux::blocking;
use tokio::sync::Semaphore;

use crate::error::{Error, Result};
use crate::id::Owner;

/// Threads for blocking calls in the whole process, on a node with few processors.
const TOTAL_MIN: usize = 159;

/// Threads for short calls for each processor, where that is more.
const SHORT_PER_PROCESSOR: usize = 4;

/// The most threads for short calls: further ones would wait for containerd and the kernel.
const SHORT_MAX: usize = 256;

/// Threads of the asynchronous runtime on a node with few processors: its tasks mostly wait, and each thread costs memory.
const WORKERS_MIN: usize = 2;

/// The processors for which there is one more.
const PROCESSORS_PER_WORKER: usize = 16;

/// The most threads of the asynchronous runtime.
const WORKERS_MAX: usize = 8;

/// The maximum that do bulk work at a time.
pub const BULK: usize = 16;

/// The maximum of each owner's pool of a backend ([`OwnerPools`](crate::blocking_pool::OwnerPools)).
pub const BACKEND_POOL: usize = 16;

/// The maximum of a frontend's [`BlockingPool`](crate::blocking_pool::BlockingPool).
pub const FRONTEND_POOL: usize = 8;

/// The maximum of each owner's pool that reads the ends of its logs for the status page.
pub const LOG_POOL: usize = 1;

/// The maximum of each [`BlockingPool`](crate::blocking_pool::BlockingPool) for files of the node that others write.
pub const FILES_POOL: usize = 1;

/// Number of these pools: for the daemon's configuration, the history, the programs that run, the networks of the node,
/// its resolver configuration, the hosts of registries, the join token of a swarm, the bundles of containerd, the network
/// journals of sandboxes, and the bridge of pods.
pub const FILES_POOLS: usize = 10;

/// The maximum that look at the disks of the daemon's own directories: one for each, and one for trees that were set aside
/// on them.
pub const DISK_POOL: usize = 4;

/// The maximum that look at the space of file systems with logs of containers.
pub const LOG_DISK_POOL: usize = 2;

/// The maximum that look up and start CNI plugins, and one that searches for their addresses.
pub const PLUGIN_POOL: usize = 5;

/// The maximum that look at processes which hold up an operation.
pub const BLOCKER_POOL: usize = 2;

/// The maximum that wait for the answers of file systems which such processes use: as many file systems may hang.
pub const ANSWER_POOL: usize = 4;

/// The minimum that is always left for short calls.
const SHORT_MIN: usize = TOTAL_MIN
    - BULK
    - (BACKEND_POOL + LOG_POOL) * Owner::ALL.len()
    - FRONTEND_POOL
    - FILES_POOLS * FILES_POOL
    - DISK_POOL
    - LOG_DISK_POOL
    - PLUGIN_POOL
    - BLOCKER_POOL
    - ANSWER_POOL;

const _: () = assert!(
    SHORT_MIN * 4 >= TOTAL_MIN,
    "a quarter is left to short calls"
);

static BULK_PERMITS: Semaphore = Semaphore::const_new(BULK);

/// The processors that this process may use; one if that is not known.
#[must_use]
pub fn processors() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// The threads of the asynchronous runtime on a node with this many processors (ADR 102). Pure.
#[must_use]
pub fn workers(processors: usize) -> usize {
    (WORKERS_MIN + processors / PROCESSORS_PER_WORKER).min(WORKERS_MAX)
}

/// The threads for blocking calls on a node with this many processors: only those for short calls become more (ADR 102).
/// Pure.
#[must_use]
pub fn total(processors: usize) -> usize {
    let short = processors.saturating_mul(SHORT_PER_PROCESSOR);
    TOTAL_MIN - SHORT_MIN + short.clamp(SHORT_MIN, SHORT_MAX)
}

/// Runs bulk work on a blocking thread, as soon as fewer than [`BULK`] other jobs run. If the future is
/// dropped before the work has begun, nothing runs; work that has begun continues to its end and holds its
/// permit until then.
///
/// # Errors
/// Those of `work`; `Internal` if it panics.
pub async fn bulk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let permit = BULK_PERMITS.acquire().await;
    let permit =
        permit.map_err(|closed| Error::internal("wait for a thread").with_source(closed))?;
    let working = move || {
        let _until_it_ends = permit;
        work()
    };
    blocking("a thread for bulk work", working).await
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn threads_grow_with_the_processors_up_to_a_limit() {
        for (processors, of_runtime, for_blocking) in [
            (1, 2, 159),
            (2, 2, 159),
            (10, 2, 159),
            (11, 2, 163),
            (16, 3, 183),
            (64, 6, 375),
            (96, 8, 375),
            (512, 8, 375),
            (usize::MAX, 8, 375),
        ] {
            assert_eq!(workers(processors), of_runtime, "{processors}");
            assert_eq!(total(processors), for_blocking, "{processors}");
        }
    }

    #[test]
    fn hung_bulk_work_leaves_threads_for_short_calls() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .max_blocking_threads(TOTAL_MIN)
            .enable_time()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut answers = Vec::new();
            let mut hanging = Vec::new();
            for _ in 0..TOTAL_MIN {
                let (answer, asked) = mpsc::channel::<()>();
                answers.push(answer);
                hanging.push(tokio::spawn(bulk(move || {
                    let _ = asked.recv();
                    Ok(())
                })));
            }
            for _ in 0..10 * TOTAL_MIN {
                tokio::task::spawn_blocking(|| ())
                    .await
                    .expect("there is a thread");
            }
            for waits in hanging.drain(BULK..) {
                waits.abort();
            }
            drop(answers);
            bulk(|| Ok(())).await.expect("there is a place again");
            for begun in hanging {
                begun.await.expect("it was not aborted").expect("it ends");
            }
            // Work whose caller was aborted after it had begun may end a little later.
            let count = u32::try_from(BULK).expect("it is small");
            let all = timeout(Duration::from_secs(60), BULK_PERMITS.acquire_many(count)).await;
            drop(
                all.expect("every permit is returned")
                    .expect("the semaphore is open"),
            );
        });
    }
}
