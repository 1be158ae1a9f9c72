//! The connections to containerd, which reconnect by themselves, and a typed client for each service.
//!
//! Calls that start or end processes have a connection of their own, whose socket the logkeeper holds too
//! ([`crate::client::lifeline`]).

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use hyper_util::rt::TokioIo;
use prost_types::Any;
use switchyard_core::backend::BackendObserver;
use switchyard_core::{Error, Result};
use switchyard_proto::containerd::services as own;
use tokio::sync::watch;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Endpoint, Uri};
use tonic::{Request, Response, Status};

use crate::base::error::{from_status, timed_out};
use crate::base::instance::Instance;
use crate::base::random::fill_random;
use crate::client::contact::Contact;
use crate::client::lifeline::SharedSocket;
use crate::client::observed::{ConnectionCounter, ObservedChannel};

/// The timeout of calls that only touch containerd's database.
pub(crate) const QUICK: Duration = Duration::from_secs(30);
/// The timeout of calls that start or end processes. It is generous, because a call that is cancelled leaks a
/// shim.
pub(crate) const SLOW: Duration = Duration::from_secs(150);
/// The timeout of calls after which containerd collects garbage before it answers: it may have many files to
/// remove.
pub(crate) const COLLECTION: Duration = Duration::from_secs(120);
/// The timeout of unpacking one layer.
pub(crate) const UNPACK: Duration = Duration::from_secs(1200);

/// The timeout of asking for its version.
const VERSION_LIMIT: Duration = Duration::from_secs(5);

/// The largest message that is accepted from containerd, in bytes.
const MAX_MESSAGE: usize = 64 << 20;
/// The largest header list that is accepted, in bytes: errors of the OCI runtime arrive in a header and can
/// be long.
const MAX_HEADERS: u32 = 1 << 20;

/// The type of an OCI runtime spec in an `Any`.
pub(crate) const SPEC_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";
/// The type of an OCI process in an `Any`.
pub(crate) const PROCESS_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";
/// The type of OCI resources in an `Any`.
pub(crate) const RESOURCES_TYPE: &str =
    "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources";

pub(crate) mod contact;
mod containers;
pub(crate) mod features;
pub(crate) mod health;
pub(crate) mod lifeline;
#[cfg(test)]
pub(crate) mod model;
pub(crate) mod observed;
pub(crate) mod process_state;
pub(crate) mod retries;

pub(crate) type Service = InterceptedService<ObservedChannel, Headers>;

/// A client of one containerd namespace. Cheap to clone: all clones share their connections.
#[derive(Clone)]
pub(crate) struct Client {
    channel: ObservedChannel,
    /// For calls that containerd must finish although the daemon is killed meanwhile.
    held: ObservedChannel,
    headers: Headers,
    /// The connections of `channel`.
    connections: Arc<ConnectionCounter>,
    address: PathBuf,
    instance: Arc<Instance>,
    run: Arc<str>,
}

/// Adds the namespace, and the lease if there is one, to every call, and refuses calls while containerd is
/// down by the health check: callers get the reason at once, and no calls pile up for the moment when
/// containerd is back.
#[derive(Clone)]
pub(crate) struct Headers {
    namespace: MetadataValue<Ascii>,
    lease: Option<MetadataValue<Ascii>>,
    /// The result of the health check; `None` for the client that makes the health check.
    contact: Option<watch::Receiver<Contact>>,
}

impl Interceptor for Headers {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(contact) = &self.contact
            && let Contact::Down { reason } = &*contact.borrow()
        {
            return Err(Status::unavailable(reason.clone()));
        }
        let metadata = request.metadata_mut();
        metadata.insert("containerd-namespace", self.namespace.clone());
        if let Some(lease) = &self.lease {
            metadata.insert("containerd-lease", lease.clone());
        }
        Ok(request)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

macro_rules! services {
    ($($name:ident -> $client:ty, over $channel:ident);* $(;)?) => {
        $(pub(crate) fn $name(&self) -> $client {
            <$client>::new(InterceptedService::new(self.$channel.clone(), self.headers.clone()))
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE)
        })*
    };
}

