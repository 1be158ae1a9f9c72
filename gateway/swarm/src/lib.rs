//! Makes this node a worker of a Docker swarm, by SwarmKit's API for agents.
//!
//! ```text
//!  join ───────────── CA, NodeCA ──► a manager    the first certificate, by a join token
//!    └─► store: roots, certificate, key, managers
//! node ── actor: joins, leaves, and runs the agent
//! agent ┬ sessions ─── Dispatcher ──► one of the managers ─► assignments ─► Executor ─► Reports
//!       └ renewals ─── NodeCA ──────► one of the managers
//!
//! TaskExecutor ─► Worker, one for each task ─► plan ─► TaskPlan ─► Scope: image, sandbox, task
//!                   ├ life: what comes next             └ record, in the container object
//!                   └ health: checks of what runs
//! ```
//!
//! - A *cluster* is a swarm, and has an id; a *node* is a member, whose id is in its certificate. Managers are
//!   recognised by the roots of the cluster, never by their address.
//! - A task of a service is a sandbox with one task in it, both named by the id of the Swarm task. The container
//!   object is its record: there is no database of tasks.

mod agent;
mod certificates;
mod connection;
mod dependencies;
mod error;
mod executor;
mod from_image;
mod from_proto;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod health;
mod identity;
mod image_retention;
mod issuance;
mod join;
mod key;
mod life;
mod log_broker;
mod log_rotation;
mod managers;
mod membership;
mod names;
mod node;
mod offer;
mod plan;
mod random;
mod record;
mod renewal;
mod report;
#[cfg(test)]
mod sample_tasks;
#[cfg(test)]
mod scripted;
mod secrets;
mod session;
mod status;
mod store;
mod task_context;
mod task_executor;
mod task_logs;
mod template;
#[cfg(any(test, feature = "test-util"))]
pub mod test_util;
#[cfg(test)]
mod testing;
mod to_proto;
mod token;
mod waiting;
mod worker;

pub use agent::Agent;
pub use certificates::{
    Issuer, NodeChain, NodeSubject, PEM_MAX, RootBundle, Unverified, ValidityPeriod,
};
pub use connection::check_address;
pub use error::{BoxedError, Error};
pub use executor::{Executor, MakeExecutor, MemberName, TaskLog};
pub use identity::Identity;
pub use join::{JOIN_MANAGERS_MAX, JoinRequest, join, resume_join};
pub use key::NodeKey;
pub use managers::{Managers, Peer};
pub use names::names;
pub use node::{JoinByFile, NodeActor, NodeParts, NodePhase, NodeStatus, SwarmNode};
pub use offer::{DeviceCheck, DeviceKinds, default_kind};
pub use plan::{
    AllowedDevices, AssignedDevice, HealthCheck, HealthCommand, LogRotation, PlanContext,
    PublishedPort, ServiceImage, TaskFile, TaskPlan,
};
pub use record::check_request;
pub use renewal::{due, pause};
pub use report::AgentReport;
pub use session::assignments::{Assignments, Change, Changes, ITEMS_MAX, Unapplicable};
pub use session::description::{NodeFacts, engine_labels};
pub use session::reports::Reports;
pub use status::{RATE_LIMIT_PERIOD, REFUSED_PAUSE, Reaction, reaction, reaction_to};
pub use store::{Departure, DepartureCause, PendingJoin, Store};
pub use task_context::TaskExecutorSettings;
pub use task_executor::TaskExecutor;
pub use token::{JoinToken, RootDigest};
pub use waiting::{WaitingService, WaitingServices};
