//! Namespaces of a task: which are its own, which it joins, which stay the host's.

use std::path::Path;

use switchyard_core::spec::{CgroupNamespace, IdMap, PidMode};
use switchyard_core::{Error, Result};

use crate::input::{CgroupVersion, Input, Namespace, SandboxFacts};
use crate::oci::{LinuxIdMapping, LinuxNamespace};
use crate::text;

/// The namespaces of a task.
///
/// UTS, IPC and network are the sandbox's. By default a task gets a cgroup namespace of its own on cgroup v2
/// unless it is privileged, as in Kubernetes and Docker.
///
/// # Errors
/// `InvalidArgument`, naming `pid`, for a shared namespace that the sandbox does not have;
/// `FailedPrecondition` if the namespace of the target is not known.
pub fn of_task(input: &Input<'_>) -> Result<Vec<LinuxNamespace>> {
    let mut namespaces = Vec::with_capacity(7);
    users(&mut namespaces, input.sandbox)?;
    match input.task.pid {
        PidMode::Private => namespaces.push(new("pid")),
        PidMode::Host => {}
        PidMode::Sandbox => {
            let shared = input.sandbox.pid.as_ref().ok_or_else(|| {
                Error::invalid(
                    "pid",
                    "the sandbox has no process namespace to share; make it with a shared one",
                )
            })?;
            joined(&mut namespaces, "pid", shared)?;
        }
        PidMode::Target(target) => {
            let path = input.target_pid.ok_or_else(|| {
                Error::failed_precondition(format!(
                    "task {target} does not run: its process namespace cannot be joined"
                ))
            })?;
            namespaces.push(at("pid", path)?);
        }
    }
    joined(&mut namespaces, "ipc", &input.sandbox.ipc)?;
    joined(&mut namespaces, "uts", &input.sandbox.uts)?;
    namespaces.push(new("mount"));
    joined(&mut namespaces, "network", &input.sandbox.network)?;
    let own_cgroup = match input.task.cgroup_namespace {
        Some(CgroupNamespace::Private) => true,
        Some(CgroupNamespace::Host) => false,
        None => input.host.cgroup == CgroupVersion::V2 && !input.task.security.privileged,
    };
    if own_cgroup {
        namespaces.push(new("cgroup"));
    }
    Ok(namespaces)
}

/// Adds the user namespace of a sandbox, if it has one. Runtimes enter it before the others, which belong to
/// it.
pub(crate) fn users(list: &mut Vec<LinuxNamespace>, sandbox: &SandboxFacts) -> Result<()> {
    if let Some(users) = &sandbox.users {
        list.push(at("user", &users.path)?);
    }
    Ok(())
}

/// The maps of a sandbox's user namespace, of users and of groups; empty for the host's.
pub(crate) fn id_mappings(sandbox: &SandboxFacts) -> (Vec<LinuxIdMapping>, Vec<LinuxIdMapping>) {
    let wire = |map: &IdMap| {
        map.ranges()
            .iter()
            .map(|range| LinuxIdMapping {
                container_id: range.inside,
                host_id: range.host,
                size: range.length,
            })
            .collect()
    };
    sandbox
        .users
        .as_ref()
        .map(|users| (wire(&users.map.uids), wire(&users.map.gids)))
        .unwrap_or_default()
}

/// A new namespace.
pub(crate) const fn new(kind: &'static str) -> LinuxNamespace {
    LinuxNamespace { kind, path: None }
}

/// Adds `namespace`; for the host's own nothing is added.
pub(crate) fn joined(
    list: &mut Vec<LinuxNamespace>,
    kind: &'static str,
    namespace: &Namespace,
) -> Result<()> {
    match namespace {
        Namespace::Host => Ok(()),
        Namespace::Path(path) => {
            list.push(at(kind, path)?);
            Ok(())
        }
    }
}

fn at(kind: &'static str, path: &Path) -> Result<LinuxNamespace> {
    Ok(LinuxNamespace {
        kind,
        path: Some(text::absolute("sandbox namespace", path)?),
    })
}
