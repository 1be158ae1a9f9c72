//! Calls that block, on threads of the runtime that may wait.

use std::error::Error;
use std::{fmt, io};

use tokio::task::{JoinError, spawn_blocking};

/// Reason why a call on a blocking thread has no result: it has panicked, or the runtime ends.
#[derive(Debug)]
pub struct WorkLost {
    what: &'static str,
    source: JoinError,
}

/// Runs a call that blocks on a thread for that; `what` describes it in errors. Tokio's limit on such threads is for all
/// callers together: calls that may hang take a permit of their own first.
///
/// If the future is dropped, a call that has begun continues to its end, and one that has not is not made.
///
/// # Errors
/// Those of `work`; [`WorkLost`] if it panics, or the runtime ends.
pub async fn blocking<T, E>(
    what: &'static str,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<WorkLost> + Send + 'static,
{
    spawn_blocking(work)
        .await
        .unwrap_or_else(|source| Err(WorkLost { what, source }.into()))
}

// === impl WorkLost ===

impl WorkLost {
    /// The call, as its caller described it.
    #[must_use]
    pub const fn what(&self) -> &'static str {
        self.what
    }
}

impl fmt::Display for WorkLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} panicked or was aborted", self.what)
    }
}

impl Error for WorkLost {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

impl From<WorkLost> for io::Error {
    fn from(lost: WorkLost) -> Self {
        Self::other(lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn result_of_the_call_is_returned_and_a_panic_is_an_error() {
        let done: io::Result<u8> = blocking("a sum", || Ok(1 + 1)).await;
        assert_eq!(done.unwrap(), 2);
        let lost: io::Result<u8> = blocking("a sum", || panic!("too much")).await;
        assert_eq!(
            lost.unwrap_err().to_string(),
            "a sum panicked or was aborted"
        );
    }

    #[tokio::test]
    async fn call_that_has_begun_continues_although_nobody_waits() {
        let (begun, begins) = std::sync::mpsc::channel();
        let (end, ended) = tokio::sync::oneshot::channel();
        let work = blocking("a call", move || {
            begun.send(()).expect("the test waits");
            end.send(()).expect("the test waits");
            Ok::<(), WorkLost>(())
        });
        let waiting = tokio::spawn(work);
        tokio::task::yield_now().await;
        begins.recv().expect("it begins");
        waiting.abort();
        ended.await.expect("it ends");
    }
}
