//! Tests of the export, against a collector that takes, refuses or hangs.

use std::net::SocketAddr;

use switchyard_collector::{Collector, Mood};
use switchyard_core::trace::{Sampler, SpanContext, SpanKind};
use switchyard_proto::opentelemetry::proto::trace::v1 as proto;
use switchyard_tls::testing::Authority;
use tokio::net::TcpListener;

use super::exporter::{BATCH, QUEUE};
use super::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn settings(address: SocketAddr) -> TraceSettings {
    let env = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{address}")),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "200".to_owned()),
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "authorization=Bearer%20secret".to_owned(),
        ),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value));
    TraceSettings::from_env(&env, "node-1").unwrap().unwrap()
}

fn span(traces: &Traces, name: &'static str) {
    traces.tracer().root(SpanKind::Internal, name, None).end();
}

#[tokio::test]
async fn spans_arrive_in_batches_with_all_that_they_say() {
    let collector = Collector::start().await;
    let traces = Traces::start(&settings(collector.address())).unwrap();
    let caller = SpanContext::parse(PARENT).unwrap();
    let mut call = traces.tracer().request("a.B/Do", Some(caller.clone()));
    call.set("rpc.method", "Do");
    call.set("code", 2);
    let below = call
        .enter(|| switchyard_core::trace::begin(SpanKind::Client, "below"))
        .unwrap();
    let below_id = below.context().span;
    below.fail("unavailable", "it is broken");
    call.end();
    (0..2 * BATCH).for_each(|_| span(&traces, "filler"));
    traces.end().await;
    let requests = collector.requests();
    let sizes: Vec<_> = requests
        .iter()
        .map(|request| request.resource_spans[0].scope_spans[0].spans.len())
        .collect();
    assert_eq!(sizes, [BATCH, BATCH, 2]);
    assert_eq!(
        traces.counts(),
        TraceCounts {
            sent: 2 * 512 + 2,
            lost: 0
        }
    );
    assert_eq!(collector.authorizations(), ["Bearer secret"; 3]);
    let spans = collector.spans();
    let [failed, server, ..] = &spans[..] else {
        panic!("{spans:?}")
    };
    assert_eq!(server.trace_id, caller.trace.to_bytes());
    assert_eq!(server.parent_span_id, caller.span.to_bytes());
    assert_eq!(
        (server.kind(), server.name.as_str(), server.flags),
        (proto::span::SpanKind::Server, "a.B/Do", 1)
    );
    assert!(
        server.start_time_unix_nano > 0 && server.start_time_unix_nano <= server.end_time_unix_nano
    );
    assert_eq!(server.attributes.len(), 2);
    assert_eq!(failed.span_id, below_id.to_bytes());
    assert_eq!(
        (&failed.parent_span_id, &failed.trace_id),
        (&server.span_id, &server.trace_id)
    );
    let status = failed.status.clone().unwrap();
    assert_eq!(
        (status.code(), status.message.as_str()),
        (proto::status::StatusCode::Error, "it is broken")
    );
    let resource = requests[0].resource_spans[0].resource.clone().unwrap();
    let keys: Vec<_> = resource
        .attributes
        .iter()
        .map(|attribute| attribute.key.as_str())
        .collect();
    assert_eq!(keys, ["host.name", "service.name", "service.version"]);
}

#[tokio::test]
async fn spans_are_lost_and_counted_while_the_collector_hangs_and_the_end_is_in_time() {
    let collector = Collector::start().await;
    collector.set(Mood::Hangs);
    let settings = TraceSettings {
        limit: Duration::from_secs(3600),
        ..settings(collector.address())
    };
    let traces = Traces::start(&settings).unwrap();
    // The first batch is on its way when the others come.
    (0..BATCH).for_each(|_| span(&traces, "first"));
    while traces.queue.waiting() > 0 {
        tokio::task::yield_now().await;
    }
    (0..QUEUE + 7).for_each(|_| span(&traces, "more"));
    assert_eq!(traces.counts(), TraceCounts { sent: 0, lost: 7 });
    // Long before the export would give up.
    tokio::time::timeout(Duration::from_secs(60), traces.end())
        .await
        .unwrap();
    assert!(collector.requests().is_empty());
}

#[tokio::test]
async fn refused_and_rejected_spans_are_counted_and_later_ones_arrive() {
    let collector = Collector::start().await;
    let traces = Traces::start(&settings(collector.address())).unwrap();
    let send = async |mood| {
        collector.set(mood);
        let before = traces.counts();
        (0..BATCH).for_each(|_| span(&traces, "x"));
        tokio::time::timeout(Duration::from_secs(10), async {
            while traces.counts() == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
        traces.counts()
    };
    assert_eq!(
        send(Mood::Refuses).await,
        TraceCounts { sent: 0, lost: 512 }
    );
    // The deadline of an export, which is short here.
    assert_eq!(
        send(Mood::Hangs).await,
        TraceCounts {
            sent: 0,
            lost: 1024
        }
    );
    assert_eq!(
        send(Mood::RejectsOne).await,
        TraceCounts {
            sent: 511,
            lost: 1025
        }
    );
    assert_eq!(
        send(Mood::Takes).await,
        TraceCounts {
            sent: 1023,
            lost: 1025
        }
    );
}

#[tokio::test]
async fn nobody_at_the_endpoint_costs_spans_alone() {
    let address = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let traces = Traces::start(&settings(address)).unwrap();
    span(&traces, "x");
    traces.end().await;
    assert_eq!(traces.counts(), TraceCounts { sent: 0, lost: 1 });
    span(&traces, "after the end");
    assert_eq!(traces.counts().lost, 2);
}

#[tokio::test]
async fn a_trace_that_is_not_sampled_is_not_sent() {
    let collector = Collector::start().await;
    let settings = TraceSettings {
        sampler: Sampler::CallerOrNothing,
        ..settings(collector.address())
    };
    let traces = Traces::start(&settings).unwrap();
    span(&traces, "x");
    traces.end().await;
    assert!(collector.requests().is_empty());
}

#[tokio::test]
async fn collector_with_tls_is_verified_by_the_authority_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "ca");
    let identity = authority.issue("collector").server(None);
    let read = |path: &std::path::Path| std::fs::read(path).unwrap();
    let identity =
        tonic::transport::Identity::from_pem(read(&identity.certificates), read(&identity.key));
    let tls = tonic::transport::ServerTlsConfig::new().identity(identity);
    let server = tonic::transport::Server::builder().tls_config(tls).unwrap();
    let collector = Collector::serve(server).await;
    let address = collector.address();
    let endpoint = format!("https://{address}").parse::<http::Uri>().unwrap();
    let of = |authorities| TraceSettings {
        endpoint: endpoint.clone(),
        authorities,
        limit: Duration::from_secs(10),
        ..settings(address)
    };
    let traces = Traces::start(&of(Some(authority.certificate()))).unwrap();
    span(&traces, "x");
    traces.end().await;
    assert_eq!(
        (traces.counts(), collector.spans().len()),
        (TraceCounts { sent: 1, lost: 0 }, 1)
    );
    // By the authorities of the node it is nobody.
    let traces = Traces::start(&of(None)).unwrap();
    span(&traces, "x");
    traces.end().await;
    assert_eq!(
        (traces.counts(), collector.spans().len()),
        (TraceCounts { sent: 0, lost: 1 }, 1)
    );
    Traces::start(&of(Some(dir.path().join("missing")))).unwrap_err();
}
