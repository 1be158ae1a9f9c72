//! Callers of operations.

use std::future::Future;

tokio::task_local! {
    static CALLER: Caller;
}

/// The caller of an operation, as the daemon's listener knows the peer. Opaque to the gateway, which passes
/// it on to the observer of operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The name of the listener that received the request.
    pub listener: &'static str,
    /// The user of the peer, if the connection reveals it.
    pub uid: Option<u32>,
    /// The process of the peer, if the connection reveals it.
    pub pid: Option<u32>,
}

impl Caller {
    /// Runs the work of a request of this caller.
    pub fn scope<F: Future>(self, request: F) -> impl Future<Output = F::Output> {
        CALLER.scope(self, request)
    }

    /// The caller whose request the current asynchronous task works for.
    #[must_use]
    pub fn current() -> Option<Self> {
        CALLER.try_with(Self::clone).ok()
    }

    /// The work, for the current caller also if it is spawned.
    pub(crate) fn inherit<F: Future>(work: F) -> impl Future<Output = F::Output> {
        let caller = Self::current();
        async move {
            match caller {
                Some(caller) => caller.scope(work).await,
                None => work.await,
            }
        }
    }
}
