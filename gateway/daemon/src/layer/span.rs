//! The span of an RPC, below the span of its caller, which the headers name by W3C's rules.

use http::HeaderMap;
use switchyard_core::trace::{Span, SpanContext, TraceState, Tracer};

/// The longest `tracestate` that is read, in bytes; of a longer one, nothing.
const STATE_MAX: usize = 512;

/// The span of a call of this method that begins now.
pub(super) fn begin(
    tracer: &Tracer,
    protocol: &'static str,
    path: &str,
    headers: &HeaderMap,
) -> Span {
    let mut span = tracer.request(path.to_owned(), caller(headers));
    let (service, method) = path.rsplit_once('/').unwrap_or(("", path));
    span.set("rpc.system", "grpc");
    span.set_with("rpc.service", || service.to_owned());
    span.set_with("rpc.method", || method.to_owned());
    span.set("switchyard.protocol", protocol);
    span
}

/// The span of the caller; `None` if it names none, or not by the rules.
fn caller(headers: &HeaderMap) -> Option<SpanContext> {
    let mut parents = headers.get_all("traceparent").iter();
    let parent = parents.next().filter(|_| parents.next().is_none())?;
    let context = SpanContext::parse(parent.to_str().ok()?)?;
    Some(SpanContext {
        state: state(headers),
        ..context
    })
}

/// Parses the trace state that the systems on the way have added, in one header or in several.
fn state(headers: &HeaderMap) -> Option<TraceState> {
    let mut list = String::new();
    for part in headers.get_all("tracestate") {
        if list.len() + part.len() > STATE_MAX {
            return None;
        }
        if !list.is_empty() {
            list.push(',');
        }
        list.push_str(part.to_str().ok()?);
    }
    TraceState::parse(&list)
}
