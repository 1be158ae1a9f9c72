//! Events and metrics of the real daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1::ContainerEventType as Kind;
use switchyard_tests::cri::{Cri, limits};
use switchyard_tests::host::cgroups;
use switchyard_tests::node::{TestNode, TestPod};
use tokio::sync::watch;
use tonic::{Code, Response, Status};

/// Time for an event to arrive.
const SOON: Duration = Duration::from_secs(20);

/// The events that a client gets about one pod until the pod is gone or the stream is cut.
fn follow(client: &Cri, uid: &str, events: &mpsc::Sender<Option<cri::ContainerEventResponse>>) {
    let watched = client.runtime(async |mut client| {
        let mut stream = client
            .get_container_events(cri::GetEventsRequest {})
            .await?
            .into_inner();
        // From here on nothing is missed.
        let _ = events.send(None);
        while let Some(message) = stream.message().await? {
            let pod = message.pod_sandbox_status.clone().unwrap_or_default();
            if pod.metadata.unwrap_or_default().uid != uid {
                continue;
            }
            let gone = message.container_id == pod.id
                && message.container_event_type() == Kind::ContainerDeletedEvent;
            let _ = events.send(Some(message));
            if gone {
                break;
            }
        }
        Ok::<_, Status>(Response::new(()))
    });
    // The kill of a daemon cuts its streams; the reader of the channel sees their end.
    let _ = watched;
}

#[test]
fn pod_lifecycle_events_include_the_exit_reason() {
    let node = TestNode::shared();
    let config = node.pod_config("watched");
    let uid = config.metadata.clone().expect("it was just made").uid;
    let (tell, events) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| follow(node.cri(), &uid, &tell));
        assert!(
            events
                .recv_timeout(SOON)
                .expect("events are served")
                .is_none()
        );
        let next = || {
            events
                .recv_timeout(SOON)
                .expect("it is reported soon")
                .expect("it is an event")
        };
        let pod = node.run(config.clone());
        let made = next();
        let ready = next();
        assert_eq!(
            (made.container_event_type(), made.container_id.as_str()),
            (Kind::ContainerCreatedEvent, pod.id())
        );
        assert_eq!(ready.container_event_type(), Kind::ContainerStartedEvent);
        assert_eq!(
            ready.pod_sandbox_status.and_then(|status| status.network),
            pod.status().network
        );
        let id = pod.start_shell("main", "exit 3");
        let kinds: Vec<_> = (0..3).map(|_| next()).collect();
        let seen: Vec<_> = kinds
            .iter()
            .map(|event| (event.container_event_type(), event.container_id.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                (Kind::ContainerCreatedEvent, id.as_str()),
                (Kind::ContainerStartedEvent, &id),
                (Kind::ContainerStoppedEvent, &id)
            ]
        );
        let status = &kinds[2].containers_statuses[0];
        assert_eq!((status.exit_code, status.reason.as_str()), (3, "Error"));
        // The timestamp of a status that is queried later is later than the events that it includes.
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id: pod.id().to_owned(),
            verbose: false,
        };
        let answer = node
            .cri()
            .runtime(async |mut client| client.pod_sandbox_status(request).await);
        let answer = answer.expect("the pod exists");
        assert!(answer.timestamp > kinds[2].created_at);
        assert_eq!(answer.containers_statuses[0].id, id);
        let pod_id = pod.id().to_owned();
        drop(pod);
        let ends: Vec<_> = (0..3).map(|_| next()).collect();
        let seen: Vec<_> = ends
            .iter()
            .map(|event| (event.container_event_type(), event.container_id.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                (Kind::ContainerStoppedEvent, pod_id.as_str()),
                (Kind::ContainerDeletedEvent, &id),
                (Kind::ContainerDeletedEvent, &pod_id)
            ]
        );
    });
}

#[test]
fn resubscriber_gets_running_containers_after_daemon_kill() {
    let node = TestNode::start();
    let pod = node.pod("kept");
    let id = pod.start_shell("main", "exec sleep 1000");
    let uid = pod.config().metadata.clone().expect("it was just made").uid;
    let (tell, events) = mpsc::channel();
    thread::scope(|scope| {
        let first = scope.spawn(|| follow(node.cri(), &uid, &tell));
        let standing: Vec<_> = (0..3)
            .map(|_| events.recv_timeout(SOON).expect("it is reported soon"))
            .collect();
        assert!(standing[0].is_none());
        node.daemon().kill9();
        first.join().expect("the stream is cut");
        node.daemon().restart();
        let again = scope.spawn(|| follow(node.cri(), &uid, &tell));
        assert!(
            events
                .recv_timeout(SOON)
                .expect("events are served")
                .is_none()
        );
        let kinds: BTreeMap<_, _> = (0..2)
            .map(|_| {
                events
                    .recv_timeout(SOON)
                    .expect("it is reported soon")
                    .expect("it is an event")
            })
            .map(|event| (event.container_id.clone(), event.container_event_type()))
            .collect();
        let expected =
            [pod.id().to_owned(), id.clone()].map(|id| (id, Kind::ContainerStartedEvent));
        assert_eq!(kinds, expected.into());
        drop(pod);
        again.join().expect("the pod is gone");
    });
}

