//! The steps of an operation: what it works on or waits for.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use pin_project_lite::pin_project;

use super::{ActiveOperation, CURRENT, EndedStep};
use crate::error::{Error, ErrorKind, Result};
use crate::trace::{self, Span, SpanKind};

/// The order in which steps of all operations began.
pub(super) type StepKey = u64;

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A step that has begun and not ended.
#[derive(Debug)]
pub(super) struct ActiveStep {
    pub(super) name: &'static str,
    pub(super) began: Instant,
}

/// Ends a step when it is dropped.
#[derive(Debug)]
struct StepGuard {
    operation: Arc<ActiveOperation>,
    key: StepKey,
    span: Option<Span>,
    /// As in [`EndedStep`]: until the work has ended, it counts as dropped.
    failure: Option<ErrorKind>,
}

/// Runs a step of the current operation, so that it is visible while it runs and measured at its end; its span fails
/// with the work. Outside of an operation it only runs the work. `name` says in a few words, joined by underscores,
/// what is done or waited for. As cancel-safe as `work`.
///
/// # Errors
/// Those of the work.
pub fn step<T, F: Future<Output = Result<T>>>(name: &'static str, work: F) -> StepFuture<F> {
    StepFuture {
        name: Some(name),
        guard: None,
        end: end_with,
        work,
    }
}

/// As [`step`], for work that cannot fail, or whose failure is not for others to read.
pub fn plain_step<F: Future>(name: &'static str, work: F) -> StepFuture<F> {
    StepFuture {
        name: Some(name),
        guard: None,
        end: end_plainly,
        work,
    }
}

/// Ends a step as its work has ended.
fn end_with<T>(mut guard: StepGuard, done: &Result<T>) {
    guard.failure = done.as_ref().err().map(Error::kind);
    if let Some(span) = guard.span.take() {
        span.end_with(done);
    }
}

/// Ends a step whatever its work returned.
fn end_plainly<T>(mut guard: StepGuard, _done: &T) {
    guard.failure = None;
    if let Some(span) = guard.span.take() {
        span.end();
    }
}

pin_project! {
    /// The future of [`step`]. It is hardly larger than that of the work.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless they are awaited"]
    pub struct StepFuture<F: Future> {
        // Until the work has begun.
        name: Option<&'static str>,
        // While the work runs, if it belongs to an operation.
        guard: Option<StepGuard>,
        // Ends it with the work.
        end: fn(StepGuard, &F::Output),
        #[pin]
        work: F,
    }
}

impl<F: Future> Future for StepFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        if let Some(name) = this.name.take() {
            *this.guard = CURRENT
                .try_with(|operation| StepGuard::begin(operation, name))
                .ok();
        }
        let span = this.guard.as_ref().and_then(|guard| guard.span.as_ref());
        let done = std::task::ready!(match span {
            Some(span) => span.enter(|| this.work.poll(cx)),
            None => this.work.poll(cx),
        });
        if let Some(guard) = this.guard.take() {
            (this.end)(guard, &done);
        }
        Poll::Ready(done)
    }
}

impl StepGuard {
    fn begin(operation: &Arc<ActiveOperation>, name: &'static str) -> Self {
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        operation.steps.lock().insert(
            key,
            ActiveStep {
                name,
                began: Instant::now(),
            },
        );
        Self {
            operation: Arc::clone(operation),
            key,
            span: trace::begin(SpanKind::Internal, name),
            failure: Some(ErrorKind::Cancelled),
        }
    }
}

impl Drop for StepGuard {
    fn drop(&mut self) {
        let step = self.operation.steps.lock().remove(&self.key);
        let observer = self.operation.registry.observer.get();
        if let Some((ActiveStep { name, began }, observer)) = step.zip(observer) {
            observer.step_ended(EndedStep {
                operation: self.operation.kind,
                name,
                took: began.elapsed(),
                failure: self.failure,
            });
        }
    }
}
