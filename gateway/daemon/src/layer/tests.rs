//! Tests of the RPC layer, with bodies that end as gRPC's do.

use std::convert::Infallible;
use std::future::ready;

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::{BodyExt, Empty, Full};
use parking_lot::Mutex;
use switchyard_core::trace::{EndedSpan, Sampler, SpanSink};
use switchyard_operator::metrics::NodeCounts;
use tower::{ServiceExt, service_fn};

use super::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[derive(Debug, Default)]
struct Kept(Mutex<Vec<EndedSpan>>);

impl SpanSink for Kept {
    fn ended(&self, span: EndedSpan) {
        self.0.lock().push(span);
    }
}

fn request(path: &str) -> Request<()> {
    Request::builder()
        .uri(format!("http://localhost{path}"))
        .body(())
        .unwrap()
}

fn trailers(status: Option<&str>) -> HeaderMap {
    status
        .map(|code| ("grpc-status".parse().unwrap(), code.parse().unwrap()))
        .into_iter()
        .collect()
}

/// Counts of all finished RPCs, as lines of the scrape.
fn counted(metrics: &Metrics) -> Vec<String> {
    let text = String::from_utf8(metrics.render(&NodeCounts::default()).unwrap()).unwrap();
    let prefix = "switchyard_rpc_requests_total{";
    text.lines()
        .filter_map(|line| line.strip_prefix(prefix))
        .map(str::to_owned)
        .collect()
}

fn in_flight(metrics: &Metrics) -> i64 {
    metrics.rpc.in_flight.with_label_values(&["cri"]).get()
}

#[tokio::test]
async fn success_is_counted_at_its_trailers() {
    let metrics = Metrics::new().unwrap();
    let service = service_fn(|_: Request<()>| {
        let body = Full::new(Bytes::from_static(b"answer"));
        ready(Ok::<_, Infallible>(Response::new(
            body.with_trailers(ready(Some(Ok(trailers(Some("0")))))),
        )))
    });
    let response = RpcLayer::new("cri", &metrics, None)
        .layer(service)
        .oneshot(request("/a.B/Do"))
        .await
        .unwrap();
    assert_eq!((counted(&metrics).len(), in_flight(&metrics)), (0, 1));
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.trailers(), Some(&trailers(Some("0"))));
    assert_eq!(body.to_bytes(), "answer");
    assert_eq!(
        counted(&metrics),
        ["code=\"OK\",method=\"a.B/Do\",protocol=\"cri\"} 1"]
    );
    assert_eq!(in_flight(&metrics), 0);
}

#[tokio::test]
async fn failure_is_counted_once_at_its_headers() {
    let metrics = Metrics::new().unwrap();
    let service = service_fn(|_: Request<()>| {
        let response = Response::builder()
            .header("grpc-status", "5")
            .body(Empty::<Bytes>::new())
            .unwrap();
        ready(Ok::<_, Infallible>(response))
    });
    let response = RpcLayer::new("cri", &metrics, None)
        .layer(service)
        .oneshot(request("/a.B/Do"))
        .await
        .unwrap();
    assert_eq!(
        counted(&metrics),
        ["code=\"NOT_FOUND\",method=\"a.B/Do\",protocol=\"cri\"} 1"]
    );
    drop(response.into_body().collect().await.unwrap());
    assert_eq!(counted(&metrics).len(), 1);
    assert_eq!(in_flight(&metrics), 0);
}

#[tokio::test]
async fn dropped_body_or_request_counts_as_cancelled() {
    let metrics = Metrics::new().unwrap();
    let layer = RpcLayer::new("cri", &metrics, None);
    let answered = service_fn(|_: Request<()>| {
        ready(Ok::<_, Infallible>(Response::new(Full::new(
            Bytes::from_static(b"x"),
        ))))
    });
    drop(
        layer
            .layer(answered)
            .oneshot(request("/a.B/Answered"))
            .await
            .unwrap(),
    );
    let never = service_fn(|_: Request<()>| {
        std::future::pending::<Result<Response<Empty<Bytes>>, Infallible>>()
    });
    let mut waiting = Box::pin(layer.layer(never).oneshot(request("/a.B/Never")));
    assert!(futures::poll!(&mut waiting).is_pending());
    assert_eq!(in_flight(&metrics), 1);
    drop(waiting);
    assert_eq!(
        counted(&metrics),
        [
            "code=\"CANCELLED\",method=\"a.B/Answered\",protocol=\"cri\"} 1",
            "code=\"CANCELLED\",method=\"a.B/Never\",protocol=\"cri\"} 1"
        ]
    );
    assert_eq!(in_flight(&metrics), 0);
}