/// Creates and removes more containers in a pod than events are buffered for a client that does not read.
fn overflow_event_buffer(node: &TestNode, pod: &TestPod<'_>) {
    const CONTAINER_COUNT: usize = 140;
    const CLIENTS: usize = 4;
    // Each has an event of its creation and of its removal.
    const { assert!(2 * CONTAINER_COUNT * CLIENTS > switchyard_core::event::CAPACITY) };
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                for life in 0..CONTAINER_COUNT {
                    let id =
                        pod.create(&node.container(&format!("life-{client}-{life}"), &["true"]));
                    node.cri().remove(&id).expect("it can be removed");
                }
            });
        }
    });
}

#[test]
fn thousand_stalled_event_clients_cost_little_and_block_nobody() {
    const CONNECTIONS: usize = 10;
    let node = TestNode::start();
    let standing = node.pod("standing");
    let (open, opened) = mpsc::channel();
    let (done, finish) = watch::channel(false);
    let before = resident_bytes(node.daemon().pid());
    thread::scope(|scope| {
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS {
            // A message is not received until the client reads it.
            let open = open.clone();
            let mut finish = finish.clone();
            let client = node.cri().with_window(1);
            held.push(scope.spawn(move || stall(&client, &open, &mut finish)));
        }
        for _ in 0..CONNECTIONS {
            opened.recv_timeout(SOON * 3).expect("all are served");
        }
        overflow_event_buffer(&node, &standing);
        let pod = node.pod("busy");
        assert_eq!(pod.run_shell("echo served", |_| {}), "served");
        let grown = resident_bytes(node.daemon().pid()).saturating_sub(before);
        done.send_replace(true);
        assert!(
            grown < 64 << 20,
            "a thousand stalled clients take {} MiB",
            grown >> 20
        );
        for stalled in held {
            let (events, status) = stalled.join().expect("it does not panic");
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            assert!(status.message().contains("were missed"), "{status}");
            // What was on its way when they began to stall, and no more.
            assert!(
                (1..8).contains(&events),
                "{events} messages waited for a client that takes none"
            );
        }
    });
    // A client that reconnects first gets the current state.
    let first = node.cri().runtime(async |mut client| {
        let mut stream = client
            .get_container_events(cri::GetEventsRequest {})
            .await?
            .into_inner();
        stream.message().await.map(Response::new)
    });
    let first = first.expect("events are served").expect("a pod stands");
    assert_eq!(
        (first.container_id.as_str(), first.container_event_type()),
        (standing.id(), Kind::ContainerStartedEvent)
    );
}

/// Opens streams of events, and reads none until the test is done. Returns the number of events that one of
/// them has then, and the status with which it ends.
fn stall(
    client: &Cri,
    open: &mpsc::Sender<()>,
    finish: &mut watch::Receiver<bool>,
) -> (usize, Status) {
    const STREAMS: usize = 100;
    let stalled = client.runtime(async |mut client| {
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            streams.push(
                client
                    .get_container_events(cri::GetEventsRequest {})
                    .await?
                    .into_inner(),
            );
        }
        let _ = open.send(());
        let _ = finish.wait_for(|done| *done).await;
        // One of the objects returns to the state that was reported last.
        let mut events = 0;
        loop {
            match streams[0].message().await {
                Ok(Some(_)) => events += 1,
                Ok(None) => return Err(Status::internal("the stream ended without a reason")),
                Err(status) => return Ok(Response::new((events, status))),
            }
        }
    });
    stalled.expect("each stream is served")
}

/// The resident memory of a process.
fn resident_bytes(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).expect("it runs");
    let pages: u64 = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("statm has numbers");
    pages * 4096
}

/// Metrics that critest lets a runtime leave out, and metrics that have no source on every node.
const OPTIONAL_METRICS: [&str; 16] = [
    "container_blkio_device_usage_total",
    "container_fs_reads_bytes_total",
    "container_fs_reads_total",
    "container_fs_writes_bytes_total",
    "container_fs_writes_total",
    "container_hugetlb_max_usage_bytes",
    "container_hugetlb_usage_bytes",
    "container_pressure_cpu_stalled_seconds_total",
    "container_pressure_cpu_waiting_seconds_total",
    "container_pressure_io_stalled_seconds_total",
    "container_pressure_io_waiting_seconds_total",
    "container_pressure_memory_stalled_seconds_total",
    "container_pressure_memory_waiting_seconds_total",
    "container_spec_cpu_quota",
    "container_spec_memory_reservation_limit_bytes",
    "container_ulimits_soft",
];

