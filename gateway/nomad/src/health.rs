//! gRPC's standard health service on the socket of the launchers: whether the server answers at all. The daemon
//! asks it about itself.

use std::pin::Pin;

use futures::{Stream, StreamExt, stream};
use switchyard_core::Error;
use switchyard_proto::grpc::health::v1::health_check_response::ServingStatus;
use switchyard_proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse, health_server};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::status::status;

/// Serves as long as it is asked; it needs neither recovery nor the backend.
#[derive(Debug)]
pub(crate) struct HealthService {
    stop: CancellationToken,
}

// === impl HealthService ===

impl HealthService {
    /// A service whose watches end with `stop`.
    pub(crate) const fn new(stop: CancellationToken) -> Self {
        Self { stop }
    }
}

#[async_trait::async_trait]
impl health_server::Health for HealthService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        serving(&request.into_inner())
            .map(Response::new)
            .map_err(|error| status(&error))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let now = serving(&request.into_inner()).map_err(|error| status(&error))?;
        // It never changes: the stream ends with the daemon.
        let end = self.stop.clone().cancelled_owned();
        let open = stream::once(async move { Ok(now) })
            .chain(stream::pending())
            .take_until(end);
        Ok(Response::new(Box::pin(open)))
    }
}

fn serving(request: &HealthCheckRequest) -> switchyard_core::Result<HealthCheckResponse> {
    if request.service.is_empty() {
        return Ok(HealthCheckResponse {
            status: ServingStatus::Serving.into(),
        });
    }
    Err(Error::not_found(format!(
        "there is no service {:?} here",
        request.service
    )))
}
