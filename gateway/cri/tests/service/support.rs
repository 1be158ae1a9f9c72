//! A node under test: a fake backend, a gateway, a server on its own socket, and clients.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::id::Owner;
use switchyard_core::ledger::MemoryStore;
use switchyard_core::operation::Operations;
use switchyard_core::spec::CpuSet;
use switchyard_cri::{Config, ExclusiveCpus, services};
use switchyard_fake::{BUSYBOX, Fake};
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1::image_service_client::ImageServiceClient;
use switchyard_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Status};

/// The largest message of CRI clients, and of our server.
const MESSAGE_LIMIT: usize = 16 << 20;

pub(crate) struct ServiceFixture {
    pub(crate) fake: Fake,
    pub(crate) gateway: Gateway,
    pub(crate) runtime: RuntimeServiceClient<Channel>,
    pub(crate) images: ImageServiceClient<Channel>,
    /// For clients of other versions.
    pub(crate) channel: Channel,
    /// The operations in flight.
    pub(crate) operations: Operations,
    /// The state that survives the daemon on disk.
    leases: Arc<MemoryStore>,
    server: JoinHandle<()>,
    _dir: TempDir,
}

impl Drop for ServiceFixture {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A kubelet that has assigned CPU 1 exclusively to a container.
#[derive(Debug)]
struct PodResources;

#[tonic::async_trait]
impl ExclusiveCpus for PodResources {
    async fn exclusive(&self) -> switchyard_core::Result<CpuSet> {
        "1".parse()
    }
}

impl ServiceFixture {
    /// A serving node, with busybox in its registry.
    pub(crate) async fn new() -> Self {
        Self::over(Fake::with_busybox()).await
    }

    /// A serving node over this backend.
    pub(crate) async fn over(fake: Fake) -> Self {
        Self::unrecovered(fake).await.recovered().await
    }

    async fn recovered(self) -> Self {
        self.gateway.recover().await.expect("the fake recovers");
        self
    }

    /// A node whose gateway has not recovered yet.
    pub(crate) async fn unrecovered(fake: Fake) -> Self {
        Self::serving(fake, Arc::default()).await
    }

    async fn serving(fake: Fake, leases: Arc<MemoryStore>) -> Self {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let path = dir.path().join("cri.sock");
        let listener = UnixListener::bind(&path).expect("the path is free");
        let operations = Operations::default();
        let gateway = Gateway::with_leases(
            Arc::new(fake.clone()),
            Limits::default(),
            leases.clone(),
            operations.clone(),
        );
        let served = services(
            gateway.scope(Owner::Kubernetes),
            Config::default().into(),
            None,
            Some(Arc::new(PodResources)),
        );
        let server = tokio::spawn(async move {
            Server::builder()
                .add_service(served.runtime)
                .add_service(served.image)
                .add_service(served.runtime_v1alpha2)
                .add_service(served.image_v1alpha2)
                .add_service(served.volume_v1alpha2)
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await
                .expect("the server serves");
        });
        let connect = tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://localhost")
            .connect_with_connector(connect)
            .await
            .expect("the socket listens");
        Self {
            fake,
            gateway,
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MESSAGE_LIMIT),
            images: ImageServiceClient::new(channel.clone())
                .max_decoding_message_size(MESSAGE_LIMIT),
            channel,
            operations,
            leases,
            server,
            _dir: dir,
        }
    }

    /// The node after `kill -9` of its daemon.
    pub(crate) async fn restarted(self) -> Self {
        let fake = self.fake.reopen();
        self.server.abort();
        Self::serving(fake, Arc::clone(&self.leases))
            .await
            .recovered()
            .await
    }

    pub(crate) async fn pull(&mut self) -> String {
        let request = cri::PullImageRequest {
            image: Some(spec(BUSYBOX)),
            ..Default::default()
        };
        self.images
            .pull_image(request)
            .await
            .expect("the registry has it")
            .into_inner()
            .image_ref
    }

    pub(crate) async fn run(&mut self, config: cri::PodSandboxConfig) -> Result<String, Status> {
        let request = cri::RunPodSandboxRequest {
            config: Some(config),
            ..Default::default()
        };
        Ok(self
            .runtime
            .run_pod_sandbox(request)
            .await?
            .into_inner()
            .pod_sandbox_id)
    }

