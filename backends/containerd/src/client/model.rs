//! A model of containerd for tests: images, content, snapshots and leases in memory, behind real gRPC over an
//! in-memory connection. A test can hold calls, have them refused, and damage what is stored.

mod grpc;
mod store;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots as snap;
use futures::StreamExt;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;
use tonic::body::Body;
use tonic::transport::{Endpoint, Server, Uri};

use super::Client;
pub(crate) use store::Store;

/// The size of the buffer between client and model, in bytes.
const PIPE: usize = 1 << 20;

/// A containerd in memory. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct ModelContainerd {
    shared: Arc<ModelState>,
}

#[derive(Default)]
struct ModelState {
    store: Mutex<Store>,
    holds: Mutex<Vec<Hold>>,
    refusals: Mutex<BTreeMap<String, Status>>,
    calls: Mutex<Vec<String>>,
}

/// Calls that are held.
struct Hold {
    /// A part of the call.
    part: String,
    /// True if they are held after they took effect.
    answer: bool,
    gate: Arc<Gate>,
}

/// The gate at which held calls wait.
#[derive(Default)]
struct Gate {
    open: watch::Sender<bool>,
    arrived: watch::Sender<usize>,
}

/// Calls that are held until this is dropped.
pub(crate) struct HeldCalls(Arc<Gate>);

// === impl HeldCalls ===

impl HeldCalls {
    /// Waits until so many calls have been held.
    pub(crate) async fn arrived(&self, calls: usize) {
        let mut arrived = self.0.arrived.subscribe();
        arrived.wait_for(|count| *count >= calls).await.unwrap();
    }
}

impl Drop for HeldCalls {
    fn drop(&mut self) {
        self.0.open.send_replace(true);
    }
}

// === impl ModelState ===

impl ModelState {
    /// A call begins: it waits while it is held, and may be refused.
    async fn enter(&self, call: &str) -> Result<(), Status> {
        self.calls.lock().push(call.to_owned());
        self.wait(call, false).await;
        let refusals = self.refusals.lock();
        match refusals
            .iter()
            .find(|(part, _)| call.contains(part.as_str()))
        {
            Some((_, status)) => Err(status.clone()),
            None => Ok(()),
        }
    }

    /// Waits while a call, or its answer, is held.
    async fn wait(&self, call: &str, answer: bool) {
        let gates: Vec<_> = {
            let holds = self.holds.lock();
            let here = holds
                .iter()
                .filter(|hold| hold.answer == answer && call.contains(&hold.part));
            here.map(|hold| Arc::clone(&hold.gate)).collect()
        };
        for gate in gates.into_iter().filter(|gate| !*gate.open.borrow()) {
            gate.arrived.send_modify(|count| *count += 1);
            // The gate is kept by this call.
            drop(gate.open.subscribe().wait_for(|open| *open).await);
        }
    }
}

// === impl ModelContainerd ===

