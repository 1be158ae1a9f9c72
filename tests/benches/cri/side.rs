//! One side of the comparison: a CRI server, and containerd's own view of what that server created.

use std::path::Path;
use std::time::{Duration, Instant};

use containerd_client::services::v1::GetContainerRequest;
use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::snapshots::StatSnapshotRequest;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1::image_service_client::ImageServiceClient;
use switchyard_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::failure::Failure;

/// Limit for a server to become ready.
const READY: Duration = Duration::from_secs(60);
/// Limit for one call.
const CALL: Duration = Duration::from_secs(120);
/// The snapshotter of both.
pub(crate) const SNAPSHOTTER: &str = "overlayfs";

/// A CRI server. Clones share its connections.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    /// Its name in the report.
    pub(crate) name: &'static str,
    /// The containerd namespace it works in.
    pub(crate) namespace: &'static str,
    /// Its pods and containers.
    pub(crate) runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    containers: ContainersClient<Channel>,
    snapshots: SnapshotsClient<Channel>,
}

/// A connection to a unix socket.
pub(crate) async fn channel(socket: &Path) -> Result<Channel, Failure> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?.timeout(CALL);
    let begin = Instant::now();
    loop {
        match endpoint.connect().await {
            Ok(channel) => return Ok(channel),
            Err(error) if begin.elapsed() > READY => {
                return Err(format!("cannot connect to {}: {error}", socket.display()).into());
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

impl Side {
    /// Connects to a CRI socket; `core` is a connection to the containerd below it.
    pub(crate) async fn connect(
        name: &'static str,
        socket: &Path,
        namespace: &'static str,
        core: Channel,
    ) -> Result<Self, Failure> {
        let channel = channel(socket).await?;
        Ok(Self {
            name,
            namespace,
            runtime: RuntimeServiceClient::new(channel.clone()),
            images: ImageServiceClient::new(channel),
            containers: ContainersClient::new(core.clone()),
            snapshots: SnapshotsClient::new(core),
        })
    }

    /// Waits until it says that runtime and network are ready.
    pub(crate) async fn wait_ready(&mut self) -> Result<(), Failure> {
        let begin = Instant::now();
        loop {
            let answer = match self.runtime.status(cri::StatusRequest::default()).await {
                Ok(answer) => {
                    let conditions = answer.into_inner().status.unwrap_or_default().conditions;
                    // A containerd of 2.3 has one more, about what it will not support some day.
                    let holds = |name: &str| {
                        conditions
                            .iter()
                            .any(|one| one.r#type == name && one.status)
                    };
                    if holds("RuntimeReady") && holds("NetworkReady") {
                        return Ok(());
                    }
                    format!("{conditions:?}")
                }
                Err(status) => status.to_string(),
            };
            if begin.elapsed() > READY {
                return Err(format!("{} is not ready after {READY:?}: {answer}", self.name).into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Pulls an image; returns how long it took.
    pub(crate) async fn pull(&mut self, reference: &str) -> Result<Duration, Failure> {
        let request = cri::PullImageRequest {
            image: Some(image_spec(reference)),
            ..Default::default()
        };
        let begin = Instant::now();
        self.images
            .pull_image(request)
            .await
            .map_err(|status| format!("{}: pull of {reference}: {status}", self.name))?;
        Ok(begin.elapsed())
    }

    /// The version of the runtime below: containerd's for its CRI plugin.
    pub(crate) async fn version(&mut self) -> Result<String, Failure> {
        let answer = self.runtime.version(cri::VersionRequest::default()).await;
        Ok(answer
            .map_err(|status| self.failed("Version", &status))?
            .into_inner()
            .runtime_version)
    }

    /// Returns whether it has the image.
    pub(crate) async fn has_image(&mut self, reference: &str) -> Result<bool, Failure> {
        let request = cri::ImageStatusRequest {
            image: Some(image_spec(reference)),
            ..Default::default()
        };
        Ok(self
            .images
            .image_status(request)
            .await?
            .into_inner()
            .image
            .is_some())
    }

    /// Removes an image.
    pub(crate) async fn remove_image(&mut self, reference: &str) -> Result<(), Failure> {
        let request = cri::RemoveImageRequest {
            image: Some(image_spec(reference)),
        };
        self.images.remove_image(request).await?;
        Ok(())
    }

    /// The key of the snapshot that a container object of containerd names; nothing if there is no such
    /// object.
    pub(crate) async fn snapshot_of(&mut self, id: &str) -> Result<Option<String>, Status> {
        let request = self.scoped(GetContainerRequest { id: id.to_owned() });
        let answer = found(self.containers.get(request).await)?;
        Ok(answer.map(|answer| {
            answer
                .into_inner()
                .container
                .unwrap_or_default()
                .snapshot_key
        }))
    }

    /// Returns whether containerd has the snapshot on record.
    pub(crate) async fn has_snapshot(&mut self, key: &str) -> Result<bool, Status> {
        let request = StatSnapshotRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            key: key.to_owned(),
        };
        let request = self.scoped(request);
        Ok(found(self.snapshots.stat(request).await)?.is_some())
    }

    /// Makes the error of a failed call.
    pub(crate) fn failed(&self, call: &str, status: &Status) -> Failure {
        format!("{}: {call}: {status}", self.name).into()
    }

    fn scoped<T>(&self, message: T) -> Request<T> {
        scoped(self.namespace, message)
    }
}

/// A request to containerd about this namespace.
pub(crate) fn scoped<T>(namespace: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let namespace = namespace.parse().expect("the name of a namespace is ASCII");
    request
        .metadata_mut()
        .insert("containerd-namespace", namespace);
    request
}

/// The specification of an image by its reference.
pub(crate) fn image_spec(reference: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        image: reference.to_owned(),
        ..Default::default()
    }
}

fn found<T>(result: Result<T, Status>) -> Result<Option<T>, Status> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}
