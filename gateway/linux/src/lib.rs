//! Idioms of Linux and of errors, in one place. It is below all other crates, and depends on none of them.
//!
//! [`mounts`] alone reads the kernel's list of mounts. [`process`] alone says which process an id stands for. [`node_limits`] alone
//! says how much of a limit of the node is in use, [`listeners`] alone which programs of the node listen, [`host_features`] alone what
//! the kernel offers to this process, [`packages`] alone how what is missing is installed, [`inherited`] alone what a process does
//! not take over from whoever starts it, [`cgroups`] alone which version of control groups there is, [`resolv_conf`] alone which DNS
//! servers of the node a container can ask, [`routes`] alone reads its routing tables, [`services`] alone knows what supervises services.

pub mod cgroups;
pub mod descriptor_bundle;
pub mod files;
mod group_leader;
pub mod host_features;
pub mod inherited;
pub mod kernel_wait;
mod limits;
pub mod listeners;
pub mod memory;
pub mod mounts;
pub mod node_limits;
pub mod packages;
pub mod process;
mod report;
pub mod resolv_conf;
pub mod routes;
pub mod services;
mod space;
mod text;
mod threads;

pub use group_leader::GroupLeader;
pub use limits::raise_open_files_limit;
pub use report::report;
pub use space::FileSystemSpace;
pub use text::beginning;
pub use threads::{WorkLost, blocking};