impl Client {
    /// A client of `namespace` at this socket; connects at the first call, and again whenever a connection is
    /// lost. The connection for tasks is published through `shared`; calls and reconnections are reported to
    /// `observer`.
    ///
    /// # Errors
    /// `InvalidArgument` if the namespace is not a valid one.
    pub(crate) fn new(
        address: &Path,
        namespace: &str,
        instance: Arc<Instance>,
        contact: watch::Receiver<Contact>,
        shared: SharedSocket,
        observer: &Arc<dyn BackendObserver>,
    ) -> Result<Self> {
        let endpoint = Endpoint::from_static("http://localhost")
            .connect_timeout(Duration::from_secs(5))
            .http2_max_header_list_size(MAX_HEADERS);
        let socket = address.to_path_buf();
        let connections = ConnectionCounter::new(Arc::clone(observer));
        let counter = Arc::clone(&connections);
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            let connections = Arc::clone(&counter);
            async move {
                let stream = tokio::net::UnixStream::connect(socket).await?;
                connections.connected();
                std::io::Result::Ok(TokioIo::new(stream))
            }
        });
        let socket = address.to_path_buf();
        let shared_counter = ConnectionCounter::new(Arc::clone(observer));
        let shared_connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            let shared = shared.clone();
            let connections = Arc::clone(&shared_counter);
            async move {
                let stream = shared.connect(&socket).await?;
                connections.connected();
                std::io::Result::Ok(TokioIo::new(stream))
            }
        });
        let namespace = namespace.parse().map_err(|fault| {
            Error::invalid("containerd.namespace", "is not a namespace").with_source(fault)
        })?;
        Ok(Self {
            channel: ObservedChannel::new(
                endpoint.connect_with_connector_lazy(connector),
                Arc::clone(observer),
            ),
            held: ObservedChannel::new(
                endpoint.connect_with_connector_lazy(shared_connector),
                Arc::clone(observer),
            ),
            headers: Headers {
                namespace,
                lease: None,
                contact: Some(contact),
            },
            connections,
            address: address.to_path_buf(),
            instance,
            run: new_run(),
        })
    }

    /// A client over a connection that a test has made, for the instance `test`.
    #[cfg(test)]
    pub(crate) fn over(channel: tonic::transport::Channel) -> Self {
        let observer = switchyard_core::backend::unobserved();
        let observed = ObservedChannel::new(channel, Arc::clone(&observer));
        Self {
            channel: observed.clone(),
            held: observed,
            headers: Headers {
                namespace: MetadataValue::from_static("test"),
                lease: None,
                contact: None,
            },
            connections: ConnectionCounter::new(observer),
            address: PathBuf::new(),
            instance: Arc::new(Instance::named("test")),
            run: new_run(),
        }
    }

    /// The observer that its calls are reported to.
    pub(crate) fn observer(&self) -> &dyn BackendObserver {
        self.channel.observer()
    }

    /// The same client, but what it creates in containerd is referenced by this lease.
    ///
    /// # Errors
    /// `Internal` if the id cannot be sent as a header.
    pub(crate) fn leased(&self, lease: &str) -> Result<Self> {
        let lease = lease.parse().map_err(|fault| {
            Error::internal("the id of a lease is not valid in a header").with_source(fault)
        })?;
        let headers = Headers {
            lease: Some(lease),
            ..self.headers.clone()
        };
        Ok(Self {
            channel: self.channel.clone(),
            held: self.held.clone(),
            headers,
            connections: Arc::clone(&self.connections),
            address: self.address.clone(),
            instance: Arc::clone(&self.instance),
            run: Arc::clone(&self.run),
        })
    }

    /// The same client, but its calls are made even while containerd is down by the health check.
    pub(crate) fn without_health_check(&self) -> Self {
        let headers = Headers {
            contact: None,
            ..self.headers.clone()
        };
        Self {
            headers,
            ..self.clone()
        }
    }

    /// The name of this gateway among those that may share a containerd: a label of its objects, and part of
    /// the names of those without labels.
    pub(crate) fn instance(&self) -> &str {
        self.instance.name()
    }

    /// The same name, and whether it is settled.
    pub(crate) const fn own_name(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// Returns the id of this run of the daemon: a part of the keys of objects that do not outlive it, which
    /// distinguishes them from those of predecessors.
    pub(crate) fn run(&self) -> &str {
        &self.run
    }

    /// Checks that containerd answers at all.
    ///
    /// # Errors
    /// If it does not.
    pub(crate) async fn check_version(&self) -> Result<()> {
        call("get its version", VERSION_LIMIT, self.version().version(()))
            .await
            .map(drop)
    }

    /// The containerd namespace of all calls.
    pub(crate) fn namespace(&self) -> &str {
        self.headers.namespace.to_str().unwrap_or_default()
    }

    /// Returns the number of calls that needed containerd's database and were answered so far, in whatever
    /// way.
    pub(crate) fn answers(&self) -> u64 {
        self.channel.answers()
    }

    /// The number of connections so far over which health checks are made: another one than before means that a
    /// connection was lost, even if each check succeeded.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.made()
    }

    /// The socket at which containerd listens.
    pub(crate) fn address(&self) -> &Path {
        &self.address
    }

    services! {
        content_writer -> own::content::v1::content_client::ContentClient<Service>, over channel;
        snapshot_commits -> own::snapshots::v1::snapshots_client::SnapshotsClient<Service>, over channel;
        containers -> api::containers_client::ContainersClient<Service>, over channel;
        content -> api::content_client::ContentClient<Service>, over channel;
        diff -> api::diff_client::DiffClient<Service>, over channel;
        images -> api::images_client::ImagesClient<Service>, over channel;
        introspection -> api::introspection_client::IntrospectionClient<Service>, over channel;
        leases -> api::leases_client::LeasesClient<Service>, over channel;
        namespaces -> api::namespaces_client::NamespacesClient<Service>, over channel;
        sandboxes -> api::sandbox::store_client::StoreClient<Service>, over channel;
        snapshots -> SnapshotsClient<Service>, over channel;
        tasks -> api::tasks_client::TasksClient<Service>, over held;
        task_queries -> api::tasks_client::TasksClient<Service>, over channel;
        version -> api::version_client::VersionClient<Service>, over channel;
    }
}

