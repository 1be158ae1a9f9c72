//! Tests of the events that clients of GetContainerEvents receive, of their order, and of clients that do not
//! read.

use std::collections::BTreeMap;
use std::time::Duration;

use cri::ContainerEventType as Kind;
use cri::runtime_service_server::RuntimeService;
use switchyard_core::event::CAPACITY;
use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::id::Owner;
use switchyard_fake::{BUSYBOX, Fake};
use tonic::{Code, Request};

use super::*;
use crate::config::Config;
use crate::from_proto;
use crate::record::SandboxRecord;

/// A gateway over the fake backend, and the service of one owner.
struct EventsFixture {
    fake: Fake,
    gateway: Gateway,
    runtime: Runtime,
}

type Stream = batch::Stream<cri::ContainerEventResponse>;

impl EventsFixture {
    async fn new() -> Self {
        let fake = Fake::with_busybox();
        let gateway = Gateway::new(Arc::new(fake.clone()), Limits::default());
        gateway.recover().await.expect("the fake recovers");
        let runtime = Runtime::new(
            gateway.scope(Owner::Kubernetes),
            Config::default().into(),
            None,
            None,
        );
        Self {
            fake,
            gateway,
            runtime,
        }
    }

    async fn follow(&self) -> Stream {
        let answer = self
            .runtime
            .get_container_events(Request::new(cri::GetEventsRequest {}))
            .await;
        answer.expect("it is served").into_inner()
    }

    fn config(name: &str) -> cri::PodSandboxConfig {
        let metadata = cri::PodSandboxMetadata {
            name: name.into(),
            uid: format!("uid-{name}"),
            namespace: "shop".into(),
            attempt: 0,
        };
        cri::PodSandboxConfig {
            metadata: Some(metadata),
            ..Default::default()
        }
    }

    async fn run(&self, name: &str) -> String {
        let request = cri::RunPodSandboxRequest {
            config: Some(Self::config(name)),
            ..Default::default()
        };
        self.runtime
            .run_sandbox(request)
            .await
            .expect("it is well formed")
            .pod_sandbox_id
    }

    async fn create(&self, sandbox: &str) -> String {
        let image = cri::ImageSpec {
            image: BUSYBOX.into(),
            ..Default::default()
        };
        let metadata = cri::ContainerMetadata {
            name: "app".into(),
            attempt: 0,
        };
        let config = cri::ContainerConfig {
            metadata: Some(metadata),
            image: Some(image),
            command: vec!["top".into()],
            ..Default::default()
        };
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(config),
            sandbox_config: None,
        };
        self.runtime
            .create(request)
            .await
            .expect("it is well formed")
            .container_id
    }

    async fn start(&self, id: &str) {
        let request = cri::StartContainerRequest {
            container_id: id.into(),
        };
        self.runtime.start(request).await.expect("it is created");
    }

    async fn remove(&self, id: &str) {
        let request = cri::RemovePodSandboxRequest {
            pod_sandbox_id: id.into(),
        };
        self.runtime.remove_sandbox(request).await.expect("it goes");
    }

    async fn pull(&self) {
        let scope = self.gateway.scope(Owner::Kubernetes);
        let request = switchyard_core::image::PullRequest {
            reference: BUSYBOX.into(),
            credentials: switchyard_core::image::Credentials::Anonymous,
            handler: String::new(),
            owner: Owner::Kubernetes,
        };
        scope
            .images()
            .pull(&request)
            .await
            .expect("the registry has it");
    }
}

async fn next(stream: &mut Stream) -> cri::ContainerEventResponse {
    let next = tokio::time::timeout(Duration::from_secs(10), stream.next()).await;
    next.expect("it comes soon")
        .expect("the stream continues")
        .expect("it is no error")
}

/// The next messages, as ids and kinds.
async fn next_events(stream: &mut Stream, count: usize) -> Vec<(String, Kind)> {
    let mut all = Vec::new();
    for _ in 0..count {
        let message = next(stream).await;
        all.push((message.container_id.clone(), message.container_event_type()));
    }
    all
}

