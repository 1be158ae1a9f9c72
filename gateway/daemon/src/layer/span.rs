//! The span of an RPC, below the span of its caller, which the headers name by W3C's rules.

use http::HeaderMap;
use switchyard_core::trace::{Span, SpanContext, SpanKind, TraceState, Tracer};
use switchyard_rpc::name_of;
use tonic::Code;

/// The ends of the paths of calls by which kubelets and Nomad agents probe containers, again and again.
const PROBES: [&str; 2] = ["/ExecSync", "/ExecTask"];

/// The longest `tracestate` that is read, in bytes; of a longer one, nothing.
const STATE_MAX: usize = 512;

/// The span of a call of this method that begins now.
pub(super) fn begin(
    tracer: &Tracer,
    protocol: &'static str,
    path: &str,
    headers: &HeaderMap,
) -> Span {
    let caller = caller(headers);
    let mut span = if PROBES.iter().any(|probe| path.ends_with(probe)) {
        tracer.probe(SpanKind::Server, path.to_owned(), caller)
    } else {
        tracer.request(path.to_owned(), caller)
    };
    let (service, method) = path.rsplit_once('/').unwrap_or(("", path));
    span.set("rpc.system", "grpc");
    span.set_with("rpc.service", || service.to_owned());
    span.set_with("rpc.method", || method.to_owned());
    span.set("switchyard.protocol", protocol);
    span
}

/// Ends the span of a call by its code.
pub(super) fn end(mut span: Span, code: Code) {
    span.set("rpc.grpc.status_code", i64::from(i32::from(code)));
    if is_failure(code) {
        let name = name_of(code);
        span.fail(name, name);
    } else {
        span.end();
    }
}

/// Returns whether a code is a failure of the server, by OpenTelemetry's conventions: the others are answers, such as that
/// what is to be stopped is not there.
const fn is_failure(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
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
