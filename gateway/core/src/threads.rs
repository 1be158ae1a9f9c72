//! How the threads for calls that block are shared out, so that what takes long never has all of them.
//!
//! The runtime has [`TOTAL`] of them for the whole process. Bulk work (reading archives, filling volumes, looking into images, writing
//! checkpoints, removing trees) and [looks](crate::looks) at paths of the host, which a file system may hold up for ever, have
//! bounded parts of them. What is left belongs to short calls: records, mounts, cgroups, status and clean-up.

use tokio::sync::Semaphore;

use crate::error::{Error, Result};

/// Threads for calls that block, in the whole process.
pub const TOTAL: usize = 64;

/// Of these, as many as do bulk work at a time.
pub const BULK: usize = 16;

/// Of these, as many as a backend's [`Looks`](crate::looks::Looks) may have.
pub const BACKEND_POOL: usize = 24;

/// Of these, as many as the looks of a frontend may have.
pub const FRONTEND_POOL: usize = 8;

/// Of these, as many as are left for short calls at least.
pub const SHORT: usize = TOTAL - BULK - BACKEND_POOL - FRONTEND_POOL;

static BULK_PERMITS: Semaphore = Semaphore::const_new(BULK);

/// Runs bulk work on a thread that may block, as soon as fewer than [`BULK`] others do. Dropping the future before it has begun is as
/// if nothing had been asked; work that has begun goes on to its end, and its place is taken until then.
///
/// # Errors
/// What `work` gives; `Internal` if it panics.
pub async fn bulk<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let turn = BULK_PERMITS.acquire().await;
    let turn = turn.map_err(|closed| Error::internal("wait for a thread").with_source(closed))?;
    let working = tokio::task::spawn_blocking(move || {
        let _until_it_ends = turn;
        work()
    });
    working
        .await
        .unwrap_or_else(|fault| Err(Error::internal("a thread for bulk work broke off").with_source(fault)))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn bulk_work_that_hangs_leaves_threads_for_short_calls_and_a_dropped_wait_takes_no_place() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .max_blocking_threads(TOTAL)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let mut answers = Vec::new();
            let mut hanging = Vec::new();
            for _ in 0..TOTAL {
                let (answer, asked) = mpsc::channel::<()>();
                answers.push(answer);
                hanging.push(tokio::spawn(bulk(move || {
                    let _ = asked.recv();
                    Ok(())
                })));
            }
            for _ in 0..10 * TOTAL {
                tokio::task::spawn_blocking(|| ()).await.expect("there is a thread");
            }
            for waits in hanging.drain(BULK..) {
                waits.abort();
            }
            drop(answers);
            bulk(|| Ok(())).await.expect("there is a place again");
            for begun in hanging {
                begun.await.expect("it was not aborted").expect("it ends");
            }
        });
        assert_eq!(BULK_PERMITS.available_permits(), BULK);
    }
}
