//! Traces of the start of a pod, and of a Nomad task, on a real containerd.

use std::time::Duration;

use serde_json::json;
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_proto::nomad::drivers::proto::driver_client::DriverClient;
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};
use switchyard_tests::trace_collector::{CollectedSpan, TraceCollector};
use tonic::Request;

use crate::history::SECRET;
use crate::images::with_file;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Time for spans to be sent.
const LIMIT: Duration = Duration::from_secs(30);

fn in_trace<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01")
        .parse()
        .expect("it is ASCII");
    request.metadata_mut().insert("traceparent", parent);
    request
}

/// The path of the only span with this name among those of the trace.
#[track_caller]
fn path(spans: &[CollectedSpan], name: &str) -> Vec<String> {
    let found: Vec<_> = spans.iter().filter(|span| span.span.name == name).collect();
    let [only] = found[..] else {
        panic!("{name}: {} in {:#?}", found.len(), paths(spans))
    };
    only.path(spans)
}

/// Starts a node that sends its traces to this collector.
fn traced_node(collector: &TraceCollector) -> TestNode {
    TestNode::start_with_variables(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.endpoint()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_SERVICE_NAME", "gateway"),
    ])
}

/// The spans of the daemon in the callers' trace, once one has come whose name ends so.
fn spans_until(collector: &TraceCollector, end: &str) -> Vec<CollectedSpan> {
    let arrived = || {
        collector
            .spans()
            .iter()
            .any(|span| span.span.name.ends_with(end))
    };
    assert!(
        eventually(LIMIT, arrived),
        "{:#?}",
        paths(&collector.spans())
    );
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let is_ours =
        |span: &CollectedSpan| span.service == "gateway" && hex(&span.span.trace_id) == TRACE;
    collector.spans().into_iter().filter(is_ours).collect()
}

fn paths(spans: &[CollectedSpan]) -> Vec<String> {
    let mut paths: Vec<_> = spans
        .iter()
        .map(|span| span.path(spans).join(" > "))
        .collect();
    paths.sort();
    paths
}

#[test]
fn start_of_a_pod_is_one_tree_with_network_container_and_task() {
    let collector = TraceCollector::start();
    let node = traced_node(&collector);
    let (pod, container) = run_traced_pod(&node);

    let spans = spans_until(&collector, "/ExecSync");
    assert_network_is_traced(&spans);
    let create = ["runtime.v1.RuntimeService/CreateContainer", "create_task"];
    let snapshot = "containerd.services.snapshots.v1.Snapshots/Prepare";
    let prepared = spans
        .iter()
        .filter(|span| span.span.name == snapshot)
        .map(|span| span.path(&spans));
    assert!(
        prepared
            .into_iter()
            .any(|path| path == [create[0], create[1], "prepare_snapshot", snapshot])
    );
    let start = ["runtime.v1.RuntimeService/StartContainer", "start_task"];
    let shim = "containerd.services.tasks.v1.Tasks/Create";
    assert_eq!(
        path(&spans, shim),
        [start[0], start[1], "create_process", shim]
    );
    let process = "containerd.services.tasks.v1.Tasks/Start";
    assert_eq!(
        path(&spans, process),
        [start[0], start[1], "start_process", process]
    );
    assert_calls_of_the_shim_are_traced(&spans);
    let pull = ["runtime.v1.ImageService/PullImage", "pull_image"];
    assert_eq!(
        path(&spans, "resolve_image"),
        [pull[0], pull[1], "resolve_image"]
    );
    assert_eq!(
        path(&spans, "unpack_layer"),
        [pull[0], pull[1], "pull_layers", "unpack_layer"]
    );

    let started = spans
        .iter()
        .find(|span| span.span.name == "start_task")
        .expect("it is there");
    assert_eq!(
        started.text("switchyard.task.id").as_deref(),
        Some(&*container)
    );
    assert_eq!(
        started.text("switchyard.sandbox.id").as_deref(),
        Some(&*pod)
    );
    for (key, value) in [
        ("switchyard.owner", "kubernetes"),
        ("k8s.pod.name", "traced"),
        ("k8s.container.name", "main"),
        ("container.id", &*container),
    ] {
        assert_eq!(started.text(key).as_deref(), Some(value), "{key}");
    }
    assert!(!format!("{:?}", collector.spans()).contains(SECRET));
    node.cri().stop_pod(&pod).expect("it stops");
    node.cri().remove_pod(&pod).expect("it is removed");
    node.assert_clean();
}

fn assert_calls_of_the_shim_are_traced(spans: &[CollectedSpan]) {
    // The shim itself is called, which takes the trace among the metadata of the call.
    let is_of_shim = |span: &&CollectedSpan| span.text("rpc.system").as_deref() == Some("ttrpc");
    let of_shim: Vec<_> = spans.iter().filter(is_of_shim).collect();
    for call in ["Task/Exec", "Task/Start", "Task/Wait"] {
        assert!(
            of_shim.iter().any(|span| span.span.name.ends_with(call)),
            "{call}: {:#?}",
            paths(spans)
        );
    }
    for span in of_shim {
        assert_eq!(span.path(spans)[0], "runtime.v1.RuntimeService/ExecSync");
        assert_eq!(span.failure(), None);
    }
}

