//! The components of the gateway and how they are connected: each is given those below it.
//!
//! ```text
//! sandboxes ─► tasks ─► images
//!     │          │
//!     └──────────┴────► devices ─► claims
//! ```
//!
//! Sandboxes and tasks use the claims themselves too, and share the start limiter. Volumes and commands use no other
//! component. All share the context.

use std::sync::Arc;

use super::claims::Claims;
use super::context::Context;
use super::devices::DeviceLeases;
use super::exec::Commands;
use super::image::Images;
use super::limits::Limits;
use super::sandbox::{SandboxParts, Sandboxes};
use super::start_limiter::StartLimiter;
use super::task::{TaskParts, Tasks};
use super::volume::Volumes;
use crate::backend::Backend;
use crate::ledger::LeaseStore;
use crate::operation::Operations;

/// The components that requests are forwarded to.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) context: Arc<Context>,
    pub(super) claims: Arc<Claims>,
    pub(super) devices: Arc<DeviceLeases>,
    pub(super) images: Arc<Images>,
    pub(super) volumes: Arc<Volumes>,
    pub(super) commands: Commands,
    pub(super) tasks: Arc<Tasks>,
    pub(super) sandboxes: Arc<Sandboxes>,
}

impl Parts {
    /// The components of a gateway that has not recovered yet.
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        limits: Limits,
        leases: Arc<dyn LeaseStore>,
        registry: Operations,
    ) -> Self {
        let start_limiter = Arc::new(StartLimiter::new(limits.starts_per_owner));
        let context = Arc::new(Context::new(backend, limits, registry));
        let claims = Arc::new(Claims::new(Arc::clone(&context)));
        let devices = Arc::new(DeviceLeases::new(
            Arc::clone(&context),
            Arc::clone(&claims),
            leases,
        ));
        let images = Arc::new(Images::new(Arc::clone(&context)));
        let of_tasks = TaskParts {
            claims: Arc::clone(&claims),
            devices: Arc::clone(&devices),
            images: Arc::clone(&images),
            start_limiter: Arc::clone(&start_limiter),
        };
        let tasks = Arc::new(Tasks::new(Arc::clone(&context), of_tasks));
        let of_sandboxes = SandboxParts {
            claims: Arc::clone(&claims),
            devices: Arc::clone(&devices),
            tasks: Arc::clone(&tasks),
            start_limiter,
        };
        Self {
            volumes: Arc::new(Volumes::new(Arc::clone(&context))),
            commands: Commands::new(Arc::clone(&context)),
            sandboxes: Arc::new(Sandboxes::new(Arc::clone(&context), of_sandboxes)),
            context,
            claims,
            devices,
            images,
            tasks,
        }
    }
}
