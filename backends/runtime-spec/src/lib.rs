//! Turns a task of Switchyard's model into an OCI runtime spec, and into the processes and limits that follow
//! it.
//!
//! ```text
//! TaskSpec, ResolvedMounts, ImageConfig ─┐
//! SandboxFacts, Host, ResolvedUser ──────┴► build ──► Built { spec, limits, warnings }
//!                                             ▲
//!                  HostFs ──────► Gathered ───┘
//! ```
//!
//! - [`resolved::ResolvedMount`] is a mount of a task whose source the backend has found and may stage.
//! - [`HostFs`] is the only way to the file system of the host, which may block, for ever on a dead network file system;
//!   [`Gathered`] has its answers for one task, so that a build does no I/O.
//! - [`build::build`] makes the spec of a task, [`infra::build`] that of a sandbox's own process.
//! - [`process::exec_process`] makes a further process from the stored spec of a task.
//! - [`resources::linux_resources`] makes the limits; an update of a running task uses it too.
//! - [`relabel::of_task`] says which files of the host get an SELinux label for a task.
//! - [`cdi::list`] lists the devices that vendors' files describe.
//! - [`user::resolve`] looks the user up in the account files of the image, which are read without leaving
//!   its root file system.
//!
//! Every spec has the `ociVersion` 1.0.2: all runtimes from runc 1.0 and crun 1.0 on understand what it uses.
//! A request that can never work is refused with the name of its field; what the node does not support but
//! the task can run without is left out and named in the warnings.

pub mod build;
pub mod capabilities;
pub mod cdi;
pub mod cgroups_path;
pub mod devices;
pub mod environment;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod gathered;
pub mod host;
pub mod host_fs;
pub mod infra;
pub mod input;
pub mod labels;
pub mod limits;
pub mod mounts;
pub mod namespaces;
pub mod network;
pub mod oci;
pub mod process;
pub mod questions;
pub mod relabel;
pub mod resolved;
pub mod resources;
pub mod rootfs;
pub mod seccomp;
pub mod text;
pub mod throttles;
pub mod user;

pub use build::{
    Built, DEFAULT_MASKED_PATHS, DEFAULT_READONLY_PATHS, build, depends_on_host_paths,
    has_net_admin,
};
pub use gathered::Gathered;
pub use host::RealHost;
pub use host_fs::HostFs;
pub use input::{
    Arch, CgroupDriver, CgroupVersion, Host, ImageConfig, Input, Namespace, SandboxFacts,
    SandboxUsers,
};
pub use questions::Questions;
pub use resolved::{DEVICE_MOUNT, ImageVolume, ResolvedMount, ResolvedSource, Staging};
pub use user::ResolvedUser;
