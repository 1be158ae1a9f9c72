//! The task of the same allocation whose network another one joins: `network_mode = "container:NAME"`.
//!
//! The plan only names it. Its namespace is known when the task is started.

use switchyard_core::{Error, Result};

use super::request::TaskRequest;

const PREFIX: &str = "container:";

/// Returns whether this `network_mode` is that of another task.
pub(super) fn is_network_of_sibling(mode: &str) -> bool {
    mode.starts_with(PREFIX)
}

/// The task whose network is joined: by its name in the job, or by the name that docker's driver gives its container,
/// `NAME-ALLOCATION`. `None` if the task does not ask for that of another.
///
/// # Errors
/// `InvalidArgument`, naming the key.
pub(super) fn sibling(request: &TaskRequest<'_>) -> Result<Option<String>> {
    let options = request.options;
    let Some(named) = options.network_mode.strip_prefix(PREFIX) else {
        return Ok(None);
    };
    let of_allocation = format!("-{}", request.task.alloc_id);
    let name = named.strip_suffix(&of_allocation).unwrap_or(named);
    let refused = |why: &str| {
        let mode = &options.network_mode;
        Err(Error::invalid("network_mode", format!("{mode:?} {why}")))
    };
    if name.is_empty() || name.contains('/') || name.chars().any(char::is_control) {
        return refused("names no task of the allocation");
    }
    if name == request.task.name {
        return refused("is the task itself");
    }
    if !options.ports.is_empty() {
        let why = format!("the network is that of task {name:?}: give the ports to that task");
        return Err(Error::invalid("ports", why));
    }
    Ok(Some(name.to_owned()))
}
