//! The calls that a launcher answers itself: identity, schemas, capabilities, and go-plugin's own calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::{StreamExt, stream};
use parking_lot::{Mutex, MutexGuard};
use prost::Message;
use switchyard_proto::go_plugin as plugin;
use switchyard_proto::grpc::health::v1 as health;
use switchyard_proto::nomad::base::proto as base;
use switchyard_proto::nomad::device;
use switchyard_proto::nomad::device::device_plugin_client::DevicePluginClient;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_proto::nomad::drivers::proto::driver_client::DriverClient;
use switchyard_proto::nomad::shared::hclspec;
use tokio::time::Instant;
use tonic::{Request, Status};

use super::calls::{Call, ResponseFuture, awaited, never_answered, streaming, unary};
use super::exit_deadline::ExitDeadline;
use super::fallback;
use super::launch::{Launch, Role};
use super::link::{Link, SessionHandle};
use super::routing::{BaseCall, DriverCall, GoPluginCall, LocalCall};
use crate::PluginConfig;
use crate::capabilities::capabilities;
use crate::schema::{plugin_schema, task_schema};
use crate::session::SESSION_KEY;

/// The version of Nomad's plugin interfaces; there is only one.
const API_VERSION: &str = "v0.1.0";

/// The service name under which a host checks the plugin with go-plugin's health service.
const HEALTH_NAME: &str = "plugin";

/// Limit for the daemon to name its task options: an agent waits for them before it starts or recovers a task. A launcher
/// waits so long for a session once, since an agent asks before each task.
const OPTIONS_LIMIT: Duration = Duration::from_secs(2);

/// Answers the local calls.
#[derive(Debug, Clone)]
pub(super) struct LocalServices {
    launch: Arc<Launch>,
    link: Link,
    ending: ExitDeadline,
    config: Arc<Mutex<PluginConfig>>,
    options: Arc<TaskSchema>,
}

/// The options of tasks, as the daemon names them.
#[derive(Debug, Default)]
struct TaskSchema {
    /// The time until which a call waits for a session; set by the first call.
    deadline: OnceLock<Instant>,
    /// It was logged that the daemon does not name them.
    is_logged: AtomicBool,
}

// === impl LocalServices ===

impl LocalServices {
    pub(super) fn new(launch: &Launch, link: Link, ending: ExitDeadline) -> Self {
        Self {
            launch: Arc::new(launch.clone()),
            link,
            ending,
            config: Arc::default(),
            options: Arc::default(),
        }
    }

    /// Answers a call.
    pub(super) fn handle(&self, known: LocalCall, call: Call) -> ResponseFuture {
        match known {
            LocalCall::Base(base) => self.base(base, call),
            LocalCall::Driver(driver) => self.driver(driver, call),
            LocalCall::DeviceFingerprint => self.devices(call),
            LocalCall::Host(host) => self.host(host, call),
        }
    }

    fn base(&self, method: BaseCall, call: Call) -> ResponseFuture {
        let this = self.clone();
        match method {
            BaseCall::PluginInfo => unary(call, move |base::PluginInfoRequest {}| Ok(this.info())),
            BaseCall::ConfigSchema => {
                unary(call, move |base::ConfigSchemaRequest {}| Ok(this.schema()))
            }
            BaseCall::SetConfig => unary(call, move |request| this.set_config(request)),
        }
    }

    fn driver(&self, method: DriverCall, call: Call) -> ResponseFuture {
        let this = self.clone();
        match method {
            DriverCall::Init => unary(call, move |nomad::InitRequest {}| {
                this.link.recovery.begin();
                this.link.need();
                Ok(nomad::InitResponse {})
            }),
            DriverCall::Shutdown => unary(call, move |nomad::ShutdownRequest {}| {
                tracing::info!("the agent is about to end; its tasks continue");
                this.ending.soon();
                Ok(nomad::ShutdownResponse {})
            }),
            DriverCall::Capabilities => unary(call, move |nomad::CapabilitiesRequest {}| {
                Ok(nomad::CapabilitiesResponse {
                    capabilities: Some(capabilities(&this.config())),
                })
            }),
            DriverCall::TaskConfigSchema => {
                awaited(call, move |nomad::TaskConfigSchemaRequest {}| async move {
                    Ok(nomad::TaskConfigSchemaResponse {
                        spec: Some(this.options.get(this.link).await),
                    })
                })
            }
            DriverCall::Fingerprint => {
                let away = self.undetected();
                streaming::<nomad::FingerprintRequest, _>(
                    call,
                    fallback::stream(self.link.clone(), Some(away), |up| async move {
                        let request = named(&up, nomad::FingerprintRequest {});
                        Ok(DriverClient::new(up.channel)
                            .fingerprint(request)
                            .await?
                            .into_inner())
                    }),
                )
            }
            DriverCall::TaskEvents => streaming::<nomad::TaskEventsRequest, _>(
                call,
                fallback::stream(self.link.clone(), None, |up| async move {
                    let request = named(&up, nomad::TaskEventsRequest {});
                    Ok(DriverClient::new(up.channel)
                        .task_events(request)
                        .await?
                        .into_inner())
                }),
            ),
        }
    }

