//! Checkpoints of containers.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use switchyard_core::spec::CheckpointSpec;
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1 as cri;

use super::Runtime;
use crate::to_proto;

/// The timeout of a checkpoint if the client sets none; a kubelet waits no longer either.
const LIMIT: Duration = Duration::from_secs(120);

impl Runtime {
    /// CRI v1 CheckpointContainer: creates an archive at `location`, which must not exist; the container
    /// continues to run. Kubelets understand `Unimplemented` as the answer of a runtime without support.
    pub(super) async fn checkpoint(
        &self,
        request: cri::CheckpointContainerRequest,
    ) -> Result<cri::CheckpointContainerResponse> {
        let cri::CheckpointContainerRequest {
            container_id,
            location,
            timeout,
        } = request;
        let task = self.scope.tasks().require_running(&container_id)?;
        let limit = match u64::try_from(timeout) {
            Ok(0) => LIMIT,
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => {
                let why = format!("{timeout} is negative; 0 is for {} s", LIMIT.as_secs());
                return Err(Error::invalid("timeout", why));
            }
        };
        if location.is_empty() {
            return Err(Error::invalid(
                "location",
                "the path of the archive is needed",
            ));
        }
        let inspection = self.scope.tasks().inspect(task.id).await?;
        let record = self.records.task(&task);
        let notes = to_proto::checkpoint_notes(
            &task,
            record.as_deref(),
            &inspection.runtime_type,
            SystemTime::now(),
        );
        let spec = CheckpointSpec {
            location: PathBuf::from(location),
            limit,
            notes,
        };
        self.scope.tasks().checkpoint(&container_id, spec).await?;
        Ok(cri::CheckpointContainerResponse {})
    }
}
