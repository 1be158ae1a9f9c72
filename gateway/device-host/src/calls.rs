//! The calls to plugins on behalf of a container: each with a timeout, and each answer checked.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use futures::future::BoxFuture;
use switchyard_core::device::{DeviceProvider, Reservation};
use switchyard_core::id::SlotId;
use switchyard_core::{Error, Result};
use switchyard_linux::beginning;
use switchyard_proto::kubelet::device_plugin::v1beta1;
use switchyard_proto::kubelet::device_plugin::v1beta1::device_plugin_client::DevicePluginClient;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::from_proto;
use crate::hosted::{Failure, Hosted, by_vendors};

/// Timeout of Allocate. Kubelets have none. Only the create of one container waits here, and its caller
/// retries.
const ALLOCATE: Duration = Duration::from_secs(20);

/// Timeout of PreStartContainer. Kubelets wait 30 s.
const PRE_START: Duration = Duration::from_secs(25);

/// Timeout of GetPreferredAllocation. A kubelet handles no other pod meanwhile.
const PREFER: Duration = Duration::from_secs(2);

/// The largest answer that is read, in bytes.
const ANSWER_MAX: usize = 1 << 20;

/// The most characters of a plugin's error message that are passed on.
const TEXT_MAX: usize = 500;

impl DeviceProvider for Hosted {
    fn provides(&self, resource: &str) -> bool {
        self.has_registered(resource)
    }

    fn allocate<'a>(
        &'a self,
        resource: &'a str,
        devices: &'a [SlotId],
    ) -> BoxFuture<'a, Result<Reservation>> {
        Box::pin(async move {
            let doing = || format!("allocate {devices:?} of {resource}");
            let (plugin, devices_ids) = self
                .plugin(resource, devices)
                .map_err(|error| error.context(doing()))?;
            let container_requests = vec![v1beta1::ContainerAllocateRequest { devices_ids }];
            let request = v1beta1::AllocateRequest { container_requests };
            let mut client = client(plugin.channel);
            let answer = self
                .call(resource, "Allocate", ALLOCATE, client.allocate(request))
                .await;
            let given = answer.and_then(|answer| {
                from_proto::allocated(answer).map_err(|error| {
                    let error = error.context("invalid answer of its plugin to Allocate");
                    self.record_failure(resource, Failure::Malformed, &error.report());
                    error
                })
            });
            given.map_err(|error| {
                let error = error.context(doing());
                tracing::warn!(
                    error = error.report(),
                    "cannot allocate a vendor's devices for a task"
                );
                error
            })
        })
    }

    fn prepare<'a>(
        &'a self,
        resource: &'a str,
        devices: &'a [SlotId],
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let doing = || format!("prepare {devices:?} of {resource} for a start");
            // A plugin that does not ask for PreStartContainer may be away: what it has allocated stays valid, as
            // it does for a kubelet's pods.
            if !self.wants_pre_start(resource) {
                return Ok(());
            }
            let (plugin, devices_ids) = self
                .plugin(resource, devices)
                .map_err(|error| error.context(doing()))?;
            let request = v1beta1::PreStartContainerRequest { devices_ids };
            let mut client = client(plugin.channel);
            let answer = self.call(
                resource,
                "PreStartContainer",
                PRE_START,
                client.pre_start_container(request),
            );
            answer
                .await
                .map(drop)
                .map_err(|error| error.context(doing()))
        })
    }

    fn prefer<'a>(
        &'a self,
        resource: &'a str,
        available: &'a BTreeSet<SlotId>,
        must: &'a BTreeSet<SlotId>,
        size: usize,
    ) -> BoxFuture<'a, Option<Vec<SlotId>>> {
        Box::pin(async move {
            let ids: Vec<SlotId> = available.iter().cloned().collect();
            let (plugin, vendors) = self.plugin(resource, &ids).ok()?;
            let allocation_size = i32::try_from(size)
                .ok()
                .filter(|_| plugin.preferred && must.is_subset(available))?;
            let of_must = ids
                .iter()
                .zip(&vendors)
                .filter(|(id, _)| must.contains(*id));
            let one = v1beta1::ContainerPreferredAllocationRequest {
                available_device_i_ds: vendors.clone(),
                must_include_device_i_ds: of_must.map(|(_, vendors)| vendors.clone()).collect(),
                allocation_size,
            };
            let request = v1beta1::PreferredAllocationRequest {
                container_requests: vec![one],
            };
            let mut client = client(plugin.channel);
            let asked = client.get_preferred_allocation(request);
            let answer = self
                .call(resource, "GetPreferredAllocation", PREFER, asked)
                .await;
            let answer = answer.map_err(|error| {
                tracing::warn!(
                    error = error.report(),
                    "cannot get a plugin's preferred allocation: devices are chosen without it"
                );
            });
            let preferred =
                from_proto::preferred(answer.ok()?, &by_vendors(&ids, &vendors), must, size);
            if preferred.is_none() {
                let why = "it prefers other devices than it was asked about";
                self.record_failure(resource, Failure::Malformed, why);
                tracing::warn!(
                    resource,
                    "a plugin prefers other devices than it was asked about: devices are chosen without it"
                );
            }
            preferred
        })
    }
}

impl Hosted {
    /// The answer to a call, if it arrives within `limit`; a failure is recorded for the report.
    async fn call<T>(
        &self,
        resource: &str,
        method: &str,
        limit: Duration,
        call: impl Future<Output = Result<Response<T>, Status>> + Send,
    ) -> Result<T> {
        let (failure, error) = match timeout(limit, call).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => {
                let why = beginning(status.message(), TEXT_MAX);
                let text = format!(
                    "the plugin of {resource} fails {method}: {:?}: {why}",
                    status.code()
                );
                (Failure::Failed, Error::unavailable(text))
            }
            Err(_) => {
                let text = format!(
                    "the plugin of {resource} has not answered {method} within {limit:?}: if it hangs, restart it"
                );
                (Failure::Late, Error::deadline(text))
            }
        };
        self.record_failure(resource, failure, &error.report());
        Err(error)
    }
}

fn client(channel: Channel) -> DevicePluginClient<Channel> {
    DevicePluginClient::new(channel).max_decoding_message_size(ANSWER_MAX)
}
