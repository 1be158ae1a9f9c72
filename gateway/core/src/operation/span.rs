//! The spans of operations.

use std::sync::Arc;

use super::OperationObserver;
use super::id::OperationId;
use super::kind::OperationKind;
use super::subject::Subject;
use crate::error::Error;
use crate::id::Owner;
use crate::trace::{self, Span, SpanKind, Tracer};

/// The span of an operation that begins: below the current one, or else the first of a tree.
pub(super) fn of_operation(
    tracer: Option<&Tracer>,
    observer: Option<&Arc<dyn OperationObserver>>,
    kind: OperationKind,
    owner: Option<Owner>,
    subject: &Subject,
) -> Option<Span> {
    let begun = trace::begin(SpanKind::Internal, kind.as_str());
    let mut span = begun.or_else(|| Some(first(tracer?, kind)))?;
    if let Some(owner) = owner {
        span.set("switchyard.owner", owner.as_str());
    }
    let Subject {
        sandbox,
        task,
        sandbox_meta: _,
        task_meta: _,
        argument,
    } = subject;
    if let Some(sandbox) = sandbox {
        span.set_with("switchyard.sandbox.id", || sandbox.to_string());
    }
    if let Some(task) = task {
        span.set_with("switchyard.task.id", || task.to_string());
        span.set_with("container.id", || task.to_string());
    }
    if let Some(image) = argument.as_ref().filter(|_| names_image(kind)) {
        span.set_with("switchyard.image", || image.clone());
        span.set_with("container.image.name", || image.clone());
    }
    if let Some(observer) = observer.filter(|_| span.is_recorded()) {
        for (key, value) in observer.span_attributes(subject) {
            span.set(key, value);
        }
    }
    Some(span)
}

/// The span of an operation that is the first of a tree. Commands that run to their end are probes: of a kubelet or an
/// agent, or health checks of a swarm.
fn first(tracer: &Tracer, kind: OperationKind) -> Span {
    if kind == OperationKind::ExecSync {
        tracer.probe(SpanKind::Internal, kind.as_str(), None)
    } else {
        tracer.root(SpanKind::Internal, kind.as_str(), None)
    }
}

/// The span of the operation of this id, or of a part of it.
pub(super) fn with_id(span: Option<Span>, id: OperationId) -> Option<Span> {
    span.map(|mut span| {
        span.set_with("switchyard.operation.id", || id.to_string());
        span
    })
}

/// Ends the span of an operation by its result.
pub(super) fn end(span: Option<Span>, error: Option<&Error>) {
    match (span, error) {
        (Some(span), Some(error)) => span.fail(error.kind().as_str(), error.report()),
        (Some(span), None) => span.end(),
        (None, _) => {}
    }
}

/// Returns whether the argument of such an operation is the name of an image. Other arguments, such as the
/// program of a command, are left out of spans.
pub(super) const fn names_image(kind: OperationKind) -> bool {
    matches!(kind, OperationKind::PullImage | OperationKind::RemoveImage)
}
