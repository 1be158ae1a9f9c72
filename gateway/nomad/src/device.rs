//! Nomad's device plugin for the devices of the node, as seen by the gateway's owner Nomad.
//!
//! An agent receives the devices on one endless stream and assigns them to tasks itself. It may reserve a
//! slot that has become unhealthy since the task was placed: that is refused, naming the holder. A
//! reservation becomes a lease, whose token is passed in an environment variable to the start of the task,
//! which binds the lease. A slot of another owner is reported as unhealthy. Ids of earlier versions are never
//! reported, but a reservation under one gets the device of today.

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use futures::{Stream, stream};
use switchyard_core::device::Inventories;
use switchyard_core::gateway::{Leased, Scope};
use switchyard_core::id::{InvalidSlotId, SlotId};
use switchyard_core::{Error, Result};
use switchyard_proto::nomad::device as nomad;
use switchyard_proto::nomad::device::device_plugin_server::DevicePlugin;
use tonic::{Request, Response, Status};

use crate::status::{shutting_down, status};

mod to_proto;

/// Prefix of the variables that carry lease tokens to the start of a task. 8 digits of the token follow,
/// since the answers to several reservations of a task are merged.
pub(crate) const LEASE_VARIABLE: &str = "SWITCHYARD_LEASE_";

/// The attribute of a group with the number of its healthy slots; configured groups cannot have an attribute
/// of this name.
pub const HEALTHY_SLOTS: &str = "healthy_slots";

/// Limit for which the first answer waits for the first hardware scan. An agent waits for that answer when it
/// starts.
const FIRST_FINGERPRINT_WAIT: Duration = Duration::from_secs(2);

/// Limit for which a reservation waits for recovery and the first hardware scan. Agents have no timeout of
/// their own, and fail the allocation if its reservation fails.
const RESERVE_WAIT: Duration = Duration::from_secs(30);

/// Serves `hashicorp.nomad.plugins.device.DevicePlugin` for all sessions.
#[derive(Debug, Clone)]
pub(crate) struct DeviceService {
    scope: Scope,
}

type DeviceStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

// === impl DeviceService ===

impl DeviceService {
    /// The plugin for the devices as the owner of this scope sees them; its streams end when the gateway
    /// shuts down.
    pub(crate) const fn new(scope: Scope) -> Self {
        Self { scope }
    }

    /// Leases these devices as soon as possible: after recovery and the first hardware scan.
    async fn lease(&self, device_ids: &[String]) -> Result<Leased> {
        self.scope.recovered().await;
        if tokio::time::timeout(RESERVE_WAIT, self.scope.devices().scanned())
            .await
            .is_err()
        {
            return Err(Error::unavailable(
                "the devices of the node have not been scanned yet: try again",
            ));
        }
        let slots: Vec<SlotId> = device_ids
            .iter()
            .map(|id| id.parse())
            .collect::<Result<_, InvalidSlotId>>()?;
        self.scope.devices().lease(&slots).await
    }

    /// The devices: first as soon as they are known, but not later than a short time limit; then after each
    /// change. Ends only with the gateway.
    fn fingerprints(
        &self,
    ) -> impl Stream<Item = Result<nomad::FingerprintResponse, Status>> + Send + use<> {
        let ended = Box::pin(self.scope.ended());
        let start = (self.scope.devices().subscribe(), ended, None);
        stream::unfold(start, async |(mut inventories, mut ended, mut sent)| {
            if sent.is_none() {
                // Known or not: the present value is sent.
                wait_known(&mut inventories).await;
            }
            loop {
                let now = to_proto::fingerprint(inventories.borrow_and_update().as_deref());
                if sent.as_ref() != Some(&now) {
                    sent = Some(now.clone());
                    return Some((Ok(now), (inventories, ended, sent)));
                }
                tokio::select! {
                    changed = inventories.changed() => if changed.is_err() {
                        // The scanner has ended: the last value stays valid.
                        ended.await;
                        return None;
                    },
                    () = &mut ended => return None,
                }
            }
        })
    }

    /// The statistics of the devices, immediately and then at each `interval`.
    fn stats(
        &self,
        interval: Duration,
    ) -> impl Stream<Item = Result<nomad::StatsResponse, Status>> + Send + use<> {
        let ended = Box::pin(self.scope.ended());
        let start = (self.scope.devices().subscribe(), ended, (None, interval));
        stream::unfold(
            start,
            async |(mut inventories, mut ended, (pause, interval))| {
                let pass = async {
                    match pause {
                        Some(pause) => tokio::time::sleep(pause).await,
                        // Known or not: the present value is sent.
                        None => wait_known(&mut inventories).await,
                    }
                };
                tokio::select! {
                    () = pass => {}
                    () = &mut ended => return None,
                }
                let now = to_proto::stats(inventories.borrow().as_deref(), SystemTime::now());
                Some((Ok(now), (inventories, ended, (Some(interval), interval))))
            },
        )
    }
}

/// Waits until the devices are known, but not longer than a short time limit.
async fn wait_known(inventories: &mut Inventories) {
    let _ = tokio::time::timeout(
        FIRST_FINGERPRINT_WAIT,
        inventories.wait_for(Option::is_some),
    )
    .await;
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
