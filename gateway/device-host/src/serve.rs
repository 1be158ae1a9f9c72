//! Brings the host up: the socket that plugins register at.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use switchyard_authority::AuthorityFilter;
use switchyard_proto::kubelet::device_plugin::v1beta1::registration_server::RegistrationServer;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::config::Config;
use crate::directory;
use crate::hosted::Hosted;
use crate::registration::Registrar;

/// How many connections are served at once. A plugin has one for the time of a call.
const CONNECTIONS_MAX: usize = 64;

/// How many calls at once on one connection.
const CALLS_MAX: u32 = 16;

/// The largest registration that is read, in bytes.
const REQUEST_MAX: usize = 64 << 10;

/// Before the directory is tried again after it could not be had, and before a connection is accepted after one could not be.
const PAUSE: Duration = Duration::from_secs(5);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long calls in flight may take to end.
const CLOSE: Duration = Duration::from_secs(2);

/// Puts layers around the services of a socket.
pub type Observe = Arc<dyn Fn(Routes) -> Routes + Send + Sync>;

/// A connection of a plugin, however it names the server.
type GrpcConnection = AuthorityFilter<UnixStream, OwnedSemaphorePermit>;

/// Lets plugins register.
pub struct Host {
    hosted: Hosted,
    config: Config,
    observe: Observe,
}

// === impl Host ===

impl Host {
    /// What plugins register and list goes to `hosted`.
    #[must_use]
    pub fn new(hosted: Hosted, config: Config) -> Self {
        Self { hosted, config, observe: Arc::new(|routes| routes) }
    }

    /// The same with layers around its service.
    #[must_use]
    pub fn observed(self, observe: Observe) -> Self {
        Self { observe, ..self }
    }

    /// Lets plugins register until `stop`, from when the directory can be had on. Then the plugins that are connected are not followed any
    /// more. Our socket stays, as a kubelet's does: a plugin registers again when the next one is made.
    pub async fn serve(self, stop: CancellationToken) {
        let Self { hosted, config, observe } = self;
        let Some(listener) = stop.run_until_cancelled(listen(&config, &hosted)).await else { return };
        tracing::info!(directory = %config.directory.display(), "vendors' device plugins can register");
        let tasks = TaskTracker::new();
        let followed = hosted.clone();
        let registrar = Registrar::new(hosted, config.directory, tasks.clone(), stop.clone());
        let service = RegistrationServer::from_arc(registrar).max_decoding_message_size(REQUEST_MAX);
        let server =
            Server::builder().max_concurrent_streams(CALLS_MAX).add_routes(observe(Routes::new(service)));
        let server = server.serve_with_incoming_shutdown(incoming(listener), stop.clone().cancelled_owned());
        let deadline = async {
            stop.cancelled().await;
            sleep(CLOSE).await;
        };
        tokio::select! {
            end = server => if let Err(error) = end {
                tracing::error!(%error, "vendors' device plugins cannot register any more");
                followed.set_fault(Some(error.to_string()));
            },
            () = deadline => {}
        }
        tasks.close();
        if timeout(CLOSE, tasks.wait()).await.is_err() {
            tracing::debug!(left = tasks.len(), "what follows device plugins is cut off");
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Listens in the directory, as soon as that can be. Cancel-safe.
async fn listen(config: &Config, hosted: &Hosted) -> UnixListener {
    let mut told = String::new();
    loop {
        match directory::open(&config.directory).await {
            Ok(listener) => {
                hosted.set_fault(None);
                return listener;
            }
            Err(error) => {
                let report = error.report();
                if told != report {
                    tracing::error!(
                        error = report,
                        "vendors' device plugins cannot register, which is tried until they can"
                    );
                    hosted.set_fault(Some(report.clone()));
                    told = report;
                }
            }
        }
        sleep(PAUSE).await;
    }
}

/// The connections of a listener, each with one of its places.
fn incoming(listener: UnixListener) -> impl Stream<Item = io::Result<GrpcConnection>> {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    futures::stream::unfold((listener, places), |(listener, places)| async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) if !directory::is_allowed(&stream) => {
                    tracing::warn!(
                        "a process that is not root's wanted to register devices, and was refused"
                    );
                }
                Ok((stream, _)) => {
                    // Without a place it is closed: the plugin tries again.
                    if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                        return Some((Ok(AuthorityFilter::with_guard(stream, place)), (listener, places)));
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection of a device plugin cannot be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}
