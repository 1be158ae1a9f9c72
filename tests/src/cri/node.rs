//! Calls that concern the node as a whole.

use switchyard_proto::cri::v1 as cri;
use tonic::Status;

use super::Cri;

impl Cri {
    /// The part of the verbose status of the node that has this name.
    ///
    /// # Panics
    /// When there is no status, or no such part of it.
    #[track_caller]
    #[must_use]
    pub fn node_info(&self, part: &str) -> String {
        let request = cri::StatusRequest { verbose: true };
        let mut status = self
            .runtime(async |mut client| client.status(request).await)
            .expect("the daemon has a status");
        status
            .info
            .remove(part)
            .expect("it is a part of a verbose status")
    }

    /// UpdateRuntimeConfig with the ranges of pods' addresses.
    ///
    /// # Errors
    /// What the daemon says.
    pub fn set_pod_cidr(&self, pod_cidr: &str) -> Result<(), Status> {
        let network_config = Some(cri::NetworkConfig {
            pod_cidr: pod_cidr.to_owned(),
        });
        let request = cri::UpdateRuntimeConfigRequest {
            runtime_config: Some(cri::RuntimeConfig { network_config }),
        };
        self.runtime(async |mut client| client.update_runtime_config(request).await)
            .map(drop)
    }

    /// The condition of the node that `Status` gives under this name.
    ///
    /// # Errors
    /// The status of the call.
    ///
    /// # Panics
    /// When the node has no such condition.
    pub fn condition(&self, name: &str) -> Result<cri::RuntimeCondition, Status> {
        let answer = self.runtime(async |mut client| {
            client.status(cri::StatusRequest { verbose: false }).await
        })?;
        let conditions = answer.status.unwrap_or_default().conditions;
        let found = conditions
            .into_iter()
            .find(|condition| condition.r#type == name);
        Ok(found.unwrap_or_else(|| panic!("the node has no condition {name}")))
    }
}
