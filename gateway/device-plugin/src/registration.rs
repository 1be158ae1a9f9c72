//! Registers a resource with the kubelet, and again whenever the registration ends.
//!
//! ```text
//! kubelet.sock exists ─► wait_turn ─► new endpoint ─► Register ─► ListAndWatch opens ─► it ends ─┐
//!        ▲                                                │ refused                              │
//!        └──────── backoff, or a new kubelet.sock ◄───────┴──────────────────────────────────────┘
//! ```
//!
//! The old endpoint is closed before the new one is created: kubelets up to 1.36 confuse two streams of one
//! resource, and lose the new one when the old one ends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use switchyard_core::backoff::Backoff;
use switchyard_core::gateway::Scope;
use switchyard_core::{Error, Result};
use switchyard_linux::beginning;
use switchyard_proto::kubelet::device_plugin::v1beta1;
use switchyard_proto::kubelet::device_plugin::v1beta1::device_plugin_server::DevicePluginServer;
use switchyard_proto::kubelet::device_plugin::v1beta1::registration_client::RegistrationClient;
use switchyard_proto::kubelet::plugin_registration as watcher;
use switchyard_proto::kubelet::plugin_registration::registration_server::RegistrationServer;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};

use crate::directory::{Kubelet, Kubelets};
use crate::endpoint::Endpoint;
use crate::listing::Listing;
use crate::plugin::DevicePlugin;
use crate::shared::Shared;
use crate::streams::Streams;
use crate::to_proto;

/// Timeout of the Register call. Within the call the kubelet connects to the endpoint, for which it takes up
/// to 10 s.
const REGISTER: Duration = Duration::from_secs(15);

/// Limit for a kubelet from the answer to Register to its ListAndWatch call.
const LIST: Duration = Duration::from_secs(10);

/// The first pause: by then, a kubelet that lost a plugin has forgotten its old connection.
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause. A restarted kubelet is noticed by its new socket, whatever the pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A registration that has lasted at least this long resets the backoff.
const LASTING: Duration = Duration::from_secs(10);

/// Pause between two checks that the socket in the plugin watcher's directory still exists.
const POLL: Duration = Duration::from_secs(1);

/// The most characters of an error text from the kubelet that are logged.
const TEXT_MAX: usize = 500;

/// A resource that is offered to the kubelet.
pub(crate) struct Resource {
    pub(crate) name: Arc<str>,
    pub(crate) scope: Scope,
    pub(crate) listing: watch::Receiver<Arc<Listing>>,
    pub(crate) shared: Arc<Shared>,
}

/// Answers the kubelet's plugin watcher on a socket that it has found.
struct WatcherRegistration {
    resource: Arc<str>,
}

// === impl Resource ===

