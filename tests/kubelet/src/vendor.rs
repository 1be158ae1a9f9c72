//! A model of a vendor's device plugin, which also misbehaves at a test's request.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, stream};
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, MutexGuard};
use switchyard_proto::kubelet::device_plugin::v1beta1;
use switchyard_proto::kubelet::device_plugin::v1beta1::device_plugin_server::{
    DevicePlugin, DevicePluginServer,
};
use switchyard_proto::kubelet::device_plugin::v1beta1::registration_client::RegistrationClient;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::raw;

/// The variable in the answer to Allocate that has the ids, separated by commas.
pub const VENDOR_DEVICES: &str = "VENDOR_DEVICES";

/// A plugin's treatment of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallBehaviour {
    /// It answers normally.
    #[default]
    Answer,
    /// It fails with this text.
    Fail(&'static str),
    /// It never answers.
    Hang,
}

/// The behaviour of a plugin.
#[derive(Debug, Clone, Default)]
pub struct VendorBehaviour {
    /// The options that it reports.
    pub options: v1beta1::DevicePluginOptions,
    /// Treatment of GetDevicePluginOptions.
    pub get_options: CallBehaviour,
    /// Treatment of ListAndWatch.
    pub list: CallBehaviour,
    /// Treatment of Allocate.
    pub allocate: CallBehaviour,
    /// Treatment of PreStartContainer.
    pub pre_start: CallBehaviour,
    /// Treatment of GetPreferredAllocation. It prefers the last devices.
    pub prefer: CallBehaviour,
    /// Additions to the answer to Allocate besides [`VENDOR_DEVICES`].
    pub answer: v1beta1::ContainerAllocateResponse,
    /// The device node of each device id, which is in the answer to Allocate for that device.
    pub nodes: BTreeMap<String, v1beta1::DeviceSpec>,
    /// The number of container answers beyond the number of container requests.
    pub further_answers: usize,
}

/// A running plugin. Dropping it closes its connections, as a kill of its process does. Its socket stays.
#[derive(Debug)]
pub struct VendorPlugin {
    shared: Arc<VendorInner>,
    socket: PathBuf,
    resource: String,
    /// The task that stands for its process.
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct VendorInner {
    behaviour: Mutex<VendorBehaviour>,
    devices: watch::Sender<Vec<v1beta1::Device>>,
    calls: Mutex<Vec<(&'static str, Vec<String>)>>,
}

// === impl VendorPlugin ===

impl VendorPlugin {
    /// Serves a plugin for a resource on a socket of this name, with these devices, all healthy.
    ///
    /// # Panics
    /// If it cannot listen there.
    #[must_use]
    pub fn start(directory: &Path, name: &str, resource: &str, ids: &[&str]) -> Self {
        let socket = directory.join(name);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("threads can be started");
        let listener = {
            let _entered = runtime.enter();
            UnixListener::bind(&socket).expect("the socket can be made")
        };
        let shared = Arc::new(VendorInner {
            behaviour: Mutex::default(),
            devices: watch::Sender::new(ids.iter().map(|id| device(id, true)).collect()),
            calls: Mutex::default(),
        });
        let service = DevicePluginServer::from_arc(Arc::clone(&shared));
        let serving = Server::builder()
            .add_service(service)
            .serve_with_incoming(UnixListenerStream::new(listener));
        runtime.spawn(async move { serving.await.expect("the server serves") });
        Self {
            shared,
            socket,
            resource: resource.to_owned(),
            runtime: Some(runtime),
        }
    }

    /// Changes its behaviour from now on.
    pub fn set_behaviour(&self, change: impl FnOnce(&mut VendorBehaviour)) {
        change(&mut self.shared.behaviour());
    }

    /// Changes the devices that it lists.
    pub fn set_devices(&self, devices: Vec<v1beta1::Device>) {
        self.shared.devices.send_replace(devices);
    }

    /// The calls that it got, with the device ids in them.
    #[must_use]
    pub fn calls(&self, method: &str) -> Vec<Vec<String>> {
        let calls = self.shared.calls.lock();
        calls
            .iter()
            .filter(|(name, _)| *name == method)
            .map(|(_, ids)| ids.clone())
            .collect()
    }

    /// Registers at the `kubelet.sock` of its directory, with the socket's path as `:authority`, as most
    /// plugins do.
    ///
    /// # Errors
    /// The registration was refused.
    pub async fn register(&self) -> io::Result<()> {
        let registry = self.socket.with_file_name("kubelet.sock");
        let answer = raw::unary(&registry, "/v1beta1.Registration/Register", &self.request()).await;
        answer.map(|v1beta1::Empty {}| ())
    }

    /// Its registration request.
    #[must_use]
    pub fn request(&self) -> v1beta1::RegisterRequest {
        v1beta1::RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: self
                .socket
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            resource_name: self.resource.clone(),
            options: None,
        }
    }
}

impl Drop for VendorPlugin {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Sends a registration to the `kubelet.sock` of a directory.
///
/// # Errors
/// The refusal.
///
/// # Panics
/// If no server listens there.
pub async fn register(directory: &Path, request: v1beta1::RegisterRequest) -> Result<(), Status> {
    let registry = directory.join("kubelet.sock");
    let connect = tower::service_fn(move |_| {
        let registry = registry.clone();
        async move { UnixStream::connect(registry).await.map(TokioIo::new) }
    });
    let dialer = Endpoint::from_static("http://localhost");
    let channel = dialer
        .connect_with_connector(connect)
        .await
        .expect("somebody listens");
    RegistrationClient::new(channel)
        .register(request)
        .await
        .map(drop)
}

/// A device as plugins list it.
#[must_use]
pub fn device(id: &str, healthy: bool) -> v1beta1::Device {
    let health = if healthy { "Healthy" } else { "Unhealthy" }.to_owned();
    v1beta1::Device {
        id: id.to_owned(),
        health,
        topology: None,
    }
}

// === impl VendorInner ===

impl VendorInner {
    fn behaviour(&self) -> MutexGuard<'_, VendorBehaviour> {
        self.behaviour.lock()
    }