    fn devices(&self, call: Call) -> ResponseFuture {
        // Without the daemon there are no devices; an agent that starts waits for this first message.
        let away = device::FingerprintResponse::default();
        streaming::<device::FingerprintRequest, _>(
            call,
            fallback::stream(self.link.clone(), Some(away), |up| async move {
                let request = named(&up, device::FingerprintRequest {});
                Ok(DevicePluginClient::new(up.channel)
                    .fingerprint(request)
                    .await?
                    .into_inner())
            }),
        )
    }

    /// The calls of go-plugin itself.
    fn host(&self, method: GoPluginCall, call: Call) -> ResponseFuture {
        let ending = self.ending.clone();
        match method {
            GoPluginCall::HealthCheck => unary(call, |request| check_health(&request)),
            GoPluginCall::HealthWatch => {
                let serving = stream::once(async { Ok(serving()) });
                streaming::<health::HealthCheckRequest, _>(call, serving.chain(stream::pending()))
            }
            GoPluginCall::Shutdown => unary(call, move |plugin::Empty {}| {
                ending.now();
                Ok(plugin::Empty {})
            }),
            // The launcher writes no output for the host to collect.
            GoPluginCall::Stdio => streaming::<(), plugin::StdioData>(call, stream::pending()),
            GoPluginCall::Broker => never_answered::<plugin::ConnInfo, plugin::ConnInfo>(call),
        }
    }

    fn info(&self) -> base::PluginInfoResponse {
        let kind = match self.launch.role {
            Role::Driver => base::PluginType::Driver,
            Role::Device => base::PluginType::Device,
        };
        base::PluginInfoResponse {
            r#type: kind.into(),
            plugin_api_versions: vec![API_VERSION.to_owned()],
            plugin_version: self.launch.version.to_owned(),
            name: self.launch.name().to_owned(),
        }
    }

    fn schema(&self) -> base::ConfigSchemaResponse {
        base::ConfigSchemaResponse {
            spec: match self.launch.role {
                Role::Driver => Some(plugin_schema()),
                // The devices of the node are configured in the daemon.
                Role::Device => None,
            },
        }
    }

    /// Accepts a configuration if the daemon would. An agent first sends one twice for validation, without
    /// information about its node.
    fn set_config(
        &self,
        request: base::SetConfigRequest,
    ) -> Result<base::SetConfigResponse, Status> {
        let base::SetConfigRequest {
            msgpack_config,
            nomad_config,
            plugin_api_version: _,
        } = request;
        if self.launch.role == Role::Driver {
            let (config, warnings) = PluginConfig::decode(&msgpack_config)
                .map_err(|error| crate::status::status(&error))?;
            for warning in warnings.into_iter().filter(|_| nomad_config.is_some()) {
                tracing::warn!("{warning}");
            }
            *self.lock() = config;
        }
        let means_it = nomad_config.is_some();
        self.link.configure(
            msgpack_config,
            nomad_config
                .map(|config| config.encode_to_vec())
                .unwrap_or_default(),
        );
        if means_it {
            self.link.need();
        }
        Ok(base::SetConfigResponse {})
    }

    fn undetected(&self) -> nomad::FingerprintResponse {
        nomad::FingerprintResponse {
            health: nomad::fingerprint_response::HealthState::Undetected.into(),
            health_description: format!(
                "no session with the switchyard daemon on {}: the agent's log has the reason",
                self.launch.daemon.display()
            ),
            ..nomad::FingerprintResponse::default()
        }
    }

    fn config(&self) -> PluginConfig {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, PluginConfig> {
        self.config.lock()
    }
}

// === impl TaskSchema ===

impl TaskSchema {
    /// The options of tasks: those of the daemon, because it decodes them. So the agent refuses a job with an option that
    /// a daemon of an earlier version than this launcher would ignore. Without an answer in time, those of this launcher.
    async fn get(&self, link: Link) -> hclspec::Spec {
        let deadline = *self.deadline.get_or_init(|| Instant::now() + OPTIONS_LIMIT);
        let why = match tokio::time::timeout(OPTIONS_LIMIT, of_daemon(link, deadline)).await {
            Ok(Ok(options)) => return options,
            Ok(Err(why)) => why,
            Err(_) => format!("no answer within {OPTIONS_LIMIT:?}"),
        };
        if !self.is_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                reason = why,
                "the switchyard daemon does not name its task options: this plugin offers its own"
            );
        }
        task_schema()
    }
}

