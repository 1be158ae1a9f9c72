//! Register: the kubelet connects to the plugin within the call, and watches its devices from then on.

use std::path::Path;
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use switchyard_proto::kubelet::device_plugin::v1beta1;
use switchyard_proto::kubelet::device_plugin::v1beta1::device_plugin_client::DevicePluginClient;
use switchyard_proto::kubelet::device_plugin::v1beta1::registration_server::Registration;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::KubeletInner;
use crate::manager::{AcceptedRegistration, Plugin};

/// Time for which it tries to connect to a plugin.
const CONNECT: Duration = Duration::from_secs(10);

/// The pause between two attempts.
const ATTEMPT: Duration = Duration::from_millis(5);

// === impl KubeletInner ===

#[tonic::async_trait]
impl Registration for KubeletInner {
    async fn register(
        &self,
        request: Request<v1beta1::RegisterRequest>,
    ) -> Result<Response<v1beta1::Empty>, Status> {
        let called = Instant::now();
        self.hang().await;
        let v1beta1::RegisterRequest {
            version,
            endpoint,
            resource_name,
            options: _,
        } = request.into_inner();
        if version != "v1beta1" {
            let text = format!(
                "requested API version {version:?} is not supported by kubelet. Supported version is [\"v1beta1\"]"
            );
            return Err(Status::unknown(text));
        }
        if !is_extended_resource(&resource_name) {
            return Err(Status::unknown(format!(
                "the ResourceName {resource_name:?} is invalid"
            )));
        }
        self.connect(&resource_name, &self.directory.join(&endpoint))
            .await?;
        let answered = Instant::now();
        self.change(|state| {
            state.registered.push(AcceptedRegistration {
                resource: resource_name,
                endpoint,
                called,
                answered,
            });
        });
        Ok(Response::new(v1beta1::Empty {}))
    }
}

impl KubeletInner {
    /// Connects to a plugin, asks for its options, and watches its devices.
    pub(crate) async fn connect(&self, resource: &str, socket: &Path) -> Result<(), Status> {
        let channel = dial(socket)
            .await
            .map_err(|error| Status::unknown(format!("failed to dial device plugin: {error}")))?;
        let mut client = DevicePluginClient::new(channel.clone());
        let options = client
            .get_device_plugin_options(v1beta1::Empty {})
            .await?
            .into_inner();
        let connection = self.stop.child_token();
        let plugin = Plugin {
            channel,
            options,
            connection: connection.clone(),
        };
        self.change(|state| state.add(resource, plugin));
        let resource = resource.to_owned();
        let shared = self.this.clone();
        tokio::spawn(async move {
            let follow = async {
                let mut stream = client.list_and_watch(v1beta1::Empty {}).await?.into_inner();
                while let Some(message) = stream.message().await? {
                    let Some(shared) = shared.upgrade() else {
                        break;
                    };
                    shared.change(|state| state.list(&resource, message.devices));
                }
                Ok::<(), Status>(())
            };
            // However the stream ends, the kubelet does not open it again.
            let _ = connection.run_until_cancelled(follow).await;
            drop(client);
            if let Some(shared) = shared.upgrade() {
                shared.change(|state| state.end(&resource));
            }
        });
        Ok(())
    }
}

/// Connects to a plugin's socket, for as long as a kubelet tries.
pub(crate) async fn dial(socket: &Path) -> Result<Channel, String> {
    let connected = timeout(CONNECT, async {
        loop {
            match UnixStream::connect(socket).await {
                Ok(stream) => return stream,
                Err(_) => sleep(ATTEMPT).await,
            }
        }
    });
    let mut stream = Some(
        connected
            .await
            .map_err(|_| "context deadline exceeded".to_owned())?,
    );
    let connect = tower::service_fn(move |_| {
        let stream = stream
            .take()
            .map(TokioIo::new)
            .ok_or_else(|| std::io::Error::other("it was used"));
        std::future::ready(stream)
    });
    let dialer = Endpoint::from_static("http://localhost");
    dialer
        .connect_with_connector(connect)
        .await
        .map_err(|error| error.to_string())
}

/// Returns whether this may name a resource: a qualified name that is not in a domain of Kubernetes.
fn is_extended_resource(name: &str) -> bool {
    let Some((domain, word)) = name.split_once('/') else {
        return false;
    };
    let bounded = |text: &str, most: usize| {
        let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        text.len() <= most
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
            && edge(text.bytes().next())
            && edge(text.bytes().last())
    };
    !name.contains("kubernetes.io/") && bounded(domain, 244) && bounded(word, 63)
}
