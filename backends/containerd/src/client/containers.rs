//! Calls about one container and its process.

use containerd_client::services::v1 as api;
use serde_json::Value;
use switchyard_core::{Error, ErrorKind, Result};

use super::process_state::{ProcessState, process_state_of};
use super::{Client, QUICK, call};

impl Client {
    /// Updates the fields `paths` of a container object.
    pub(crate) async fn update_container(
        &self,
        container: api::Container,
        paths: Vec<String>,
    ) -> Result<()> {
        let what = format!("update container {}", container.id);
        let request = api::UpdateContainerRequest {
            container: Some(container),
            update_mask: Some(prost_types::FieldMask { paths }),
        };
        call(&what, QUICK, self.containers().update(request))
            .await
            .map(drop)
    }

    /// The state of a container's process, as containerd reports it now.
    pub(crate) async fn process_state(&self, id: &str) -> Result<ProcessState> {
        let request = api::GetRequest {
            container_id: id.to_owned(),
            exec_id: String::new(),
        };
        match call(
            &format!("look up task {id}"),
            QUICK,
            self.task_queries().get(request),
        )
        .await
        {
            Ok(answer) => Ok(answer
                .process
                .as_ref()
                .map_or(ProcessState::None, process_state_of)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(ProcessState::None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether containerd has a container object of this id.
    pub(crate) async fn has_container(&self, id: &str) -> Result<bool> {
        let request = api::GetContainerRequest { id: id.to_owned() };
        match call(
            &format!("look up container {id}"),
            QUICK,
            self.containers().get(request),
        )
        .await
        {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The OCI spec that containerd holds for a container.
    pub(crate) async fn stored_spec(&self, id: &str) -> Result<Value> {
        let request = api::GetContainerRequest { id: id.to_owned() };
        let what = format!("look up container {id}");
        let container = call(&what, QUICK, self.containers().get(request))
            .await?
            .container
            .unwrap_or_default();
        let spec = container.spec.unwrap_or_default();
        serde_json::from_slice(&spec.value).map_err(|fault| {
            Error::internal(format!("the stored spec of {id} cannot be read")).with_source(fault)
        })
    }
}
