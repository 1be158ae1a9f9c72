//! Fields that lines of the log get from the operation that they are about.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tracing::Instrument;
use tracing::instrument::Instrumented;

use super::span::names_image;
use super::{ActiveOperation, CURRENT};
use crate::trace::{self, InSpan};

tokio::task_local! {
    /// The operation that began the current asynchronous task without being its work: it may have ended.
    static BEGUN_BY: Arc<ActiveOperation>;
}

/// A field of a line: its name, which is one of a closed set, and its value.
pub type ContextField = (&'static str, String);

/// The work, in the span and in the log that of the current asynchronous task, also if it is spawned. It is no part of
/// the operation that began it, and what it begins is an operation of its own.
pub fn inherit<F: Future>(work: F) -> Inherited<F> {
    Inherited {
        operation: named(),
        work: trace::inherit(work.in_current_span()),
    }
}

pin_project! {
    /// The future of [`inherit`]. It is hardly larger than that of the work.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless they are awaited"]
    pub struct Inherited<F> {
        operation: Option<Arc<ActiveOperation>>,
        #[pin]
        work: InSpan<Instrumented<F>>,
    }
}

impl<F: Future> Future for Inherited<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        match this.operation {
            Some(operation) => BEGUN_BY.sync_scope(Arc::clone(operation), || this.work.poll(cx)),
            None => this.work.poll(cx),
        }
    }
}

/// Returns the fields that a line of the log gets of the current asynchronous task: the operation that it works for or
/// that began it, the objects of that with their names, and the trace.
#[must_use]
pub fn log_context() -> Vec<ContextField> {
    match named() {
        Some(operation) => operation.log_fields(),
        None => trace::current_id()
            .map(|trace| ("trace", trace.to_string()))
            .into_iter()
            .collect(),
    }
}

/// The operation that the current asynchronous task works for, or else the one that began it.
fn named() -> Option<Arc<ActiveOperation>> {
    let own = CURRENT.try_with(Arc::clone);
    own.or_else(|_| BEGUN_BY.try_with(Arc::clone)).ok()
}

impl ActiveOperation {
    /// Does something at once whose lines of the log are about this operation.
    pub(super) fn name_in_log<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        BEGUN_BY.sync_scope(Arc::clone(self), work)
    }

    fn log_fields(&self) -> Vec<ContextField> {
        let mut fields = vec![
            ("operation", self.kind.as_str().to_owned()),
            ("operation_id", self.id().to_string()),
        ];
        fields.extend(self.owner.map(|owner| ("owner", owner.to_string())));
        let sandbox = self.subject.sandbox.map(|id| id.to_string());
        fields.extend(sandbox.map(|id| ("sandbox", id)));
        let task = self.subject.task.map(|id| id.to_string());
        fields.extend(task.map(|id| ("task", id)));
        if let Some(observer) = self.registry.observer.get() {
            fields.extend(observer.names(&self.subject));
        }
        let image = self.subject.argument.clone();
        fields.extend(
            image
                .filter(|_| names_image(self.kind))
                .map(|image| ("image", image)),
        );
        fields.extend(self.trace.map(|trace| ("trace", trace.to_string())));
        fields
    }
}