#[tokio::test]
async fn lifecycle_events_come_in_order_with_pod_and_container_statuses() {
    let fixture = EventsFixture::new().await;
    fixture.pull().await;
    let mut stream = fixture.follow().await;
    let pod = fixture.run("web").await;
    assert_eq!(
        next_events(&mut stream, 2).await,
        [
            (pod.clone(), Kind::ContainerCreatedEvent),
            (pod.clone(), Kind::ContainerStartedEvent)
        ]
    );
    let id = fixture.create(&pod).await;
    fixture.start(&id).await;
    let created = next(&mut stream).await;
    let started = next(&mut stream).await;
    assert_eq!(created.container_event_type(), Kind::ContainerCreatedEvent);
    assert_eq!(started.container_event_type(), Kind::ContainerStartedEvent);
    assert!(created.created_at < started.created_at);
    let sandbox = started.pod_sandbox_status.expect("it is always reported");
    let uid = sandbox.metadata.expect("it is always reported").uid;
    assert_eq!(
        (sandbox.id.as_str(), uid.as_str()),
        (pod.as_str(), "uid-web")
    );
    assert!(!sandbox.network.expect("it is ready").ip.is_empty());
    let [status] = started.containers_statuses.as_slice() else {
        panic!("there is one container")
    };
    assert_eq!(
        (status.id.as_str(), status.state()),
        (id.as_str(), cri::ContainerState::ContainerRunning)
    );
    fixture
        .fake
        .exit(id.parse().expect("it is an id"), 3)
        .expect("it runs");
    let stopped = next(&mut stream).await;
    assert_eq!(stopped.container_event_type(), Kind::ContainerStoppedEvent);
    assert_eq!(stopped.containers_statuses[0].exit_code, 3);
    fixture.remove(&pod).await;
    assert_eq!(
        next_events(&mut stream, 2).await,
        [
            (pod.clone(), Kind::ContainerStoppedEvent),
            (id, Kind::ContainerDeletedEvent)
        ]
    );
    let gone = next(&mut stream).await;
    assert_eq!(
        (&gone.container_id, gone.container_event_type()),
        (&pod, Kind::ContainerDeletedEvent)
    );
    let sandbox = gone
        .pod_sandbox_status
        .expect("what is gone is reported as it was last");
    assert_eq!(sandbox.state(), cri::PodSandboxState::SandboxNotready);
    assert_eq!(sandbox.metadata.expect("it is kept").uid, "uid-web");
    assert_eq!(gone.containers_statuses, []);
}

#[tokio::test]
async fn late_subscriber_gets_current_containers_first() {
    let fixture = EventsFixture::new().await;
    fixture.pull().await;
    let pod = fixture.run("web").await;
    let running = fixture.create(&pod).await;
    fixture.start(&running).await;
    let stopped = fixture.run("old").await;
    let request = cri::StopPodSandboxRequest {
        pod_sandbox_id: stopped.clone(),
    };
    fixture
        .runtime
        .stop_sandbox(request)
        .await
        .expect("it stops");
    let mut stream = fixture.follow().await;
    let late = fixture.run("late").await;
    let standing: BTreeMap<_, _> = next_events(&mut stream, 3).await.into_iter().collect();
    let expected = [
        (pod, Kind::ContainerStartedEvent),
        (running, Kind::ContainerStartedEvent),
        (stopped, Kind::ContainerStoppedEvent),
    ];
    assert_eq!(standing, expected.into());
    let event = next(&mut stream).await;
    assert_eq!(
        (event.container_id, event.container_event_type),
        (late, Kind::ContainerCreatedEvent.into())
    );
}

#[tokio::test]
async fn pod_status_and_events_have_ordered_timestamps() {
    let fixture = EventsFixture::new().await;
    let mut stream = fixture.follow().await;
    let pod = fixture.run("web").await;
    let request = || cri::PodSandboxStatusRequest {
        pod_sandbox_id: pod.clone(),
        verbose: false,
    };
    let before = fixture
        .runtime
        .sandbox_status(request())
        .await
        .expect("it is there");
    let created = next(&mut stream).await;
    assert!(created.created_at < before.timestamp);
    let started = next(&mut stream).await;
    assert_eq!(started.container_event_type(), Kind::ContainerStartedEvent);
    fixture.remove(&pod).await;
    assert!(next(&mut stream).await.created_at > before.timestamp);
}

