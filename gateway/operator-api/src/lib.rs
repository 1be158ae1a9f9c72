//! Answers of the daemon to the operator of the node: the types of its HTTP API, and the text of ages and
//! sizes.
//!
//! The daemon makes these types from its objects, and the command line, the status page and the doctor show them. The
//! API is served on the admin socket, `/statusz` on the admin address too; `docs/command-line.md` has the commands that call it.
//!
//! | request | type |
//! |---|---|
//! | `/statusz` | [`StatusReport`] |
//! | `/v1/objects`, `/v1/inspect`, `/v1/tasks/log` | [`Objects`], [`InspectionView`], [`TaskLogView`] |
//! | `/v1/containers` | [`ContainersView`] |
//! | `/v1/devices`, `/v1/volumes` | [`DevicesView`], [`VolumeView`]s |
//! | `/v1/images`, `/v1/images/unused`, `/v1/images/leases` | [`ImageView`]s, [`ImageView`]s, [`ImageLeaseView`]s |
//! | `DELETE /v1/images` | [`RemovedImageView`] |
//! | `/v1/swarm`, `DELETE /v1/swarm`, `POST /v1/swarm/join` | [`SwarmView`]; the body of the last is a [`SwarmJoin`] |
//! | `/v1/operations`, `/v1/debug`, `/v1/events`, `/v1/history` | [`OperationView`]s, [`DebugView`], [`EventPage`], [`HistoryPage`] |
//! | `POST /v1/config/reload`, `/v1/log/level` | [`ReloadReport`], [`LevelView`] |
//! | `POST /v1/exec` | the body is an [`ExecRequest`]; frames follow, see [`FrameKind`] |
//! | `POST /v1/page`, `POST /v1/restart/{part}` | [`PageLinkView`], [`RestartReport`] |
//!
//! # Compatibility
//! The daemon and a command may be of different versions. A field that was added later has a default, and a field that is
//! not known is ignored.

mod config;
mod containers;
mod debug;
mod devices;
mod dynamic;
mod events;
mod exec;
mod images;
mod inspection;
mod logs;
mod objects;
mod operations;
mod page;
mod plugins;
pub mod programs;
mod restart;
mod status;
mod swarm;
pub mod text;
mod version;
mod volumes;

pub use config::{
    Change, ConfigView, Effect, LevelView, Overridden, RefusedReloadView, ReloadReport,
};
pub use containers::{ContainersView, SandboxTrafficView, TaskUsageView};
pub use debug::{AsyncTasksView, DebugView, LockView};
pub use devices::{
    AmountView, ComputeView, DevicesView, ExclusiveView, GroupView, HeldView, HolderView, PortView,
    RefusalView, ReservedView, SlotView,
};
pub use dynamic::DynamicView;
pub use events::{EventPage, EventView, ExitView, HistoryPage, NODE_OWNER};
pub use exec::{
    EXEC_PATH, EXEC_PROTOCOL, ExecEnd, ExecRequest, FRAME_HEAD, FRAME_MAX, FrameHead, FrameKind,
    parse_size, write_size,
};
pub use images::{ImageLeaseView, ImageUserView, ImageView, RemovedImageView};
pub use inspection::{
    CommandView, Disclosure, ImageOfTaskView, Inspected, InspectionView, LeaseView, MountView,
    NetworkView, ReservationView, SecurityView, UserView, WithheldValues,
};
pub use logs::{LogView, TaskLogView};
pub use objects::{Objects, SandboxView, TaskView, UnreadableView};
pub use operations::{LayersView, OperationView, PullView, StepView};
pub use page::PageLinkView;
pub use plugins::{ErrorView, HostView, PluginView};
pub use restart::RestartReport;
pub use status::{
    AdvisoryView, CountView, FeatureView, LimitView, PartView, StatusReport, TroubleView,
    count_views,
};
pub use swarm::{DepartureView, JoinAvailability, SwarmJoin, SwarmView, WaitingServiceView};
pub use version::{REVISION, VERSION};
pub use volumes::VolumeView;