/// The values of one metric, each with its labels by key.
type Values = Vec<(BTreeMap<String, String>, u64)>;

/// The metrics of a pod and its containers, by name.
fn metrics(client: &Cri, pod: &str) -> BTreeMap<String, Values> {
    let request = cri::ListMetricDescriptorsRequest {};
    let known = client.runtime(async |mut client| client.list_metric_descriptors(request).await);
    let known: BTreeMap<_, _> = known
        .expect("they are served")
        .descriptors
        .into_iter()
        .map(|descriptor| (descriptor.name, descriptor.label_keys))
        .collect();
    let request = cri::ListPodSandboxMetricsRequest {};
    let answer = client.runtime(async |mut client| client.list_pod_sandbox_metrics(request).await);
    let pods = answer.expect("they are served").pod_metrics;
    let pod = pods
        .into_iter()
        .find(|metrics| metrics.pod_sandbox_id == pod)
        .expect("the pod is ready");
    let mut all: BTreeMap<_, _> = known
        .keys()
        .map(|name| (name.clone(), Vec::new()))
        .collect();
    let inside = pod
        .container_metrics
        .into_iter()
        .flat_map(|container| container.metrics);
    for metric in pod.metrics.into_iter().chain(inside) {
        let keys = &known[&metric.name];
        assert_eq!(keys.len(), metric.label_values.len(), "{metric:?}");
        let labels = keys.iter().cloned().zip(metric.label_values).collect();
        let value = metric.value.expect("every metric has a value").value;
        all.entry(metric.name)
            .or_insert_with(Vec::new)
            .push((labels, value));
    }
    all
}

#[test]
fn metrics_required_by_critest_match_the_kernel() {
    let node = TestNode::shared();
    let pod = node.pod("metrics");
    let script =
        "mkdir -p /data; for i in 1 2 3; do echo hi > /data/$i; done; sync; exec sleep 1000";
    let id = pod.start_shell_with("main", script, |config| {
        let limits = limits(config);
        limits.cpu_period = 100_000;
        limits.cpu_quota = 20_000;
        limits.cpu_shares = 1024;
        limits.memory_limit_in_bytes = 64 << 20;
        limits.memory_swap_limit_in_bytes = 64 << 20;
    });
    let all = metrics(node.cri(), pod.id());
    let silent: BTreeSet<_> = all
        .iter()
        .filter(|(_, values)| values.is_empty())
        .map(|(name, _)| name.as_str())
        .collect();
    let missing: Vec<_> = silent
        .iter()
        .filter(|name| !OPTIONAL_METRICS.contains(name))
        .collect();
    assert!(missing.is_empty(), "{missing:?} have no value");
    assert_eq!(
        all.len() - OPTIONAL_METRICS.len(),
        40,
        "the names that critest asserts with values"
    );

    let value = |name: &str| all[name].first().map(|(_, value)| *value);
    assert_eq!(value("container_spec_cpu_quota"), Some(20_000));
    assert_eq!(value("container_spec_memory_limit_bytes"), Some(64 << 20));
    assert!(value("container_processes").expect("it has one") >= 1);
    assert!(value("container_threads_max").expect("it has one") > 1);
    assert!(value("container_ulimits_soft").is_some());
    let (labels, usage) = &all["container_memory_working_set_bytes"][0];
    assert!((1..64 << 20).contains(usage), "{usage}");
    let name = |key: &str| labels[key].as_str();
    assert_eq!(
        (
            name("pod"),
            name("namespace"),
            name("container"),
            name("id")
        ),
        ("metrics", "tests", "main", id.as_str())
    );
    assert_eq!(name("image"), node.image());
    assert_eq!(
        all["container_network_receive_packets_total"][0].0["interface"],
        "eth0"
    );

    // Metrics that the kernel counts are reported, those that it does not count are absent.
    let groups = cgroups::named(&id);
    let counted = |file: &str| {
        groups
            .iter()
            .any(|dir| fs::read_to_string(dir.join(file)).is_ok())
    };
    for (resource, metric) in [("cpu", "cpu"), ("memory", "memory"), ("io", "io")] {
        let events = value(&format!(
            "container_pressure_{metric}_waiting_seconds_total"
        ))
        .is_some();
        assert_eq!(
            events,
            counted(&format!("{resource}.pressure")),
            "{resource}.pressure in {groups:?}"
        );
    }
    let stats = node.cri().stats(&id).expect("it has stats");
    let psi = stats.cpu.expect("it is reported").psi.is_some();
    assert_eq!(psi, counted("cpu.pressure"));
}
