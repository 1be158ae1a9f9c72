//! The device plugin service of one resource, as a kubelet calls it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, stream};
use switchyard_core::gateway::Scope;
use switchyard_core::id::SlotId;
use switchyard_core::{Error, Result};
use switchyard_proto::kubelet::device_plugin::v1beta1;
use switchyard_proto::kubelet::device_plugin::v1beta1::device_plugin_server;
use switchyard_rpc::status;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::listing::Listing;
use crate::preference::{PreferenceRequest, prefer};
use crate::streams::Streams;
use crate::{from_proto, to_proto};

/// Timeout of a lease. The kubelet handles no other pod meanwhile, and sets no deadline of its own.
const LEASE: Duration = Duration::from_secs(5);

/// Limit for which PreStartContainer waits until the previous container with these slots has exited. A
/// kubelet waits 30 s, and retries later.
const PATIENCE: Duration = Duration::from_secs(25);

/// Pause between two messages of a stream. A kubelet writes a file for each message, and treats the newest as
/// the complete state.
const PAUSE: Duration = Duration::from_millis(20);

/// Serves `v1beta1.DevicePlugin` for one resource, on one endpoint.
pub(crate) struct DevicePlugin {
    pub(crate) resource: Arc<str>,
    pub(crate) scope: Scope,
    pub(crate) listing: watch::Receiver<Arc<Listing>>,
    pub(crate) streams: Streams,
    /// Cancelled with the endpoint; it ends the streams and the waiting calls.
    pub(crate) ended: CancellationToken,
}

type Answers = Pin<Box<dyn Stream<Item = Result<v1beta1::ListAndWatchResponse, Status>> + Send>>;

// === impl DevicePlugin ===

impl DevicePlugin {
    /// Sends all slots at once, and again whenever one of them changes.
    fn list(
        &self,
    ) -> impl Stream<Item = Result<v1beta1::ListAndWatchResponse, Status>> + Send + use<> {
        let mut listing = self.listing.clone();
        listing.mark_changed();
        let start = (listing, self.ended.clone(), self.streams.open(), None);
        stream::unfold(start, |(mut listing, ended, open, pause)| async move {
            let next = async {
                // The stream is polled for the next message when the previous one was taken.
                if let Some(pause) = pause {
                    open.mark_listed();
                    tokio::time::sleep(pause).await;
                }
                // The inventory is no longer updated: the last state stays valid.
                if listing.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
                to_proto::list(&listing.borrow_and_update())
            };
            let now = ended.run_until_cancelled(next).await?;
            Some((Ok(now), (listing, ended, open, Some(PAUSE))))
        })
    }

    fn listing(&self) -> Arc<Listing> {
        Arc::clone(&self.listing.borrow())
    }

    async fn lease(&self, request: v1beta1::AllocateRequest) -> Result<v1beta1::AllocateResponse> {
        let containers = from_proto::allocate(&self.resource, &self.listing(), request)?;
        let mut container_responses = Vec::with_capacity(containers.len());
        for slots in containers {
            // If leasing for a later container of the call fails, the leases of the earlier ones stay with
            // this owner; they are ended when no container is created with them.
            let lease = match timeout(LEASE, self.scope.devices().lease(&slots)).await {
                Ok(lease) => lease?,
                Err(_) => {
                    return Err(Error::deadline(format!(
                        "recording the lease took longer than {LEASE:?}"
                    )));
                }
            };
            container_responses.push(to_proto::allocated(lease)?);
        }
        Ok(v1beta1::AllocateResponse {
            container_responses,
        })
    }

    /// The slots to take: those that the provider of the resource prefers, or, if it has no preference, the
    /// best choice by the listing.
    async fn preferred(&self, listing: &Listing, question: &PreferenceRequest) -> Vec<SlotId> {
        let PreferenceRequest {
            available,
            required: must,
            size,
        } = question;
        match self
            .scope
            .devices()
            .prefer(&self.resource, available, must, *size)
            .await
        {
            Some(preferred) => preferred,
            None => prefer(listing, question),
        }
    }

    async fn wait_until_free(&self, request: v1beta1::PreStartContainerRequest) -> Result<()> {
        let slots = from_proto::pre_start(&self.resource, &self.listing(), request)?;
        match self
            .ended
            .run_until_cancelled(self.scope.devices().wait_until_free(&slots, PATIENCE))
            .await
        {
            Some(vacated) => vacated,
            None => Err(Error::unavailable("the gateway is shutting down")),
        }
    }

    fn refusal(&self, doing: &str) -> impl FnOnce(Error) -> Status {
        let doing = format!("{doing} {}", self.resource);
        |error| status(&error.context(doing))
    }
}

#[tonic::async_trait]
impl device_plugin_server::DevicePlugin for DevicePlugin {
    type ListAndWatchStream = Answers;

    async fn get_device_plugin_options(
        &self,
        _: Request<v1beta1::Empty>,
    ) -> Result<Response<v1beta1::DevicePluginOptions>, Status> {
        Ok(Response::new(to_proto::options()))
    }

    async fn list_and_watch(
        &self,
        _: Request<v1beta1::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        Ok(Response::new(Box::pin(self.list())))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<v1beta1::PreferredAllocationRequest>,
    ) -> Result<Response<v1beta1::PreferredAllocationResponse>, Status> {
        let v1beta1::PreferredAllocationRequest { container_requests } = request.into_inner();
        let listing = self.listing();
        let mut container_responses = Vec::new();
        for request in container_requests
            .into_iter()
            .take(from_proto::CONTAINERS_MAX)
        {
            let preferred = self
                .preferred(&listing, &from_proto::preference_request(request))
                .await;
            let device_i_ds = preferred.into_iter().map(String::from).collect();
            container_responses.push(v1beta1::ContainerPreferredAllocationResponse { device_i_ds });
        }
        Ok(Response::new(v1beta1::PreferredAllocationResponse {
            container_responses,
        }))
    }

    async fn allocate(
        &self,
        request: Request<v1beta1::AllocateRequest>,
    ) -> Result<Response<v1beta1::AllocateResponse>, Status> {
        let given = self.lease(request.into_inner()).await;
        given
            .map(Response::new)
            .map_err(self.refusal("allocate devices of"))
    }

    async fn pre_start_container(
        &self,
        request: Request<v1beta1::PreStartContainerRequest>,
    ) -> Result<Response<v1beta1::PreStartContainerResponse>, Status> {
        let vacated = self.wait_until_free(request.into_inner()).await;
        vacated.map_err(self.refusal("start a container with devices of"))?;
        Ok(Response::new(v1beta1::PreStartContainerResponse {}))
    }
}