    pub(crate) async fn create(
        &mut self,
        sandbox: &str,
        config: cri::ContainerConfig,
    ) -> Result<String, Status> {
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: None,
        };
        Ok(self
            .runtime
            .create_container(request)
            .await?
            .into_inner()
            .container_id)
    }

    pub(crate) async fn start(&mut self, container: &str) -> Result<(), Status> {
        let request = cri::StartContainerRequest {
            container_id: container.to_owned(),
        };
        self.runtime.start_container(request).await.map(drop)
    }

    /// A pod with one running container: the ids of both.
    pub(crate) async fn running(&mut self) -> (String, String) {
        self.pull().await;
        let sandbox = self.run(pod("web")).await.expect("it is well formed");
        let container = self
            .create(&sandbox, app("app"))
            .await
            .expect("it is well formed");
        self.start(&container).await.expect("it can be started");
        (sandbox, container)
    }

    pub(crate) async fn pod_status(&mut self, id: &str) -> Result<cri::PodSandboxStatus, Status> {
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose: false,
        };
        Ok(self
            .runtime
            .pod_sandbox_status(request)
            .await?
            .into_inner()
            .status
            .expect("it is always set"))
    }

    pub(crate) async fn status(&mut self, id: &str) -> Result<cri::ContainerStatus, Status> {
        let request = cri::ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: false,
        };
        Ok(self
            .runtime
            .container_status(request)
            .await?
            .into_inner()
            .status
            .expect("it is always set"))
    }

    pub(crate) async fn exec(
        &mut self,
        id: &str,
        command: &[&str],
        timeout: i64,
    ) -> Result<cri::ExecSyncResponse, Status> {
        let request = cri::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.iter().map(|word| (*word).to_owned()).collect(),
            timeout,
        };
        Ok(self.runtime.exec_sync(request).await?.into_inner())
    }

    /// Waits until a container has exited.
    pub(crate) async fn ended(&self, id: &str) {
        let scope = self.gateway.scope(Owner::Kubernetes);
        tokio::time::timeout(Duration::from_secs(30), scope.tasks().wait(id))
            .await
            .expect("it ends soon")
            .expect("it is there");
    }

    /// Checks that the gateway kept its part of the backend's contract.
    #[track_caller]
    pub(crate) fn is_sound(&self) {
        assert_eq!(self.fake.breaches(), Vec::<String>::new());
    }
}

pub(crate) fn spec(image: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        image: image.to_owned(),
        ..Default::default()
    }
}

pub(crate) fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

/// A pod as a kubelet requests it.
pub(crate) fn pod(name: &str) -> cri::PodSandboxConfig {
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            namespace: "shop".to_owned(),
            attempt: 0,
        }),
        hostname: name.to_owned(),
        log_directory: format!("/var/log/pods/shop_{name}"),
        labels: map(&[("io.kubernetes.pod.name", name), ("tier", "front")]),
        annotations: map(&[("note", "kept verbatim")]),
        linux: Some(cri::LinuxPodSandboxConfig {
            security_context: Some(cri::LinuxSandboxSecurityContext {
                namespace_options: Some(cri::NamespaceOption {
                    pid: cri::NamespaceMode::Container.into(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A container as a kubelet requests it; it runs until it is stopped.
pub(crate) fn app(name: &str) -> cri::ContainerConfig {
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: name.to_owned(),
            attempt: 0,
        }),
        image: Some(cri::ImageSpec {
            user_specified_image: "busybox".to_owned(),
            ..spec(BUSYBOX)
        }),
        command: vec!["top".to_owned()],
        labels: map(&[("io.kubernetes.container.name", name)]),
        annotations: map(&[("restarts", "0")]),
        log_path: format!("{name}/0.log"),
        mounts: vec![cri::Mount {
            container_path: "/dev/termination-log".to_owned(),
            host_path: "/var/lib/kubelet/pods/x".to_owned(),
            ..Default::default()
        }],
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(cri::LinuxContainerResources {
                cpu_shares: 512,
                memory_limit_in_bytes: 64 << 20,
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The code of a refusal.
#[track_caller]
pub(crate) fn code<T: std::fmt::Debug>(answer: Result<T, Status>) -> Code {
    answer.expect_err("it ought to be refused").code()
}
