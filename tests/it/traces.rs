//! What the daemon exports of the start of a pod on a real containerd.

use std::time::Duration;

use switchyard_proto::cri::v1 as cri;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::trace_collector::{CollectedSpan, TraceCollector};
use tonic::Request;

use crate::history::SECRET;
use crate::images::with_file;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// How long spans may take to be sent.
const LIMIT: Duration = Duration::from_secs(30);

fn in_trace<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01").parse().expect("it is ASCII");
    request.metadata_mut().insert("traceparent", parent);
    request
}

/// The path of the only span with this name among those of the trace.
#[track_caller]
fn path(spans: &[CollectedSpan], name: &str) -> Vec<String> {
    let found: Vec<_> = spans.iter().filter(|span| span.span.name == name).collect();
    let [only] = found[..] else { panic!("{name}: {} in {:#?}", found.len(), paths(spans)) };
    only.path(spans)
}

fn paths(spans: &[CollectedSpan]) -> Vec<String> {
    let mut paths: Vec<_> = spans.iter().map(|span| span.path(spans).join(" > ")).collect();
    paths.sort();
    paths
}

#[test]
fn start_of_a_pod_is_one_tree_with_network_container_and_task() {
    let collector = TraceCollector::start();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.endpoint()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_SERVICE_NAME", "gateway"),
    ];
    let node = TestNode::start_with_variables(&variables);
    node.registry().push("traced/one:1", &with_file("traced").build());
    let image = cri::ImageSpec { image: node.registry().reference("traced/one:1"), ..Default::default() };
    let pull = cri::PullImageRequest { image: Some(image), ..Default::default() };
    node.cri().images(async |mut images| images.pull_image(in_trace(pull)).await).expect("it is pulled");
    let config = node.pod_config("traced");
    let run = cri::RunPodSandboxRequest { config: Some(config.clone()), ..Default::default() };
    let run = node.cri().runtime(async |mut runtime| runtime.run_pod_sandbox(in_trace(run)).await);
    let pod = run.expect("it runs").pod_sandbox_id;
    let mut main = node.container("main", &["sh", "-c", &format!("echo {SECRET}; exec sleep 1000")]);
    main.envs.push(cri::KeyValue { key: "PASSWORD".into(), value: SECRET.into() });
    let create = cri::CreateContainerRequest {
        pod_sandbox_id: pod.clone(),
        config: Some(main),
        sandbox_config: Some(config),
    };
    let create = node.cri().runtime(async |mut runtime| runtime.create_container(in_trace(create)).await);
    let container = create.expect("it is created").container_id;
    let start = cri::StartContainerRequest { container_id: container.clone() };
    node.cri()
        .runtime(async |mut runtime| runtime.start_container(in_trace(start)).await)
        .expect("it starts");

    let arrived = || collector.spans().iter().any(|span| span.span.name.ends_with("/StartContainer"));
    assert!(eventually(LIMIT, arrived), "{:#?}", paths(&collector.spans()));
    let all = collector.spans();
    let ours: Vec<_> = all.iter().filter(|span| span.service == "gateway").cloned().collect();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let spans: Vec<_> = ours.iter().filter(|span| hex(&span.span.trace_id) == TRACE).cloned().collect();
    let run = ["runtime.v1.RuntimeService/RunPodSandbox", "create_sandbox"];
    assert_eq!(path(&spans, "cni_add"), [run[0], run[1], "attach_network", "cni_add"]);
    assert_eq!(path(&spans, "create_namespaces"), [run[0], run[1], "create_namespaces"]);
    let create = ["runtime.v1.RuntimeService/CreateContainer", "create_task"];
    let snapshot = "containerd.services.snapshots.v1.Snapshots/Prepare";
    let prepared = spans.iter().filter(|span| span.span.name == snapshot).map(|span| span.path(&spans));
    assert!(prepared.into_iter().any(|path| path == [create[0], create[1], "prepare_snapshot", snapshot]));
    let start = ["runtime.v1.RuntimeService/StartContainer", "start_task"];
    let shim = "containerd.services.tasks.v1.Tasks/Create";
    assert_eq!(path(&spans, shim), [start[0], start[1], "create_process", shim]);
    let process = "containerd.services.tasks.v1.Tasks/Start";
    assert_eq!(path(&spans, process), [start[0], start[1], "start_process", process]);
    let pull = ["runtime.v1.ImageService/PullImage", "pull_image"];
    assert_eq!(path(&spans, "resolve_image"), [pull[0], pull[1], "resolve_image"]);
    assert_eq!(path(&spans, "unpack_layer"), [pull[0], pull[1], "pull_layers", "unpack_layer"]);

    let started = spans.iter().find(|span| span.span.name == "start_task").expect("it is there");
    assert_eq!(started.text("switchyard.task.id").as_deref(), Some(&*container));
    assert_eq!(started.text("switchyard.sandbox.id").as_deref(), Some(&*pod));
    assert_eq!(started.text("switchyard.owner").as_deref(), Some("kubernetes"));
    assert!(!format!("{all:?}").contains(SECRET));
    node.cri().stop_pod(&pod).expect("it stops");
    node.cri().remove_pod(&pod).expect("it is removed");
    node.assert_clean();
}