impl ModelContainerd {
    /// Returns the stored objects.
    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        self.shared.store.lock()
    }

    /// The calls so far that have this part, as `Service/Method object`.
    pub(crate) fn calls(&self, part: &str) -> Vec<String> {
        self.shared
            .calls
            .lock()
            .iter()
            .filter(|call| call.contains(part))
            .cloned()
            .collect()
    }

    /// Holds calls that have this part before they take effect.
    pub(crate) fn hold(&self, part: &str) -> HeldCalls {
        self.hold_at(part, false)
    }

    /// Holds calls that have this part after they took effect.
    pub(crate) fn hold_answer(&self, part: &str) -> HeldCalls {
        self.hold_at(part, true)
    }

    fn hold_at(&self, part: &str, answer: bool) -> HeldCalls {
        let gate = Arc::<Gate>::default();
        self.shared.holds.lock().push(Hold {
            part: part.to_owned(),
            answer,
            gate: Arc::clone(&gate),
        });
        HeldCalls(gate)
    }

    /// Answers calls that have this part with this status from now on; `None` for the real answer.
    pub(crate) fn refuse(&self, part: &str, status: Option<Status>) {
        let mut refusals = self.shared.refusals.lock();
        match status {
            Some(status) => drop(refusals.insert(part.to_owned(), status)),
            None => drop(refusals.remove(part)),
        }
    }

    /// A client with a connection of its own.
    pub(crate) fn client(&self) -> Client {
        let (accept, accepted) = mpsc::unbounded_channel();
        let model = self.clone();
        let service = tower::service_fn(move |request| {
            let model = model.clone();
            async move { Ok::<_, std::convert::Infallible>(model.answer(request).await) }
        });
        let incoming = UnboundedReceiverStream::new(accepted).map(io::Result::Ok);
        tokio::spawn(Server::builder().serve_with_incoming(service, incoming));
        let connector = tower::service_fn(move |_: Uri| {
            let (ours, theirs) = tokio::io::duplex(PIPE);
            let sent = accept
                .send(theirs)
                .map_err(|_| io::Error::other("the model is gone"));
            async move { sent.map(|()| hyper_util::rt::TokioIo::new(ours)) }
        });
        Client::over(
            Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector),
        )
    }

    async fn answer(&self, request: http::Request<Body>) -> http::Response<Body> {
        let path = request.uri().path().to_owned();
        let (service, method) = path.rsplit_once('/').unwrap_or_default();
        let service = service.rsplit('.').next().unwrap_or_default();
        let call = format!("{service}/{method}");
        match service {
            "Images" => self.answer_images(call, request).await,
            "Leases" => self.answer_leases(call, request).await,
            "Content" => self.answer_content(call, request).await,
            "Diff" | "Introspection" | "Version" => self.answer_others(call, request).await,
            _ => self.answer_snapshots(call, request).await,
        }
    }

    async fn answer_images(
        &self,
        call: String,
        request: http::Request<Body>,
    ) -> http::Response<Body> {
        match call.as_str() {
            "Images/List" => {
                self.unary(call, request, |_| String::new(), Store::list_images)
                    .await
            }
            "Images/Get" => {
                self.unary(
                    call,
                    request,
                    |r: &api::GetImageRequest| r.name.clone(),
                    Store::get_image,
                )
                .await
            }
            "Images/Create" => {
                self.unary(call, request, store::name_of_new, Store::create_image)
                    .await
            }
            "Images/Update" => {
                self.unary(call, request, store::name_of_changed, Store::update_image)
                    .await
            }
            "Images/Delete" => {
                self.unary(
                    call,
                    request,
                    |r: &api::DeleteImageRequest| r.name.clone(),
                    Store::delete_image,
                )
                .await
            }
            _ => self.answer_snapshots(call, request).await,
        }
    }

    async fn answer_leases(
        &self,
        call: String,
        request: http::Request<Body>,
    ) -> http::Response<Body> {
        match call.as_str() {
            "Leases/Create" => {
                self.unary(
                    call,
                    request,
                    |r: &api::CreateRequest| r.id.clone(),
                    Store::create_lease,
                )
                .await
            }
            "Leases/Delete" => {
                self.unary(
                    call,
                    request,
                    |r: &api::DeleteRequest| r.id.clone(),
                    Store::delete_lease,
                )
                .await
            }
            "Leases/AddResource" => {
                self.unary(call, request, store::added_to_lease, Store::add_resource)
                    .await
            }
            _ => self.answer_snapshots(call, request).await,
        }
    }

    async fn answer_content(
        &self,
        call: String,
        request: http::Request<Body>,
    ) -> http::Response<Body> {
        match call.as_str() {
            "Content/Info" => {
                self.unary(
                    call,
                    request,
                    |r: &api::InfoRequest| r.digest.clone(),
                    Store::blob_info,
                )
                .await
            }
            "Content/Update" => {
                self.unary(call, request, store::digest_of_changed, Store::update_blob)
                    .await
            }
            "Content/Delete" => {
                self.unary(
                    call,
                    request,
                    |r: &api::DeleteContentRequest| r.digest.clone(),
                    Store::delete_blob,
                )
                .await
            }
            "Content/Status" => {
                self.unary(
                    call,
                    request,
                    |r: &api::StatusRequest| r.r#ref.clone(),
                    Store::write_status,
                )
                .await
            }
            "Content/Abort" => {
                self.unary(
                    call,
                    request,
                    |r: &api::AbortRequest| r.r#ref.clone(),
                    Store::abort_write,
                )
                .await
            }
            "Content/Read" => {
                self.streamed(
                    call,
                    request,
                    |r: &api::ReadContentRequest| r.digest.clone(),
                    Store::read_blob,
                )
                .await
            }
            "Content/List" => {
                self.streamed(
                    call,
                    request,
                    |_: &api::ListContentRequest| String::new(),
                    Store::list_blobs,
                )
                .await
            }
            "Content/Write" => self.write(request).await,
            _ => self.answer_snapshots(call, request).await,
        }
    }

    async fn answer_others(
        &self,
        call: String,
        request: http::Request<Body>,
    ) -> http::Response<Body> {
        match call.as_str() {
            "Diff/Apply" => {
                self.unary(call, request, store::digest_of_applied, Store::apply)
                    .await
            }
            "Introspection/Plugins" => {
                let none =
                    |_: &mut Store, _: api::PluginsRequest| Ok(api::PluginsResponse::default());
                self.unary(call, request, |_| String::new(), none).await
            }
            "Version/Version" => {
                let version = |_: &mut Store, ()| Ok(api::VersionResponse::default());
                self.unary(call, request, |()| String::new(), version).await
            }
            _ => self.answer_snapshots(call, request).await,
        }
    }

    async fn answer_snapshots(
        &self,
        call: String,
        request: http::Request<Body>,
    ) -> http::Response<Body> {
        match call.as_str() {
            "Snapshots/Stat" => {
                self.unary(
                    call,
                    request,
                    |r: &snap::StatSnapshotRequest| r.key.clone(),
                    Store::stat_snapshot,
                )
                .await
            }
            "Snapshots/Prepare" => {
                self.unary(
                    call,
                    request,
                    |r: &snap::PrepareSnapshotRequest| r.key.clone(),
                    Store::prepare_snapshot,
                )
                .await
            }
            "Snapshots/Commit" => {
                self.unary(
                    call,
                    request,
                    |r: &store::Commit| r.name.clone(),
                    Store::commit_snapshot,
                )
                .await
            }
            "Snapshots/Remove" => {
                self.unary(
                    call,
                    request,
                    |r: &snap::RemoveSnapshotRequest| r.key.clone(),
                    Store::remove_snapshot,
                )
                .await
            }
            "Snapshots/Update" => {
                self.unary(
                    call,
                    request,
                    store::name_of_relabelled,
                    Store::update_snapshot,
                )
                .await
            }
            "Snapshots/Usage" => {
                self.unary(
                    call,
                    request,
                    |r: &snap::UsageRequest| r.key.clone(),
                    Store::snapshot_usage,
                )
                .await
            }
            "Snapshots/List" => {
                let snapshotter = |r: &snap::ListSnapshotsRequest| r.snapshotter.clone();
                self.streamed(call, request, snapshotter, Store::list_snapshots)
                    .await
            }
            _ => Status::unimplemented(call).into_http(),
        }
    }
}