#[tokio::test]
async fn events_exclude_other_owners() {
    let fixture = EventsFixture::new().await;
    let request = SandboxRecord {
        config: Some(EventsFixture::config("theirs")),
        runtime_handler: String::new(),
    };
    let mut spec = from_proto::sandbox(request, &Config::default(), SystemTime::now())
        .expect("it is well formed");
    spec.meta.owner = Owner::Nomad;
    let nomad = fixture.gateway.scope(Owner::Nomad);
    let theirs = nomad
        .sandboxes()
        .create(spec)
        .await
        .expect("it is well formed")
        .id
        .to_string();
    let mut stream = fixture.follow().await;
    nomad.sandboxes().remove(&theirs).await.expect("it goes");
    let own = fixture.run("own").await;
    assert_eq!(
        next_events(&mut stream, 1).await,
        [(own, Kind::ContainerCreatedEvent)]
    );
}

#[tokio::test]
async fn lagging_event_client_is_disconnected_and_can_resubscribe() {
    let fixture = EventsFixture::new().await;
    let mut slow = fixture.follow().await;
    for _ in 0..=CAPACITY.div_ceil(3) {
        let pod = fixture.run("web").await;
        fixture.remove(&pod).await;
    }
    let last = fixture.run("last").await;
    let error = slow
        .next()
        .await
        .expect("it is reported")
        .expect_err("events were missed");
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert!(
        error.message().contains("events were missed"),
        "{}",
        error.message()
    );
    assert!(slow.next().await.is_none(), "it is the last word");
    let mut again = fixture.follow().await;
    assert_eq!(
        next_events(&mut again, 1).await,
        [(last, Kind::ContainerStartedEvent)]
    );
}

#[tokio::test]
async fn stalled_event_clients_block_nobody_and_are_disconnected() {
    let fixture = EventsFixture::new().await;
    let standing = fixture.run("standing").await;
    let mut stalled = Vec::new();
    for _ in 0..1000 {
        stalled.push(fixture.follow().await);
    }
    let mut listening = fixture.follow().await;
    assert_eq!(
        next_events(&mut listening, 1).await,
        [(standing.clone(), Kind::ContainerStartedEvent)]
    );
    for _ in 0..=CAPACITY.div_ceil(3) {
        let pod = fixture.run("web").await;
        fixture.remove(&pod).await;
        assert_eq!(
            next_events(&mut listening, 4).await[3],
            (pod, Kind::ContainerDeletedEvent)
        );
    }
    for stream in &mut stalled {
        // The initial state is sent in any case.
        assert_eq!(
            next_events(stream, 1).await,
            [(standing.clone(), Kind::ContainerStartedEvent)]
        );
        let error = stream
            .next()
            .await
            .expect("it is reported")
            .expect_err("events were missed");
        assert_eq!(error.code(), Code::ResourceExhausted);
    }
}

#[tokio::test]
async fn event_stream_ends_at_gateway_shutdown() {
    let fixture = EventsFixture::new().await;
    let mut stream = fixture.follow().await;
    fixture
        .gateway
        .shut_down(Duration::from_secs(5))
        .await
        .expect("nothing is in flight");
    let error = stream
        .next()
        .await
        .expect("it is reported")
        .expect_err("there is nothing to come");
    assert_eq!(error.code(), Code::Unavailable);
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn rejected_create_emits_no_event() {
    let fixture = EventsFixture::new().await;
    let mut stream = fixture.follow().await;
    let mut config = EventsFixture::config("first");
    config.port_mappings = vec![cri::PortMapping {
        container_port: 80,
        host_port: 80,
        ..Default::default()
    }];
    let run = async |config: cri::PodSandboxConfig| {
        let request = cri::RunPodSandboxRequest {
            config: Some(config),
            ..Default::default()
        };
        fixture
            .runtime
            .run_sandbox(request)
            .await
            .map(|made| made.pod_sandbox_id)
    };
    let first = run(config.clone()).await.expect("the port is free");
    let mut second = EventsFixture::config("second");
    second.port_mappings = config.port_mappings;
    let refused = run(second).await.expect_err("the port is taken");
    assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
    let third = fixture.run("third").await;
    let seen = next_events(&mut stream, 4).await;
    let expected = [&first, &first, &third, &third];
    assert!(seen.iter().map(|(id, _)| id).eq(expected), "{seen:?}");
}