    fn record_call(&self, method: &'static str, ids: &[String]) {
        self.calls.lock().push((method, ids.to_vec()));
    }
}

async fn act(act: CallBehaviour) -> Result<(), Status> {
    match act {
        CallBehaviour::Answer => Ok(()),
        CallBehaviour::Fail(text) => Err(Status::unknown(text)),
        CallBehaviour::Hang => std::future::pending().await,
    }
}

#[tonic::async_trait]
impl DevicePlugin for VendorInner {
    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<v1beta1::ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<v1beta1::Empty>,
    ) -> Result<Response<v1beta1::DevicePluginOptions>, Status> {
        let VendorBehaviour {
            options,
            get_options,
            ..
        } = self.behaviour().clone();
        act(get_options).await?;
        Ok(Response::new(options))
    }

    async fn list_and_watch(
        &self,
        _: Request<v1beta1::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let doing = self.behaviour().list;
        act(doing).await?;
        let mut devices = self.devices.subscribe();
        devices.mark_changed();
        let lists = stream::unfold(devices, |mut devices| async {
            devices.changed().await.ok()?;
            let list = v1beta1::ListAndWatchResponse {
                devices: devices.borrow_and_update().clone(),
            };
            Some((Ok(list), devices))
        });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<v1beta1::PreferredAllocationRequest>,
    ) -> Result<Response<v1beta1::PreferredAllocationResponse>, Status> {
        let doing = self.behaviour().prefer;
        let one = |asked: v1beta1::ContainerPreferredAllocationRequest| {
            let mut ids = asked.available_device_i_ds;
            self.record_call("GetPreferredAllocation", &ids);
            ids.sort();
            ids.reverse();
            ids.truncate(usize::try_from(asked.allocation_size).unwrap_or_default());
            v1beta1::ContainerPreferredAllocationResponse { device_i_ds: ids }
        };
        let container_responses = request
            .into_inner()
            .container_requests
            .into_iter()
            .map(one)
            .collect();
        act(doing).await?;
        Ok(Response::new(v1beta1::PreferredAllocationResponse {
            container_responses,
        }))
    }

    async fn allocate(
        &self,
        request: Request<v1beta1::AllocateRequest>,
    ) -> Result<Response<v1beta1::AllocateResponse>, Status> {
        let VendorBehaviour {
            allocate,
            answer,
            nodes,
            further_answers,
            ..
        } = self.behaviour().clone();
        let mut container_responses = vec![answer.clone(); further_answers];
        for v1beta1::ContainerAllocateRequest { devices_ids } in
            request.into_inner().container_requests
        {
            self.record_call("Allocate", &devices_ids);
            let mut answer = answer.clone();
            answer
                .devices
                .extend(devices_ids.iter().filter_map(|id| nodes.get(id).cloned()));
            answer
                .envs
                .insert(VENDOR_DEVICES.to_owned(), devices_ids.join(","));
            container_responses.push(answer);
        }
        act(allocate).await?;
        Ok(Response::new(v1beta1::AllocateResponse {
            container_responses,
        }))
    }

    async fn pre_start_container(
        &self,
        request: Request<v1beta1::PreStartContainerRequest>,
    ) -> Result<Response<v1beta1::PreStartContainerResponse>, Status> {
        self.record_call("PreStartContainer", &request.into_inner().devices_ids);
        let doing = self.behaviour().pre_start;
        act(doing).await?;
        Ok(Response::new(v1beta1::PreStartContainerResponse {}))
    }
}
