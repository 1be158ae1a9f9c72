//! Serves the socket at which plugins register.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use switchyard_authority::AuthorityFilter;
use switchyard_proto::kubelet::device_plugin::v1beta1::registration_server::RegistrationServer;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::config::Config;
use crate::directory::{self, RegistrySocket};
use crate::hosted::Hosted;
use crate::registration::Registrar;

/// The most connections that are served at once. A plugin has one for the duration of a call.
const CONNECTIONS_MAX: usize = 64;

/// The most concurrent calls on one connection.
const CALLS_MAX: u32 = 16;

/// The largest registration that is read, in bytes.
const REQUEST_MAX: usize = 64 << 10;

/// Pause before the directory is opened again after a failure, and before a connection is accepted after an
/// accept failed.
const PAUSE: Duration = Duration::from_secs(5);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limit for calls in flight to finish.
const CLOSE: Duration = Duration::from_secs(2);

/// Wraps the services of a socket in layers.
pub type Observe = Arc<dyn Fn(Routes) -> Routes + Send + Sync>;

/// A connection of a plugin; the filter accepts any `:authority` that a plugin sends.
type GrpcConnection = AuthorityFilter<UnixStream, OwnedSemaphorePermit>;

/// The registry that plugins register with.
pub struct Host {
    hosted: Hosted,
    config: Config,
    observe: Observe,
}

// === impl Host ===

impl Host {
    /// Registered plugins and their devices are stored in `hosted`.
    #[must_use]
    pub fn new(hosted: Hosted, config: Config) -> Self {
        Self {
            hosted,
            config,
            observe: Arc::new(|routes| routes),
        }
    }

    /// Wraps the service in layers.
    #[must_use]
    pub fn observed(self, observe: Observe) -> Self {
        Self { observe, ..self }
    }

    /// Accepts registrations, as soon as the directory can be opened, until `stop`. Then the connections to
    /// plugins are closed. Our socket file stays, as a kubelet's does: plugins register again when the next
    /// daemon creates it again.
    pub async fn serve(self, stop: CancellationToken) {
        let Self {
            hosted,
            config,
            observe,
        } = self;
        let Some(socket) = stop.run_until_cancelled(listen(&config, &hosted)).await else {
            return;
        };
        tracing::info!(directory = %config.directory.display(), "vendors' device plugins can register");
        let tasks = TaskTracker::new();
        let followed = hosted.clone();
        let registrar = Registrar::new(hosted, config.directory, tasks.clone(), stop.clone());
        let service =
            RegistrationServer::from_arc(registrar).max_decoding_message_size(REQUEST_MAX);
        // The other sockets raise the number of calls that may be given up before they are accepted to that of concurrent
        // ones. The library's own, 20, is more than CALLS_MAX.
        let server = Server::builder()
            .max_concurrent_streams(CALLS_MAX)
            .add_routes(observe(Routes::new(service)));
        let server =
            server.serve_with_incoming_shutdown(incoming(socket), stop.clone().cancelled_owned());
        let deadline = async {
            stop.cancelled().await;
            sleep(CLOSE).await;
        };
        tokio::select! {
            end = server => if let Err(error) = end {
                tracing::error!(%error, "the server for vendors' device plugins failed; none can register until the daemon is restarted");
                followed.set_fault(Some(error.to_string()));
            },
            () = deadline => {}
        }
        tasks.close();
        if timeout(CLOSE, tasks.wait()).await.is_err() {
            tracing::debug!(
                left = tasks.len(),
                "tasks that follow device plugins did not end in time and are aborted"
            );
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Opens the directory and listens in it, with retries until it succeeds. Cancel-safe.
async fn listen(config: &Config, hosted: &Hosted) -> RegistrySocket {
    let mut last_failure = String::new();
    loop {
        match directory::open(&config.directory).await {
            Ok(socket) => {
                hosted.set_fault(None);
                return socket;
            }
            Err(error) => {
                let report = error.report();
                if last_failure != report {
                    tracing::error!(
                        error = report,
                        "vendors' device plugins cannot register; retrying until the directory can be opened"
                    );
                    hosted.set_fault(Some(report.clone()));
                    last_failure = report;
                }
            }
        }
        sleep(PAUSE).await;
    }
}

/// The connections to the socket, each with a permit of [`CONNECTIONS_MAX`].
fn incoming(socket: RegistrySocket) -> impl Stream<Item = io::Result<GrpcConnection>> {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    futures::stream::unfold((socket, places), |(socket, places)| async move {
        loop {
            match socket.listener.accept().await {
                Ok((stream, _)) if !directory::is_allowed(&stream) => {
                    tracing::warn!(
                        "refused a registration of a device plugin from a process that is not root"
                    );
                }
                Ok((stream, _)) => {
                    // A connection beyond the limit is closed: the plugin retries.
                    if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                        return Some((
                            Ok(AuthorityFilter::with_guard(stream, place)),
                            (socket, places),
                        ));
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection of a device plugin");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}
