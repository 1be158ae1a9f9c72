//! The objects that a containerd holds, by its API.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use containerd_client::services::v1 as api;
use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::leases_client::LeasesClient;
use containerd_client::services::v1::sandbox::StoreListRequest;
use containerd_client::services::v1::sandbox::store_client::StoreClient;
use containerd_client::services::v1::snapshots as snap;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::tasks_client::TasksClient;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// Limit for containerd to listen: a test may have killed it.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Limit for the answer to one call.
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// Interval of the checks whether it listens.
const POLL: Duration = Duration::from_millis(10);
/// The largest answer that is taken, in bytes.
const MAX_ANSWER: usize = 64 << 20;
/// The snapshotter that all tests use.
const SNAPSHOTTER: &str = "overlayfs";

/// Calls one containerd, in one of its namespaces.
#[derive(Clone)]
pub(super) struct Store {
    channel: InterceptedService<Channel, Namespace>,
}

#[derive(Clone)]
struct Namespace(MetadataValue<Ascii>);

impl Interceptor for Namespace {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request
            .metadata_mut()
            .insert("containerd-namespace", self.0.clone());
        Ok(request)
    }
}

/// Asks the containerd of this socket, over a connection of its own, so that it does not matter when it has
/// been restarted. May be called in a tokio runtime.
pub(super) fn ask<T: Send>(
    socket: &Path,
    namespace: &str,
    question: impl AsyncFnOnce(Store) -> Result<T, Status> + Send,
) -> Result<T, Status> {
    let ask = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime can be made");
        runtime.block_on(async { question(Store::connect(socket, namespace).await?).await })
    };
    // A thread that is in a runtime already cannot wait for another.
    thread::scope(|scope| scope.spawn(ask).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

macro_rules! services {
    ($($name:ident -> $client:ident),+) => {
        $(fn $name(&self) -> $client<InterceptedService<Channel, Namespace>> {
            $client::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER)
        })+
    };
}

