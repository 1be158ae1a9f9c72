//! Compares the lists that are answered from cached encodings with the answers of the generated server.

use std::convert::Infallible;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use prost::Message;
use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::id::Owner;
use switchyard_fake::{BUSYBOX, Fake};
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1::image_service_server::ImageService as _;
use switchyard_proto::cri::v1::runtime_service_server::RuntimeService as _;

use tonic::codegen::http;

use super::*;
use crate::config::Config;
use crate::image::Images;
use crate::routed::MethodRouter;
use crate::service::services;

/// A gateway with its services, without a socket.
struct ServerFixture {
    gateway: Gateway,
    service: RuntimeService,
    images: Images,
}

/// An answer: the headers, which contain the status on failure, the body, and the trailers.
type Raw = (http::HeaderMap, Bytes, Option<http::HeaderMap>);

impl ServerFixture {
    fn new() -> Self {
        Self::within(Limits::default())
    }

    fn within(limits: Limits) -> Self {
        let gateway = Gateway::new(Arc::new(Fake::with_busybox()), limits);
        let scope = gateway.scope(Owner::Kubernetes);
        let service = services(scope.clone(), Config::default().into(), None, None)
            .runtime
            .0;
        Self {
            gateway,
            service,
            images: Images::new(scope),
        }
    }

    /// Completes the recovery, and pulls the image of the containers.
    async fn prepare(&self) {
        self.gateway.recover().await.expect("the fake recovers");
        let request = cri::PullImageRequest {
            image: Some(cri::ImageSpec {
                image: BUSYBOX.into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        self.images
            .pull_image(tonic::Request::new(request))
            .await
            .expect("the registry has it");
    }

    async fn pod(&self, name: &str) -> String {
        let metadata = cri::PodSandboxMetadata {
            name: name.into(),
            uid: name.into(),
            namespace: "shop".into(),
            attempt: 0,
        };
        let labels = [
            ("name".into(), name.into()),
            ("tier".into(), "front".into()),
        ]
        .into();
        let annotations = [("note".into(), "kept".into())].into();
        let config = cri::PodSandboxConfig {
            metadata: Some(metadata),
            log_directory: "/logs".into(),
            labels,
            annotations,
            ..Default::default()
        };
        let request = cri::RunPodSandboxRequest {
            config: Some(config),
            ..Default::default()
        };
        let answer = self
            .service
            .runtime
            .run_pod_sandbox(tonic::Request::new(request))
            .await;
        answer
            .expect("it is well formed")
            .into_inner()
            .pod_sandbox_id
    }

    async fn container(&self, pod: &str, name: &str) -> String {
        let config = cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: name.into(),
                attempt: 2,
            }),
            image: Some(cri::ImageSpec {
                image: BUSYBOX.into(),
                ..Default::default()
            }),
            command: vec!["top".into()],
            labels: [("name".into(), name.into())].into(),
            ..Default::default()
        };
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: pod.into(),
            config: Some(config),
            sandbox_config: None,
        };
        let answer = self
            .service
            .runtime
            .create_container(tonic::Request::new(request))
            .await;
        answer.expect("it is well formed").into_inner().container_id
    }

    /// Calls both servers, and fails unless their answers are equal.
    async fn ask(&self, method: &str, message: &[u8]) -> Raw {
        let kept = call(MethodRouter(self.service.clone()), method, message).await;
        let generated = call(self.service.generated.clone(), method, message).await;
        assert_eq!(kept, generated, "{method} {message:?}");
        kept
    }

    async fn containers(&self, filter: cri::ContainerFilter) -> usize {
        let request = cri::ListContainersRequest {
            filter: Some(filter),
        };
        let (_, body, _) = self.ask("ListContainers", &request.encode_to_vec()).await;
        cri::ListContainersResponse::decode(&body[5..])
            .expect("it is a list")
            .containers
            .len()
    }

    async fn pods(&self, filter: cri::PodSandboxFilter) -> usize {
        let request = cri::ListPodSandboxRequest {
            filter: Some(filter),
        };
        let (_, body, _) = self.ask("ListPodSandbox", &request.encode_to_vec()).await;
        cri::ListPodSandboxResponse::decode(&body[5..])
            .expect("it is a list")
            .items
            .len()
    }
}

async fn call<S>(service: S, method: &str, message: &[u8]) -> Raw
where
    S: Service<Request, Response = http::Response<tonic::body::Body>, Error = Infallible>,
{
    let (parts, body) = respond(service, method, message).await.into_parts();
    let body = body.collect().await.expect("the body comes whole");
    let trailers = body.trailers().cloned();
    (parts.headers, body.to_bytes(), trailers)
}

/// Calls a server, and does not read the body of its response.
async fn respond<S>(
    mut service: S,
    method: &str,
    message: &[u8],
) -> http::Response<tonic::body::Body>
where
    S: Service<Request, Response = http::Response<tonic::body::Body>, Error = Infallible>,
{
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(message.len().try_into().expect("it is short"));
    body.put_slice(message);
    let request = http::Request::post(format!("/{}/{method}", RuntimeService::NAME))
        .header("content-type", "application/grpc")
        .body(tonic::body::Body::new(Full::new(body.freeze())))
        .expect("it is well formed");
    let Ok(answer) = service.call(request).await;
    answer
}

fn labelled(name: &str) -> std::collections::BTreeMap<String, String> {
    [("name".into(), name.into())].into()
}