#[tokio::test]
async fn calls_that_last_as_their_client_likes_are_counted_and_neither_timed_nor_in_flight() {
    let metrics = Metrics::new().unwrap();
    let layer = RpcLayer::new("cri", &metrics, None);
    for path in [
        "runtime.v1.RuntimeService/GetContainerEvents",
        "runtime.v1.RuntimeService/Version",
    ] {
        let service = service_fn(|_: Request<()>| {
            let body = Full::new(Bytes::new()).with_trailers(ready(Some(Ok(trailers(Some("0"))))));
            ready(Ok::<_, Infallible>(Response::new(body)))
        });
        let response = layer
            .layer(service)
            .oneshot(request(&format!("/{path}")))
            .await
            .unwrap();
        assert_eq!(in_flight(&metrics), i64::from(path.ends_with("Version")));
        drop(response.into_body().collect().await.unwrap());
    }
    assert_eq!(counted(&metrics).len(), 2);
    let text = String::from_utf8(metrics.render(&NodeCounts::default()).unwrap()).unwrap();
    let timed =
        |method: &str| text.contains(&format!("duration_seconds_count{{method=\"{method}\""));
    assert!(timed("runtime.v1.RuntimeService/Version"), "{text}");
    assert!(
        !timed("runtime.v1.RuntimeService/GetContainerEvents"),
        "{text}"
    );
    assert_eq!(in_flight(&metrics), 0);
}

#[test]
fn each_stream_is_open_ended_or_a_list_in_pieces() {
    let timed: Vec<_> = SERVER_STREAMS
        .iter()
        .filter(|path| !is_open_ended(path))
        .collect();
    assert!(
        timed
            .iter()
            .all(|path| path.starts_with("runtime.v1.") && path.contains("/Stream")),
        "{timed:?}"
    );
    assert_eq!(timed.len(), 6, "{timed:?}");
    for method in [
        "hashicorp.nomad.plugins.drivers.proto.Driver/ExecTaskStreaming",
        "hashicorp.nomad.plugins.drivers.proto.Driver/TaskEvents",
        "hashicorp.nomad.plugins.drivers.proto.Driver/WaitTask",
        "runtime.v1.RuntimeService/GetContainerEvents",
        "switchyard.nomad.v1.Sessions/Open",
        "v1beta1.DevicePlugin/ListAndWatch",
    ] {
        assert!(is_open_ended(method), "{method}");
    }
    for method in [
        "hashicorp.nomad.plugins.drivers.proto.Driver/StartTask",
        "any/WaitTask",
        "",
    ] {
        assert!(!is_open_ended(method), "{method}");
    }
}

#[tokio::test]
async fn unknown_methods_share_one_series() {
    let metrics = Metrics::new().unwrap();
    let layer = RpcLayer::new("cri", &metrics, None);
    for path in ["/a.B/Guess1", "/a.B/Guess2"] {
        let service = service_fn(|_: Request<()>| {
            let response = Response::builder()
                .header("grpc-status", "12")
                .body(Empty::<Bytes>::new())
                .unwrap();
            ready(Ok::<_, Infallible>(response))
        });
        layer.layer(service).oneshot(request(path)).await.unwrap();
    }
    assert_eq!(
        counted(&metrics),
        ["code=\"UNIMPLEMENTED\",method=\"other\",protocol=\"cri\"} 2"]
    );
}

#[tokio::test]
async fn span_of_a_call_fails_only_by_a_fault_of_the_server() {
    let metrics = Metrics::new().unwrap();
    let kept = Arc::new(Kept::default());
    let tracer = Tracer::new(Sampler::All, Arc::clone(&kept) as _);
    let layer = RpcLayer::new("cri", &metrics, Some(tracer));
    for code in 1..=16_i32 {
        let service = service_fn(move |_: Request<()>| {
            let response = Response::builder()
                .header("grpc-status", code.to_string())
                .body(Empty::<Bytes>::new())
                .unwrap();
            ready(Ok::<_, Infallible>(response))
        });
        let mut call = request("/a.B/Do");
        call.headers_mut()
            .insert("traceparent", PARENT.parse().unwrap());
        let response = layer.layer(service).oneshot(call).await.unwrap();
        drop(response.into_body().collect().await.unwrap());
    }
    let spans = kept.0.lock();
    let failed: Vec<i32> = (1..)
        .zip(&*spans)
        .filter(|(_, span)| span.failure.is_some())
        .map(|(code, _)| code)
        .collect();
    assert_eq!((spans.len(), failed), (16, vec![2, 4, 12, 13, 14, 15]));
}
