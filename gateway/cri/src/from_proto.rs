//! Converts wire messages to the task model. Messages are destructured, so that every field is handled or
//! ignored explicitly.
//!
//! A malformed field is `InvalidArgument`, and one that this gateway does not support is `Unimplemented`,
//! both with the path of the field in wire spelling (`config.linux.resources.cpu_period`). What kubelets
//! always send is not an error. Fields for Windows are ignored, as by every runtime on Linux.

mod container;
mod field;
mod image;
mod mount;
mod parent;
mod quantity;
mod reserved;
mod resources;
mod sandbox;
mod security;
mod signal;
mod user_namespace;

pub(crate) use container::container;
pub(crate) use field::absolute;
pub(crate) use image::pull_request;
pub(crate) use parent::Parent;
pub(crate) use reserved::reserved;
pub(crate) use resources::{check as check_limits, update};
pub(crate) use sandbox::{ranges, sandbox, sandbox_name};

#[cfg(test)]
mod tests;
