//! Nomad's device plugin over the devices of the node.
//!
//! An agent learns of devices by one stream that never ends, and gives them to tasks by itself: what is answered here is the same each
//! time, and nothing is kept. Which task has which device is known from the tasks.

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use futures::{Stream, stream};
use switchyard_core::Error;
use switchyard_core::device::Inventories;
use switchyard_core::gateway::Scope;
use switchyard_proto::nomad::device as nomad;
use switchyard_proto::nomad::device::device_plugin_server::DevicePlugin;
use tonic::{Request, Response, Status};

use crate::status::status;

mod to_proto;

/// How long the first answer waits for the first look at the node. An agent waits for that answer when it starts.
const FIRST: Duration = Duration::from_secs(2);

/// Serves `hashicorp.nomad.plugins.device.DevicePlugin`, of all sessions.
#[derive(Debug, Clone)]
pub(crate) struct DeviceService {
    scope: Scope,
    inventories: Inventories,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

// === impl DeviceService ===

impl DeviceService {
    /// The plugin for these devices; its streams end with the gateway that the scope is of.
    pub(crate) fn new(scope: Scope, inventories: Inventories) -> Self {
        Self { scope, inventories }
    }

    /// What there is, first as soon as that is known, at the latest after a moment; then when it is another. Ends with the gateway alone.
    fn fingerprints(&self) -> impl Stream<Item = Result<nomad::FingerprintResponse, Status>> + Send + use<> {
        let ended = Box::pin(self.scope.ended());
        let start = (self.inventories.clone(), ended, None);
        stream::unfold(start, async |(mut inventories, mut ended, mut said)| {
            if said.is_none() {
                // Whether it is known by then or not: the answer is what counts.
                let _ = tokio::time::timeout(FIRST, inventories.wait_for(Option::is_some)).await;
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
    type FingerprintStream = Answers<nomad::FingerprintResponse>;
    type StatsStream = Answers<nomad::StatsResponse>;

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
        let known = self.inventories.borrow().clone();
        let known = known.ok_or_else(|| Error::unavailable("the devices of the node are being looked for"));
        let given =
            known.and_then(|inventory| inventory.reserve(&device_ids)).map_err(|error| status(&error))?;
        Ok(Response::new(to_proto::reserved(given)))
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