fn assert_network_is_traced(spans: &[CollectedSpan]) {
    let run = ["runtime.v1.RuntimeService/RunPodSandbox", "create_sandbox"];
    assert_eq!(
        path(spans, "cni_add"),
        [run[0], run[1], "attach_network", "cni_add"]
    );
    let plugins: Vec<_> = spans
        .iter()
        .filter(|span| span.span.name == "cni_plugin")
        .collect();
    assert!(
        plugins
            .iter()
            .any(|span| span.text("switchyard.cni.plugin").as_deref() == Some("bridge"))
    );
    for plugin in plugins {
        assert_eq!(
            plugin.path(spans),
            [run[0], run[1], "attach_network", "cni_add", "cni_plugin"]
        );
        assert_eq!(
            plugin.text("switchyard.cni.command").as_deref(),
            Some("ADD")
        );
    }
    assert_eq!(
        path(spans, "create_namespaces"),
        [run[0], run[1], "create_namespaces"]
    );
}

/// Pulls, runs and starts, each call in a trace of its own, and runs a command. Returns the pod and its container.
fn run_traced_pod(node: &TestNode) -> (String, String) {
    node.registry()
        .push("traced/one:1", &with_file("traced").build());
    let image = cri::ImageSpec {
        image: node.registry().reference("traced/one:1"),
        ..Default::default()
    };
    let pull = cri::PullImageRequest {
        image: Some(image),
        ..Default::default()
    };
    node.cri()
        .images(async |mut images| images.pull_image(in_trace(pull)).await)
        .expect("it is pulled");
    let config = node.pod_config("traced");
    let run = cri::RunPodSandboxRequest {
        config: Some(config.clone()),
        ..Default::default()
    };
    let run = node
        .cri()
        .runtime(async |mut runtime| runtime.run_pod_sandbox(in_trace(run)).await);
    let pod = run.expect("it runs").pod_sandbox_id;
    let mut main = node.container(
        "main",
        &["sh", "-c", &format!("echo {SECRET}; exec sleep 1000")],
    );
    main.envs.push(cri::KeyValue {
        key: "PASSWORD".into(),
        value: SECRET.into(),
    });
    let create = cri::CreateContainerRequest {
        pod_sandbox_id: pod.clone(),
        config: Some(main),
        sandbox_config: Some(config),
    };
    let create = node
        .cri()
        .runtime(async |mut runtime| runtime.create_container(in_trace(create)).await);
    let container = create.expect("it is created").container_id;
    let start = cri::StartContainerRequest {
        container_id: container.clone(),
    };
    node.cri()
        .runtime(async |mut runtime| runtime.start_container(in_trace(start)).await)
        .expect("it starts");

    let exec = cri::ExecSyncRequest {
        container_id: container.clone(),
        cmd: vec!["true".into()],
        timeout: 30,
    };
    let exec = node
        .cri()
        .runtime(async |mut runtime| runtime.exec_sync(in_trace(exec)).await);
    assert_eq!(exec.expect("it runs").exit_code, 0);
    (pod, container)
}

#[test]
fn start_of_a_nomad_task_is_one_tree_also_when_it_fails() {
    let collector = TraceCollector::start();
    let node = traced_node(&collector);
    let agent = Agent::start(node.root(), &json!({}));
    let start = |task: &TaskSetup| {
        let mut client = DriverClient::new(agent.plugin().channel());
        let request = nomad::StartTaskRequest {
            task: Some(task.config.clone()),
        };
        agent
            .runtime()
            .block_on(client.start_task(in_trace(request)))
    };
    let config = json!({ "image": node.image(), "command": "sleep", "args": ["1000"], "network_mode": "host" });
    let mut task = TaskSetup::new(node.root(), &agent, "task", &config);
    assert_eq!(
        start(&task)
            .expect("it is answered")
            .into_inner()
            .driver_error_msg,
        ""
    );
    let config =
        json!({ "image": node.image(), "command": "/no/such/program", "network_mode": "host" });
    let mut broken = TaskSetup::new(node.root(), &agent, "broken", &config);
    start(&broken).expect_err("there is no such program");

    let is_start = |span: &&CollectedSpan| span.span.name.ends_with("Driver/StartTask");
    let both = || collector.spans().iter().filter(is_start).count() == 2;
    assert!(eventually(LIMIT, both), "{:#?}", paths(&collector.spans()));
    let spans = spans_until(&collector, "Driver/StartTask");
    let call = "hashicorp.nomad.plugins.drivers.proto.Driver/StartTask";
    let started = [
        call,
        "start_task",
        "create_process",
        "containerd.services.tasks.v1.Tasks/Create",
    ];
    assert!(
        spans.iter().any(|span| span.path(&spans) == started),
        "{:#?}",
        paths(&spans)
    );
    // The call of the other start says that it failed, and so does all above it but the agent's call: the program that is not
    // there is not a fault of the server.
    for depth in 1..=started.len() {
        let expected = usize::from(depth > 1);
        let failed: Vec<_> = spans
            .iter()
            .filter(|span| span.path(&spans) == started[..depth])
            .filter_map(CollectedSpan::failure)
            .collect();
        assert_eq!(failed.len(), expected, "{failed:?} of {:#?}", paths(&spans));
    }
    let driver = agent.driver();
    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    driver
        .destroy(broken.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
    broken.remove_cgroups();
    agent.stop();
}
