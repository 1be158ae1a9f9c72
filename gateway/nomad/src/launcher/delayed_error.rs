//! Calls that are cut off by the end of the daemon get no answer: the launcher exits instead. Those that are not repeated
//! fail if it outlives the daemon.
//!
//! An agent whose call fails waits three seconds for the exit of its plugin, and recovers its tasks if the
//! plugin exits. Otherwise it takes the error as final, and starts a task whose wait failed a second time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;

/// Delay of an error. If the daemon has ended, the launcher exits long before; otherwise it outlives the daemon, or only the
/// connection broke, and the error must be returned.
pub(super) const ERROR_DELAY: Duration = Duration::from_secs(5);

/// The error for a connection that broke while the launcher continues.
pub(super) fn broken() -> Status {
    crate::status::status(&switchyard_core::Error::unavailable(
        "the connection to the switchyard daemon broke before its answer: see the daemon's log",
    ))
}

/// A body whose errors are delayed.
pub(super) struct DelayedErrorBody {
    inner: Body,
    delay: Option<Pin<Box<Sleep>>>,
}

// === impl DelayedErrorBody ===

impl DelayedErrorBody {
    pub(super) fn new(inner: Body) -> Self {
        Self { inner, delay: None }
    }
}

impl HttpBody for DelayedErrorBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.delay.is_none() {
            match std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                Some(Err(_)) => self.delay = Some(Box::pin(tokio::time::sleep(ERROR_DELAY))),
                other => return Poll::Ready(other),
            }
        }
        let held = self.delay.as_mut().expect("it is held since the error");
        std::task::ready!(held.as_mut().poll(cx));
        Poll::Ready(Some(Err(broken())))
    }

    fn is_end_stream(&self) -> bool {
        self.delay.is_none() && self.inner.is_end_stream()
    }
}
