//! The span that the current asynchronous task works for.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::{Place, Span, SpanKind, TraceId};
use crate::error::Result;

tokio::task_local! {
    /// Place in a tree at which the current asynchronous task works.
    pub(super) static CURRENT: Arc<Place>;
}

/// Returns the place at which the current asynchronous task works; `None` if that is in no tree.
pub(super) fn current() -> Option<Arc<Place>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Returns the id of the trace that the current asynchronous task works in; `None` if it is in none.
pub(crate) fn current_id() -> Option<TraceId> {
    CURRENT.try_with(|place| place.context.trace).ok()
}

/// Returns the current task's place, for work that may begin spans after the current one has ended.
fn kept() -> Option<Arc<Place>> {
    let place = current()?;
    // What is left out cannot have spans below it.
    place.has_children.store(true, Ordering::Relaxed);
    Some(place)
}

/// The work, in the current span also if it is spawned.
pub fn inherit<F: Future>(work: F) -> InSpan<F> {
    InSpan::at(kept(), work)
}

/// Runs work in a span of its own below the current one, which ends with its result; outside of a tree it only runs
/// the work. `describe` says what the span says of the work. As cancel-safe as `work`.
///
/// # Errors
/// Those of the work.
pub async fn traced<T>(
    name: &'static str,
    describe: impl FnOnce(&mut Span),
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let Some(mut span) = super::begin(SpanKind::Internal, name) else {
        return work.await;
    };
    describe(&mut span);
    let result = span.scope(work).await;
    span.end_with(&result);
    result
}

/// A place in a tree, for work that begins later.
#[derive(Debug, Clone)]
pub struct TracePlace(Arc<Place>);

impl TracePlace {
    /// Returns the place at which the current asynchronous task works; `None` if that is in no tree.
    #[must_use]
    pub fn current() -> Option<Self> {
        kept().map(Self)
    }

    /// Does something at once: where the current asynchronous task works, or else at `place`.
    pub fn enter<T>(place: Option<&Self>, work: impl FnOnce() -> T) -> T {
        match place {
            Some(Self(place)) if current().is_none() => CURRENT.sync_scope(Arc::clone(place), work),
            Some(_) | None => work(),
        }
    }
}

pin_project! {
    /// The future of work in a span.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless they are awaited"]
    pub struct InSpan<F> {
        // `None` if the work is where its task is.
        place: Option<Arc<Place>>,
        #[pin]
        work: F,
    }
}

impl<F> InSpan<F> {
    /// The work, in a span if there is one, and else where its task is.
    pub fn of(span: Option<&Span>, work: F) -> Self {
        Self::at(span.map(|span| Arc::clone(&span.place)), work)
    }

    pub(super) fn at(place: Option<Arc<Place>>, work: F) -> Self {
        Self { place, work }
    }
}

impl<F: Future> Future for InSpan<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        match this.place {
            Some(place) => CURRENT.sync_scope(Arc::clone(place), || this.work.poll(cx)),
            None => this.work.poll(cx),
        }
    }
}
