//! Nomad's device plugin over the devices of the node, as the gateway lends them to Nomad.
//!
//! An agent learns of devices by one stream that never ends, and gives them to tasks by itself. It may reserve a slot that has turned
//! unhealthy since the task was placed: that is refused with the holder. What it reserves is leased, and the token of the lease travels in a
//! variable to the start of the task, which binds it. A slot of another owner is unhealthy. Names of earlier versions are never told; who
//! reserves one gets the device of today.

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use futures::{Stream, stream};
use switchyard_core::device::Inventories;
use switchyard_core::gateway::{Leased, Scope};
use switchyard_core::{Error, Result};
use switchyard_proto::nomad::device as nomad;
use switchyard_proto::nomad::device::device_plugin_server::DevicePlugin;
use tonic::{Request, Response, Status};

use crate::status::{shutting_down, status};

mod to_proto;

/// How the names of the variables begin that bring the tokens of leases to the start of a task; 8 digits of the token follow, since the
/// answers to several reservations of a task are merged.
pub(crate) const LEASE_VARIABLE: &str = "SWITCHYARD_LEASE_";

/// The attribute of a group that says how many of its slots are healthy: the configuration's groups cannot have one of this name.
pub const HEALTHY_SLOTS: &str = "healthy_slots";

/// How long the first answer waits for the first look at the node. An agent waits for that answer when it starts.
const FIRST_FINGERPRINT_WAIT: Duration = Duration::from_secs(2);

/// How long a reservation waits for the first look at the node. Agents have no limit of their own, and give an allocation up whose
/// reservation fails.
const RESERVE_WAIT: Duration = Duration::from_secs(30);

/// Serves `hashicorp.nomad.plugins.device.DevicePlugin`, of all sessions.
#[derive(Debug, Clone)]
pub(crate) struct DeviceService {
    scope: Scope,
    inventories: Inventories,
}

type DeviceStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

// === impl DeviceService ===

impl DeviceService {
    /// The plugin for the devices as the owner of this scope sees them; its streams end with the gateway that the scope is of.
    pub(crate) fn new(scope: Scope) -> Self {
        let inventories = scope.devices();
        Self { scope, inventories }
    }

    /// Leases these devices, as soon as that can be: when what a predecessor left is recovered, and the node was looked at.
    async fn lease(&self, device_ids: &[String]) -> Result<Leased> {
        self.scope.recovered().await;
        let mut inventories = self.inventories.clone();
        let looked = tokio::time::timeout(RESERVE_WAIT, inventories.wait_for(Option::is_some)).await;
        if !looked.is_ok_and(|seen| seen.is_ok()) {
            return Err(Error::unavailable("the devices of the node are still being looked for: try again"));
        }
        self.scope.lease(device_ids).await
    }

    /// What there is, first as soon as that is known, at the latest after a moment; then when it is another. Ends with the gateway alone.
    fn fingerprints(&self) -> impl Stream<Item = Result<nomad::FingerprintResponse, Status>> + Send + use<> {
        let ended = Box::pin(self.scope.ended());
        let start = (self.inventories.clone(), ended, None);
        stream::unfold(start, async |(mut inventories, mut ended, mut said)| {
            if said.is_none() {
                // Whether it is known by then or not: the answer is what counts.
                let _ =
                    tokio::time::timeout(FIRST_FINGERPRINT_WAIT, inventories.wait_for(Option::is_some)).await;
            }
            loop {
                let now = to_proto::fingerprint(inventories.borrow_and_update().as_deref());
                if said.as_ref() != Some(&now) {
                    said = Some(now.clone());
                    return Some((Ok(now), (inventories, ended, said)));
                }
                tokio::select! {
                    changed = inventories.changed() => if changed.is_err() {
                        // Nobody looks any more: it stays as it is.
                        ended.await;
                        return None;
                    },
                    () = &mut ended => return None,
                }
            }
        })
    }

    /// How the devices are, at once and then each `interval`.
    fn stats(
        &self,
        interval: Duration,
    ) -> impl Stream<Item = Result<nomad::StatsResponse, Status>> + Send + use<> {
        let ended = Box::pin(self.scope.ended());
        let start = (self.inventories.clone(), ended, (Duration::ZERO, interval));
        stream::unfold(start, async |(inventories, mut ended, (pause, interval))| {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = &mut ended => return None,
            }
            let now = to_proto::stats(inventories.borrow().as_deref(), SystemTime::now());
            Some((Ok(now), (inventories, ended, (interval, interval))))
        })
    }
}

#[tonic::async_trait]
impl DevicePlugin for DeviceService {
    type FingerprintStream = DeviceStream<nomad::FingerprintResponse>;
    type StatsStream = DeviceStream<nomad::StatsResponse>;

    async fn fingerprint(
        &self,
        _: Request<nomad::FingerprintRequest>,
    ) -> Result<Response<Self::FingerprintStream>, Status> {
        Ok(Response::new(Box::pin(self.fingerprints())))
    }

    async fn reserve(
        &self,
        request: Request<nomad::ReserveRequest>,
    ) -> Result<Response<nomad::ReserveResponse>, Status> {
        let nomad::ReserveRequest { device_ids } = request.into_inner();
        tokio::select! {
            biased;
            leased = self.lease(&device_ids) => {
                let leased = leased.map_err(|error| status(&error))?;
                Ok(Response::new(to_proto::reserved(leased)))
            }
            () = self.scope.ended() => Err(shutting_down()),
        }
    }

    async fn stats(
        &self,
        request: Request<nomad::StatsRequest>,
    ) -> Result<Response<Self::StatsStream>, Status> {
        let interval = crate::times::interval(request.into_inner().collection_interval);
        Ok(Response::new(Box::pin(self.stats(interval))))
    }
}

#[cfg(test)]
mod tests;