impl Resource {
    /// Registers the resource with each kubelet, for as long as it is polled.
    pub(crate) async fn register(self, mut kubelets: Kubelets) {
        let mut backoff = Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE);
        let mut last_failure = String::new();
        loop {
            // The sender lives as long as the frontend, so waiting fails only when the frontend ends.
            let Ok(Some(kubelet)) = kubelets
                .wait_for(Option::is_some)
                .await
                .map(|kubelet| kubelet.clone())
            else {
                return;
            };
            let replaced = replaced(kubelets.clone(), kubelet.generation);
            let attended = async {
                // A kubelet whose socket was deleted may still run, but it cannot be registered with.
                while kubelets.borrow().is_some() {
                    kubelet.urgent.wait_turn(&self.name).await;
                    let began = Instant::now();
                    let end = self.register_once(&kubelet).await;
                    kubelet.urgent.finish(&self.name);
                    if began.elapsed() >= LASTING {
                        backoff.reset();
                    }
                    self.log_end(&end, &mut last_failure);
                    backoff.wait().await;
                }
            };
            tokio::select! {
                biased;
                () = replaced => {}
                () = attended => {}
            }
            backoff.reset();
        }
    }

    /// Registers once, and returns when the kubelet has ended its stream.
    async fn register_once(&self, kubelet: &Kubelet) -> Result<()> {
        let (endpoint, streams) = self.open(&self.shared.config.directory, |routes| routes)?;
        let request = v1beta1::RegisterRequest {
            version: to_proto::VERSION.to_owned(),
            endpoint: endpoint.name(),
            resource_name: self.name.to_string(),
            options: Some(to_proto::options()),
        };
        let mut client = RegistrationClient::new(kubelet.channel.clone());
        let refused = |why: String| {
            Error::unavailable(format!(
                "the kubelet does not register {}: {why}",
                self.name
            ))
        };
        match timeout(REGISTER, client.register(request)).await {
            Ok(Ok(_)) => {}
            // The same for all resources; see `Outage`.
            Ok(Err(status)) if status.code() == Code::Unavailable => {
                return Err(
                    Error::unavailable("the kubelet does not answer on its socket")
                        .with_source(status),
                );
            }
            Ok(Err(status)) => return Err(refused(cut(status.message())).with_source(status)),
            Err(_) => return Err(refused(format!("no answer within {REGISTER:?}"))),
        }
        if timeout(LIST, streams.wait_listed()).await.is_err() {
            return Err(refused(format!(
                "it did not ask for the devices within {LIST:?}"
            )));
        }
        kubelet.urgent.finish(&self.name);
        tracing::info!(resource = %self.name, socket = %endpoint.path().display(), "registered with the kubelet");
        self.shared.outage.end();
        let _registered = self.shared.registrations.registered();
        streams.wait_ended().await;
        Ok(())
    }

    /// Offers the resource to the kubelet's plugin watcher in `directory`, for as long as the future is
    /// polled.
    pub(crate) async fn serve_plugin_watcher(self, directory: &Path) {
        let mut backoff = Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE);
        let mut last_failure = String::new();
        loop {
            let began = Instant::now();
            let end = self.serve_in(directory).await;
            if began.elapsed() >= LASTING {
                backoff.reset();
            }
            self.log_end(&end, &mut last_failure);
            backoff.wait().await;
        }
    }

    /// Creates a socket for the plugin watcher, and returns when the socket is gone, or when the kubelet has
    /// ended its stream.
    async fn serve_in(&self, directory: &Path) -> Result<()> {
        let found = RegistrationServer::new(WatcherRegistration {
            resource: Arc::clone(&self.name),
        });
        let (endpoint, streams) = self.open(directory, |routes| routes.add_service(found))?;
        let gone = async {
            while endpoint.path().exists() {
                sleep(POLL).await;
            }
        };
        let watched = async {
            streams.wait_opened().await;
            tracing::info!(resource = %self.name, socket = %endpoint.path().display(), "found by the kubelet");
            self.shared.outage.end();
            let _registered = self.shared.registrations.registered();
            streams.wait_ended().await;
        };
        tokio::select! {
            () = gone => {}
            () = watched => {}
        }
        Ok(())
    }

    /// A new endpoint that serves the plugin, and the services that `add` adds.
    fn open(
        &self,
        directory: &Path,
        add: impl FnOnce(Routes) -> Routes + Send + 'static,
    ) -> Result<(Endpoint, Streams)> {
        let streams = Streams::new();
        let plugin = DevicePlugin {
            resource: Arc::clone(&self.name),
            scope: self.scope.clone(),
            listing: self.listing.clone(),
            streams: streams.clone(),
            ended: CancellationToken::new(),
        };
        let ended = plugin.ended.clone();
        let observe = Arc::clone(&self.shared.observe);
        let routes = move || observe(add(Routes::new(DevicePluginServer::new(plugin))));
        let endpoint = Endpoint::open(directory, &self.name, &self.shared.tasks, ended, routes)?;
        Ok((endpoint, streams))
    }

    /// Logs the end of a registration. A failure with the same text as the last one is not logged again, and
    /// what another resource has logged in this outage is logged at debug level only.
    fn log_end(&self, end: &Result<()>, last_failure: &mut String) {
        match end {
            Ok(()) => {
                last_failure.clear();
                if self.shared.outage.is_first_end() {
                    tracing::info!(resource = %self.name, "the kubelet has ended its connection; its resources are registered again");
                } else {
                    tracing::debug!(resource = %self.name, "the kubelet has ended its connection");
                }
            }
            Err(error) => {
                let report = error.report();
                if *last_failure == report {
                    return;
                }
                if self.shared.outage.is_new_failure(&report) {
                    tracing::warn!(resource = %self.name, error = report, "cannot offer a resource to the kubelet; retrying until it succeeds");
                } else {
                    tracing::debug!(resource = %self.name, error = report, "cannot offer a resource to the kubelet");
                }
                *last_failure = report;
            }
        }
    }
}

/// Returns once there is a newer kubelet than `generation`.
async fn replaced(mut kubelets: Kubelets, generation: u64) {
    let is_newer =
        |now: &Option<Kubelet>| now.as_ref().is_some_and(|now| now.generation != generation);
    if kubelets.wait_for(is_newer).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn cut(text: &str) -> String {
    beginning(text, TEXT_MAX).to_owned()
}

// === impl WatcherRegistration ===

#[tonic::async_trait]
impl watcher::registration_server::Registration for WatcherRegistration {
    async fn get_info(
        &self,
        _: Request<watcher::InfoRequest>,
    ) -> Result<Response<watcher::PluginInfo>, Status> {
        Ok(Response::new(watcher::PluginInfo {
            r#type: "DevicePlugin".to_owned(),
            name: self.resource.to_string(),
            // An empty endpoint means this socket.
            endpoint: String::new(),
            supported_versions: vec![to_proto::VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<watcher::RegistrationStatus>,
    ) -> Result<Response<watcher::RegistrationStatusResponse>, Status> {
        let watcher::RegistrationStatus {
            plugin_registered,
            error,
        } = request.into_inner();
        if !plugin_registered {
            tracing::warn!(resource = %self.resource, error = cut(&error), "the kubelet's plugin watcher found a resource but did not register it");
        }
        Ok(Response::new(watcher::RegistrationStatusResponse {}))
    }
}