/// The task options of the daemon, or the reason why it does not name them. Waits for a session until `deadline`; one that
/// is there is used also afterwards.
async fn of_daemon(link: Link, deadline: Instant) -> Result<hclspec::Spec, String> {
    let up = tokio::time::timeout_at(deadline, link.session())
        .await
        .map_err(|_| "there is no session with it".to_owned())?;
    let request = named(&up, nomad::TaskConfigSchemaRequest {});
    let answer = DriverClient::new(up.channel)
        .task_config_schema(request)
        .await
        .map_err(|status| status.message().to_owned())?;
    let options = answer.into_inner().spec;
    options.ok_or_else(|| "it names none".to_owned())
}

fn check_health(
    request: &health::HealthCheckRequest,
) -> Result<health::HealthCheckResponse, Status> {
    if request.service.is_empty() || request.service == HEALTH_NAME {
        return Ok(serving());
    }
    let why = format!("there is no service {:?} here", request.service);
    Err(crate::status::status(&switchyard_core::Error::not_found(
        why,
    )))
}

fn serving() -> health::HealthCheckResponse {
    health::HealthCheckResponse {
        status: health::health_check_response::ServingStatus::Serving.into(),
    }
}

/// A request with the session in its metadata.
fn named<T>(up: &SessionHandle, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request
        .metadata_mut()
        .insert(SESSION_KEY, up.session.clone());
    request
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use switchyard_proto::nomad::shared::hclspec::spec::Block;
    use switchyard_proto::switchyard::nomad::v1 as wire;
    use tokio::net::UnixListener;
    use tonic::transport::Server;

    use super::super::launch::SocketEnv;
    use super::*;

    fn launch(daemon: &Path) -> Launch {
        Launch {
            role: Role::Driver,
            name: None,
            daemon: daemon.to_owned(),
            version: "0.2.0",
            socket_env: SocketEnv::default(),
        }
    }

    /// The options of an earlier version.
    fn earlier() -> hclspec::Spec {
        let image = hclspec::Attr {
            name: "image".into(),
            r#type: "string".into(),
            required: true,
        };
        hclspec::Spec {
            block: Some(Block::Attr(image)),
        }
    }

    /// Answers as a daemon of an earlier version.
    fn answer(call: Call) -> ResponseFuture {
        match call.uri().path() {
            "/switchyard.nomad.v1.Sessions/Open" => {
                let opened = wire::OpenResponse {
                    session_id: "1".into(),
                };
                streaming::<wire::OpenRequest, _>(
                    call,
                    stream::once(async { Ok(opened) }).chain(stream::pending()),
                )
            }
            _ => unary(call, |nomad::TaskConfigSchemaRequest {}| {
                Ok(nomad::TaskConfigSchemaResponse {
                    spec: Some(earlier()),
                })
            }),
        }
    }

    #[tokio::test]
    async fn agent_gets_the_task_options_of_the_daemon_that_would_decode_them() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("nomad.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let connections = stream::once(async move {
            let accepted = listener.accept().await?;
            Ok::<_, io::Error>(accepted.0)
        })
        .chain(stream::pending());
        let daemon = Server::builder().serve_with_incoming(tower::service_fn(answer), connections);
        let daemon = tokio::spawn(daemon);
        let (link, link_task) = Link::new(&launch(&socket));
        let link_task = tokio::spawn(link_task.run());
        let options = TaskSchema::default();
        assert_eq!(options.get(link.clone()).await, earlier());
        let late = TaskSchema {
            deadline: OnceLock::from(Instant::now()),
            ..TaskSchema::default()
        };
        let named = late.get(link).await;
        assert_eq!(named, earlier(), "a session that is there is used");
        link_task.abort();
        daemon.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn agent_gets_our_task_options_without_a_daemon_and_waits_once() {
        let (link, _link_task) = Link::new(&launch(Path::new("/nowhere")));
        let options = TaskSchema::default();
        let begun = Instant::now();
        assert_eq!(options.get(link.clone()).await, task_schema());
        assert!(begun.elapsed() >= OPTIONS_LIMIT, "it may just be starting");
        let again = Instant::now();
        assert_eq!(options.get(link).await, task_schema());
        assert_eq!(again.elapsed(), Duration::ZERO);
    }
}