/// A name for this run of the daemon.
fn new_run() -> Arc<str> {
    let mut random = [0; 4];
    fill_random(&mut random);
    hex::encode(random).into()
}

/// Waits for the response to a call, for at most `limit`. `what` names the operation and its object, for the
/// error.
pub(crate) async fn call<T>(
    what: &str,
    limit: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(from_status(what, status)),
        Err(_) => Err(timed_out(what, limit)),
    }
}

/// Turns `NotFound` into success, for removals.
pub(crate) fn ignore_not_found<T>(result: Result<T>) -> Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == switchyard_core::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Wraps a JSON document in an `Any`, as containerd expects it.
pub(crate) fn json_any(type_url: &str, value: &serde_json::Value) -> Any {
    Any {
        type_url: type_url.to_owned(),
        value: value.to_string().into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn containerd_that_does_not_listen_is_unavailable() {
        let dir = tempfile::tempdir().expect("there is room");
        let socket = dir.path().join("containerd.sock");
        // Nobody accepts connections of a socket whose process was killed.
        drop(std::os::unix::net::UnixListener::bind(&socket).expect("the path is free"));
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move {
                tokio::net::UnixStream::connect(socket)
                    .await
                    .map(TokioIo::new)
            }
        });
        let channel =
            Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
        let error = Client::over(channel)
            .check_version()
            .await
            .expect_err("nobody listens");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
        assert!(
            error.report().contains("Connection refused"),
            "{}",
            error.report()
        );
    }
}
