//! CRI v1 and v1alpha2: the frontend for the kubelet, crictl, critest and older clients.
//!
//! ```text
//! cri::RunPodSandboxRequest ─from_proto─► SandboxSpec ─► Scope ─► Sandbox ─to_proto─► cri::PodSandboxStatus
//! cri::ContainerConfig      ─from_proto─► TaskSpec    ─►       ─► Task    ─to_proto─► cri::ContainerStatus
//! ```
//!
//! - Wire types are used only in the handlers, `from_proto` and `to_proto`; status codes are chosen in
//!   `status.rs` alone.
//! - The handlers in [`Runtime`] and [`Images`] decode, call the [`Scope`](switchyard_core::gateway::Scope)
//!   and encode. They make no decisions about states, and record neither metrics nor spans: a layer around
//!   the services does.
//! - What CRI requires to be echoed (metadata, labels, annotations, mounts, the image as the user wrote it)
//!   is the request itself, which the core stores as an opaque record. The core and the backend have no
//!   knowledge of Kubernetes.
//!
//! Creation is idempotent by name: a sandbox is `name_namespace_uid_attempt`, a container
//! `name_attempt_<sandbox id>`.
//!
//! `runtime.v1alpha2` is served by the same handlers: see [`v1alpha2`].
//!
//! The backend replaces the text `{id}` in CNI arguments and annotations of a sandbox by the sandbox's id,
//! which is unknown when the request is converted.

mod annotations;
mod batch;
mod config;
mod cpus;
mod deadline;
mod encoded;
mod filter;
mod from_proto;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod image;
mod names;
mod output;
mod record;
mod routed;
mod runtime;
mod runtime_service;
mod samples;
mod service;
mod status;
mod streaming;
mod to_proto;
pub mod v1alpha2;

pub use annotations::annotations;
pub use config::{Config, DEFAULT_RUNTIME_NAME, UnsetSeccomp, is_runtime_name};
pub use cpus::ExclusiveCpus;
pub use image::Images;
pub use names::{log_directory, names};
pub use record::check_request;
pub use routed::{MethodRouter, RoutedService};
pub use runtime::Runtime;
pub use service::{Services, services};
