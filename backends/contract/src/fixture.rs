//! The functions that a backend's tests provide for the facts.

use std::sync::Arc;

use async_trait::async_trait;
use switchyard_core::backend::Backend;
use switchyard_core::id::Owner;
use switchyard_core::spec::{SandboxSpec, TaskSpec};

use crate::specs;

/// A path at which no image has an executable.
pub const MISSING_EXECUTABLE: &str = "/no/such/executable";

/// A backend under test, and the system that it works on. Dropping it removes that system, also after a
/// failure.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// The backend; every call returns the same one until [`Fixture::reopen`].
    fn backend(&self) -> Arc<dyn Backend>;

    /// A busybox-like image that can be pulled without credentials, by tag.
    fn image(&self) -> String;

    /// The spec of a sandbox.
    fn sandbox_spec(&self, name: &str) -> SandboxSpec {
        specs::sandbox(Owner::Host, name)
    }

    /// The spec of a task with this command line, without input and output.
    fn task_spec(&self, name: &str, command: &[&str]) -> TaskSpec {
        specs::task(Owner::Host, name, &self.image(), command)
    }

    /// A new backend on the same system, as after `kill -9` of the daemon that had the old one.
    async fn reopen(&self) -> Arc<dyn Backend>;

    /// Descriptions of all objects, apart from images and the backend's internal state; empty once everything
    /// is removed.
    async fn remaining_objects(&self) -> Vec<String>;
}