#[tokio::test]
async fn lists_match_the_generated_server_byte_for_byte() {
    let node = ServerFixture::new();
    node.prepare().await;
    assert_eq!(node.containers(cri::ContainerFilter::default()).await, 0);
    let web = node.pod("web").await;
    let db = node.pod("db").await;
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        ids.push(node.container(&web, name).await);
        assert_eq!(
            node.containers(cri::ContainerFilter::default()).await,
            ids.len()
        );
    }
    node.container(&db, "a").await;

    change_states(&node, &ids, &db).await;

    assert_containers_are_filtered(&node, &ids, &web).await;

    assert_pods_are_filtered(&node, &db).await;
}

/// Starts the first container, removes the second, and stops a pod.
async fn change_states(node: &ServerFixture, ids: &[String], pod: &str) {
    let runtime = &node.service.runtime;
    let start = cri::StartContainerRequest {
        container_id: ids[0].clone(),
    };
    runtime
        .start_container(tonic::Request::new(start))
        .await
        .expect("it can be started");
    let remove = cri::RemoveContainerRequest {
        container_id: ids[1].clone(),
    };
    runtime
        .remove_container(tonic::Request::new(remove))
        .await
        .expect("it can be removed");
    let stop = cri::StopPodSandboxRequest {
        pod_sandbox_id: pod.to_owned(),
    };
    runtime
        .stop_pod_sandbox(tonic::Request::new(stop))
        .await
        .expect("it can be stopped");
}

/// The second of three containers is removed, and only the first runs.
async fn assert_containers_are_filtered(node: &ServerFixture, ids: &[String], web: &str) {
    let state = |state: cri::ContainerState| {
        Some(cri::ContainerStateValue {
            state: state.into(),
        })
    };
    let of = |filter: cri::ContainerFilter| node.containers(filter);
    let any = cri::ContainerFilter::default;
    assert_eq!(of(any()).await, 3);
    assert_eq!(
        of(cri::ContainerFilter {
            id: ids[2].clone(),
            ..any()
        })
        .await,
        1
    );
    assert_eq!(
        of(cri::ContainerFilter {
            id: ids[1].clone(),
            ..any()
        })
        .await,
        0
    );
    assert_eq!(
        of(cri::ContainerFilter {
            pod_sandbox_id: web.to_owned(),
            ..any()
        })
        .await,
        2
    );
    assert_eq!(
        of(cri::ContainerFilter {
            label_selector: labelled("a"),
            ..any()
        })
        .await,
        2
    );
    let running = state(cri::ContainerState::ContainerRunning);
    assert_eq!(
        of(cri::ContainerFilter {
            state: running,
            ..any()
        })
        .await,
        1
    );
    let unknown = Some(cri::ContainerStateValue { state: 77 });
    assert_eq!(
        of(cri::ContainerFilter {
            state: unknown,
            ..any()
        })
        .await,
        0
    );
}

async fn assert_pods_are_filtered(node: &ServerFixture, db: &str) {
    let any = cri::PodSandboxFilter::default;
    let ready = cri::PodSandboxStateValue {
        state: cri::PodSandboxState::SandboxReady.into(),
    };
    assert_eq!(node.pods(any()).await, 2);
    assert_eq!(
        node.pods(cri::PodSandboxFilter {
            state: Some(ready),
            ..any()
        })
        .await,
        1
    );
    assert_eq!(
        node.pods(cri::PodSandboxFilter {
            id: db.to_owned(),
            ..any()
        })
        .await,
        1
    );
    assert_eq!(
        node.pods(cri::PodSandboxFilter {
            label_selector: labelled("web"),
            ..any()
        })
        .await,
        1
    );
}

#[tokio::test]
async fn errors_match_the_generated_server() {
    let node = ServerFixture::new();
    for method in ["ListContainers", "ListPodSandbox"] {
        let (unrecovered, _, _) = node.ask(method, &[]).await;
        assert_eq!(unrecovered["grpc-status"], "14", "unavailable");
        let (malformed, _, _) = node.ask(method, &[0xff]).await;
        assert_eq!(malformed["grpc-status"], "13", "internal");
        let (too_large, _, _) = node.ask(method, &vec![0; MAX_MESSAGE_BYTES + 1]).await;
        assert_ne!(too_large["grpc-status"], "0");
    }
}

#[tokio::test]
async fn output_of_a_command_counts_until_the_client_has_it() {
    let node = ServerFixture::within(Limits {
        exec_output_bytes: 4 << 20,
        ..Limits::default()
    });
    node.prepare().await;
    let pod = node.pod("web").await;
    let container_id = node.container(&pod, "a").await;
    let start = cri::StartContainerRequest {
        container_id: container_id.clone(),
    };
    node.service
        .runtime
        .start_container(tonic::Request::new(start))
        .await
        .expect("it can be started");
    // More than half of what one container may have.
    let command = ["head", "-c", "600000", "/dev/zero"].map(str::to_owned);
    let request = cri::ExecSyncRequest {
        container_id,
        cmd: command.into(),
        timeout: 0,
    };
    let request = request.encode_to_vec();
    let respond = || respond(MethodRouter(node.service.clone()), "ExecSync", &request);
    let is_refused = async || {
        let response = respond().await;
        let status = response.headers().get("grpc-status");
        status.is_some_and(|code| code == "8")
    };
    let mut body = respond().await.into_body();
    assert!(is_refused().await, "no part of the first answer was read");
    let frame = body.frame().await.expect("it has data");
    let data = frame.expect("it comes whole").into_data();
    let data = data.expect("data are before trailers");
    assert!(data.len() > 600_000);
    drop(body);
    assert!(is_refused().await, "its data wait in a connection");
    drop(data);
    assert!(!is_refused().await, "its data have been sent");
}
