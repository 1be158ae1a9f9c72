//! The Register call: the plugin is called back within the call, and its list of devices is followed from
//! then on.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use switchyard_core::{Error, Result};
use switchyard_proto::kubelet::device_plugin::v1beta1;
use switchyard_proto::kubelet::device_plugin::v1beta1::device_plugin_client::DevicePluginClient;
use switchyard_proto::kubelet::device_plugin::v1beta1::registration_server::Registration;
use switchyard_rpc::status;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::directory;
use crate::from_proto::{self, PluginRegistration};
use crate::hosted::{Failure, Hosted, Plugin, PluginConnection};

/// Limit for a plugin to answer GetDevicePluginOptions, from the beginning of the Register call; kubelets
/// wait as long.
const DIAL: Duration = Duration::from_secs(10);

/// Limit for a plugin's first list before its devices are marked unhealthy.
const FIRST: Duration = Duration::from_secs(10);

/// Minimum pause between two lists of a plugin. Further lists wait in the stream: each list is sent on to all
/// orchestrators.
const PAUSE: Duration = Duration::from_millis(100);

/// The largest list that is read, in bytes; kubelets have the same limit.
const LIST_MAX: usize = 4 << 20;

/// Maximum number of plugins that are called back concurrently; further registrations are refused.
const DIALS: usize = 16;

/// Serves `v1beta1.Registration`.
pub(crate) struct Registrar {
    hosted: Hosted,
    directory: PathBuf,
    dials: Semaphore,
    /// The tasks that follow plugins.
    tasks: TaskTracker,
    /// Cancelled to end these tasks.
    stop: CancellationToken,
}

// === impl Registrar ===

impl Registrar {
    pub(crate) fn new(
        hosted: Hosted,
        directory: PathBuf,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            hosted,
            directory,
            dials: Semaphore::new(DIALS),
            tasks,
            stop,
        })
    }

    /// Registers a plugin. Cancel-safe: the state changes only in the last step, which does not wait.
    async fn admit(&self, request: v1beta1::RegisterRequest) -> Result<String> {
        let deadline = Instant::now() + DIAL;
        let refused = |error: Error| {
            self.hosted
                .record_registration_failure(Failure::Refused, &error);
            error
        };
        let PluginRegistration { resource, endpoint } =
            from_proto::registration(request).map_err(refused)?;
        self.hosted.check(&resource).map_err(refused)?;
        let Ok(_dial) = self.dials.try_acquire() else {
            let text = format!(
                "{DIALS} plugins are being called back already: register again in a moment"
            );
            return Err(refused(Error::exhausted(text)));
        };
        let plugin = self.call_back(&endpoint, deadline).await.map_err(|error| {
            let error = error.context(format!(
                "register {resource}: the plugin does not answer on {endpoint}"
            ));
            self.hosted
                .record_registration_failure(Failure::Unreachable, &error);
            error
        })?;
        let channel = plugin.channel.clone();
        let connection = self
            .hosted
            .connect(&resource, &endpoint, plugin, self.stop.child_token());
        let connection = connection.map_err(refused)?;
        let hosted = self.hosted.clone();
        // Cancelled when another plugin takes the resource over or the daemon stops: neither is a failure.
        self.tasks.spawn(
            connection
                .over
                .clone()
                .run_until_cancelled_owned(async move {
                    let why = follow(&hosted, &connection, channel).await;
                    hosted.end(&connection, &why);
                }),
        );
        Ok(resource)
    }

    /// Connects to a plugin and reads its options.
    async fn call_back(&self, endpoint: &str, deadline: Instant) -> Result<Plugin> {
        let stream = directory::connect(&self.directory, endpoint, deadline).await?;
        let asked = async {
            let channel = channel(stream).await?;
            let mut client = DevicePluginClient::new(channel.clone());
            let options = client
                .get_device_plugin_options(v1beta1::Empty {})
                .await
                .map_err(|status| {
                    Error::unavailable("GetDevicePluginOptions failed").with_source(status)
                })?;
            let v1beta1::DevicePluginOptions {
                pre_start_required,
                get_preferred_allocation_available,
            } = options.into_inner();
            Ok(Plugin {
                channel,
                pre_start: pre_start_required,
                preferred: get_preferred_allocation_available,
            })
        };
        timeout_at(deadline, asked)
            .await
            .map_err(|_| Error::deadline(format!("it has not answered within {DIAL:?}")))?
    }
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(
        &self,
        request: Request<v1beta1::RegisterRequest>,
    ) -> Result<Response<v1beta1::Empty>, Status> {
        match self.admit(request.into_inner()).await {
            Ok(resource) => {
                tracing::info!(resource, "a vendor's device plugin has registered");
                Ok(Response::new(v1beta1::Empty {}))
            }
            Err(error) => {
                tracing::warn!(
                    error = error.report(),
                    "a vendor's device plugin cannot register"
                );
                Err(status(&error))
            }
        }
    }
}

/// A channel over this one connection, which does not reconnect: a plugin whose connection has ended has to
/// register again.
async fn channel(stream: UnixStream) -> Result<Channel> {
    let mut stream = Some(stream);
    let connect = tower::service_fn(move |_| {
        let stream = stream.take().map(TokioIo::new);
        std::future::ready(
            stream.ok_or_else(|| std::io::Error::other("the plugin has ended its connection")),
        )
    });
    let channel = Endpoint::from_static("http://localhost")
        .connect_with_connector(connect)
        .await;
    channel.map_err(|error| Error::unavailable("the plugin does not speak gRPC").with_source(error))
}

/// Stores each list that a plugin sends until its stream ends; returns why it ended.
async fn follow(hosted: &Hosted, connection: &PluginConnection, channel: Channel) -> String {
    let mut client = DevicePluginClient::new(channel).max_decoding_message_size(LIST_MAX);
    let first = async {
        let mut stream = client.list_and_watch(v1beta1::Empty {}).await?.into_inner();
        let list = stream.message().await?;
        Ok::<_, Status>((stream, list))
    };
    tokio::pin!(first);
    let first = match timeout(FIRST, &mut first).await {
        Ok(first) => first,
        Err(_) => {
            // A late list is still accepted: the devices become healthy with it.
            hosted.set_silent(connection);
            first.await
        }
    };
    let (mut stream, mut next) = match first {
        Ok((stream, list)) => (stream, Ok(list)),
        Err(status) => return ended(&status),
    };
    loop {
        match next {
            Ok(Some(list)) => {
                hosted.list(connection, from_proto::listed(&connection.resource, list))
            }
            Ok(None) => return "it has ended its ListAndWatch".to_owned(),
            Err(status) => return ended(&status),
        }
        sleep(PAUSE).await;
        next = stream.message().await;
    }
}

fn ended(status: &Status) -> String {
    format!(
        "ListAndWatch: {:?}: {}",
        status.code(),
        from_proto::quoted(status.message())
    )
}
