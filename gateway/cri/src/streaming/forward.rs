//! The ports of a pod, for clients of port-forward.

use async_trait::async_trait;
use switchyard_core::gateway::Scope;
use switchyard_core::id::SandboxId;
use switchyard_core::stream::Dialled;
use switchyard_streaming::{Connection, Dial, Input, Refusal};

use super::{output, to_refusal};

/// The ports of one pod.
#[derive(Debug)]
pub(super) struct PodPorts {
    pub(super) scope: Scope,
    pub(super) sandbox: SandboxId,
}

#[async_trait]
impl Dial for PodPorts {
    async fn dial(&self, port: u16) -> Result<Connection, Refusal> {
        let dialled = self
            .scope
            .sandboxes()
            .dial(&self.sandbox.to_string(), port)
            .await;
        let Dialled {
            input,
            output: from,
        } = dialled.map_err(|error| to_refusal(&error))?;
        Ok(Connection {
            input: Input::new(input),
            output: output(from),
        })
    }
}
