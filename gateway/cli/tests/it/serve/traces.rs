//! Export of the spans of a pod's start, to a collector that keeps them.

use switchyard_collector::Collector;
use switchyard_proto::opentelemetry::proto::trace::v1::Span;
use switchyard_proto::opentelemetry::proto::trace::v1::status::StatusCode;
use tonic::Request;

use super::*;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A request that says which span it is of.
fn traced<T>(message: T, parent: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(
        "traceparent",
        format!("00-{TRACE}-{parent}-01").parse().unwrap(),
    );
    request
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_with_a_traceparent_is_exported_as_a_tree_below_it() {
    let collector = Collector::start().await;
    let endpoint = format!("http://{}", collector.address());
    let env = [("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), endpoint)];
    let traces = TraceSettings::from_env(&env, "node-1").unwrap();

    let node = ServedDaemon::new();
    let daemon = node.serve_traced(&Fake::with_busybox(), traces);
    node.ready().await;
    let mut client = node.client().await;
    let metadata = cri::PodSandboxMetadata {
        name: "web".into(),
        namespace: "shop".into(),
        uid: "1".into(),
        attempt: 0,
    };
    let config = cri::PodSandboxConfig {
        metadata: Some(metadata),
        ..Default::default()
    };
    let run = cri::RunPodSandboxRequest {
        config: Some(config),
        ..Default::default()
    };
    let pod = client
        .run_pod_sandbox(traced(run, PARENT))
        .await
        .unwrap()
        .into_inner()
        .pod_sandbox_id;
    // Neither a query without a trace nor a caller whose context is not valid.
    client
        .list_pod_sandbox(cri::ListPodSandboxRequest::default())
        .await
        .unwrap();
    let missing = cri::StartContainerRequest {
        container_id: "0".repeat(64),
    };
    client
        .start_container(traced(missing.clone(), "0000000000000000"))
        .await
        .unwrap_err();
    client
        .start_container(traced(missing, PARENT))
        .await
        .unwrap_err();
    let metrics = node.page("/metrics").await.unwrap().1;
    assert!(
        metrics.contains("switchyard_trace_spans_total{result=\"lost\"} 0"),
        "{metrics}"
    );
    daemon.stop().await.unwrap();

    assert_calls_are_traced(&collector.spans(), &pod);
}

fn assert_calls_are_traced(spans: &[Span], pod: &str) {
    let named = |name: &str| {
        let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
        let [only] = found[..] else {
            panic!("{name}: {spans:?}")
        };
        only
    };
    let call = named("runtime.v1.RuntimeService/RunPodSandbox");
    assert_eq!(
        (hex(&call.trace_id), hex(&call.parent_span_id)),
        (TRACE.to_owned(), PARENT.to_owned())
    );
    let create = named("create_sandbox");
    assert_eq!(
        (&create.parent_span_id, &create.trace_id),
        (&call.span_id, &call.trace_id)
    );
    let says = |span: &Span, value: &str| format!("{:?}", span.attributes).contains(value);
    assert!(
        says(create, pod) && says(create, "kubernetes"),
        "{create:?}"
    );
    let permit = named("wait_for_start_permit");
    assert_eq!(permit.parent_span_id, create.span_id);
    let failed = named("runtime.v1.RuntimeService/StartContainer");
    // An answer to the client, and no failure of the server.
    let status = failed.status.clone().unwrap_or_default();
    assert_eq!(status.code(), StatusCode::Unset);
    assert!(
        says(failed, "rpc.grpc.status_code") && says(failed, "IntValue(5)"),
        "{failed:?}"
    );
    assert!(
        spans
            .iter()
            .all(|span| !span.name.contains("ListPodSandbox"))
    );
}