impl Store {
    async fn connect(socket: &Path, namespace: &str) -> Result<Self, Status> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))
            .expect("the path of a test's socket needs no escapes")
            .timeout(CALL_LIMIT);
        let start = Instant::now();
        let channel = loop {
            match endpoint.connect().await {
                Ok(channel) => break channel,
                Err(error) if start.elapsed() > START_LIMIT => {
                    return Err(Status::unavailable(format!(
                        "{}: {error}",
                        socket.display()
                    )));
                }
                Err(_) => tokio::time::sleep(POLL).await,
            }
        };
        let namespace = Namespace(
            namespace
                .parse()
                .expect("the namespaces of tests are ASCII"),
        );
        Ok(Self {
            channel: InterceptedService::new(channel, namespace),
        })
    }

    services! {
        container_service -> ContainersClient,
        task_service -> TasksClient,
        lease_service -> LeasesClient,
        sandbox_service -> StoreClient,
        snapshot_service -> SnapshotsClient,
        content_service -> ContentClient,
        image_service -> ImagesClient
    }

    pub(super) async fn containers(&self) -> Result<Vec<String>, Status> {
        let answer = self
            .container_service()
            .list(api::ListContainersRequest::default())
            .await?;
        Ok(answer
            .into_inner()
            .containers
            .into_iter()
            .map(|container| container.id)
            .collect())
    }

    pub(super) async fn delete_container(&self, id: &str) -> Result<(), Status> {
        let request = api::DeleteContainerRequest { id: id.to_owned() };
        self.container_service().delete(request).await.map(drop)
    }

    /// Copies a container object to another id, which replaces the first one in its record and its spec as well, and makes a
    /// snapshot for it on that of the same image.
    pub(super) async fn copy_container(&self, id: &str, copy: &str) -> Result<(), Status> {
        let request = api::GetContainerRequest { id: id.to_owned() };
        let answer = self.container_service().get(request).await?.into_inner();
        let mut container = answer
            .container
            .ok_or_else(|| Status::not_found(format!("there is no container {id}")))?;
        container.id = copy.to_owned();
        for any in container
            .extensions
            .values_mut()
            .chain(container.spec.as_mut())
        {
            let text = String::from_utf8_lossy(&any.value).replace(id, copy);
            any.value = text.into_bytes();
        }
        let snapshotter = container.snapshotter.clone();
        if !snapshotter.is_empty() {
            container.snapshot_key = copy.to_owned();
        }
        let request = api::CreateContainerRequest {
            container: Some(container),
        };
        self.container_service().create(request).await?;
        if snapshotter.is_empty() {
            return Ok(());
        }
        let request = snap::StatSnapshotRequest {
            snapshotter: snapshotter.clone(),
            key: id.to_owned(),
        };
        let found = self.snapshot_service().stat(request).await?.into_inner();
        let request = snap::PrepareSnapshotRequest {
            snapshotter,
            key: copy.to_owned(),
            parent: found.info.unwrap_or_default().parent,
            ..Default::default()
        };
        self.snapshot_service().prepare(request).await.map(drop)
    }

    /// The value of an extension of a container object.
    pub(super) async fn extension(&self, id: &str, key: &str) -> Result<Vec<u8>, Status> {
        let request = api::GetContainerRequest { id: id.to_owned() };
        let answer = self.container_service().get(request).await?.into_inner();
        let extension = answer
            .container
            .and_then(|mut container| container.extensions.remove(key));
        extension
            .map(|extension| extension.value)
            .ok_or_else(|| Status::not_found(format!("container {id} has no {key}")))
    }

    /// Changes the type of an extension of a container object, and returns the former one.
    pub(super) async fn set_extension_type(
        &self,
        id: &str,
        key: &str,
        type_url: &str,
    ) -> Result<String, Status> {
        let request = api::GetContainerRequest { id: id.to_owned() };
        let answer = self.container_service().get(request).await?.into_inner();
        let mut container = answer
            .container
            .ok_or_else(|| Status::not_found(format!("there is no container {id}")))?;
        let extension = container
            .extensions
            .get_mut(key)
            .ok_or_else(|| Status::not_found(format!("container {id} has no {key}")))?;
        let former = std::mem::replace(&mut extension.type_url, type_url.to_owned());
        let request = api::UpdateContainerRequest {
            container: Some(container),
            update_mask: Some(prost_types::FieldMask {
                paths: vec![format!("extensions.{key}")],
            }),
        };
        self.container_service().update(request).await?;
        Ok(former)
    }

    pub(super) async fn tasks(&self) -> Result<Vec<String>, Status> {
        let answer = self
            .task_service()
            .list(api::ListTasksRequest::default())
            .await?;
        Ok(answer
            .into_inner()
            .tasks
            .into_iter()
            .map(|task| task.id)
            .collect())
    }

    pub(super) async fn leases(&self) -> Result<Vec<String>, Status> {
        let answer = self
            .lease_service()
            .list(api::ListRequest::default())
            .await?;
        Ok(answer
            .into_inner()
            .leases
            .into_iter()
            .map(|lease| lease.id)
            .collect())
    }

    /// The sandbox store, which came with containerd 1.7: before that there is none.
    pub(super) async fn sandboxes(&self) -> Result<Vec<String>, Status> {
        match self
            .sandbox_service()
            .list(StoreListRequest::default())
            .await
        {
            Ok(answer) => Ok(answer
                .into_inner()
                .list
                .into_iter()
                .map(|record| record.sandbox_id)
                .collect()),
            Err(status) if status.code() == Code::Unimplemented => Ok(Vec::new()),
            Err(status) => Err(status),
        }
    }

    pub(super) async fn snapshots(&self) -> Result<Vec<snap::Info>, Status> {
        let request = snap::ListSnapshotsRequest {
            snapshotter: SNAPSHOTTER.to_owned(),
            ..Default::default()
        };
        let mut answers = self.snapshot_service().list(request).await?.into_inner();
        let mut found = Vec::new();
        while let Some(answer) = answers.message().await? {
            found.extend(answer.info);
        }
        Ok(found)
    }

    /// The references under which content is being written.
    pub(super) async fn ingests(&self) -> Result<Vec<String>, Status> {
        let answer = self
            .content_service()
            .list_statuses(api::ListStatusesRequest::default())
            .await?;
        Ok(answer
            .into_inner()
            .statuses
            .into_iter()
            .map(|status| status.r#ref)
            .collect())
    }

    /// The digests of the content.
    pub(super) async fn blobs(&self) -> Result<Vec<String>, Status> {
        let mut answers = self
            .content_service()
            .list(api::ListContentRequest::default())
            .await?
            .into_inner();
        let mut found = Vec::new();
        while let Some(answer) = answers.message().await? {
            found.extend(answer.info.into_iter().map(|info| info.digest));
        }
        Ok(found)
    }

    pub(super) async fn images(&self) -> Result<Vec<String>, Status> {
        let answer = self
            .image_service()
            .list(api::ListImagesRequest::default())
            .await?;
        Ok(answer
            .into_inner()
            .images
            .into_iter()
            .map(|image| image.name)
            .collect())
    }

    /// Removes all images; returns once the garbage has been collected.
    pub(super) async fn remove_images(&self) -> Result<(), Status> {
        let names = self.images().await?;
        let count = names.len();
        for (index, name) in names.into_iter().enumerate() {
            let request = api::DeleteImageRequest {
                name,
                sync: index + 1 == count,
                ..Default::default()
            };
            match self.image_service().delete(request).await {
                Err(status) if status.code() != Code::NotFound => return Err(status),
                _ => {}
            }
        }
        Ok(())
    }
}
