//! Puts the spec of a task together.

use std::path::PathBuf;

use serde_json::Value;
use switchyard_core::{Error, Result};

use crate::input::Input;
use crate::{
    capabilities, devices, environment, labels, limits, mounts, namespaces, oci, resources, seccomp, text,
};

/// Paths of `/proc` and `/sys` that tell about the host, hidden by frontends whose protocol does not name any.
pub const DEFAULT_MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// Paths of `/proc` that steer the host, made read-only by frontends whose protocol does not name any.
pub const DEFAULT_READONLY_PATHS: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// A spec that was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Built {
    /// The spec, `config.json`.
    pub spec: Value,
    /// What was left out or changed because this node cannot do it; for the log and the task's events.
    pub warnings: Vec<String>,
    /// Paths of the host that must be given the spec's `linux.mountLabel` before the task starts.
    pub relabel: Vec<PathBuf>,
}

/// The spec of a task.
///
/// Pure but for what it asks of [`crate::HostFs`], which may block on the file system and makes missing sources of bind
/// mounts where the request says so.
///
/// # Errors
/// `InvalidArgument` with the name of the field; `FailedPrecondition` and `Unimplemented` for what this node or the
/// sandbox cannot give.
pub fn build(input: &Input<'_>) -> Result<Built> {
    let mut warnings = Vec::new();
    let task = input.task;
    let security = &task.security;
    if security.privileged && !input.sandbox.privileged {
        return Err(Error::invalid("security.privileged", "no privileged task is allowed in this sandbox"));
    }
    let selinux = labels::selinux(security, input.sandbox.selinux.as_ref(), input.host)?;
    let (process_label, mount_label) = selinux.map(|labels| (labels.process, labels.mount)).unzip();
    let process = process(input, process_label, &mut warnings)?;
    let made = mounts::of_task(input)?;
    let devices = devices::of_task(task, input.fs)?;
    let mut resources = resources::linux_resources(&task.resources, input.host, &mut warnings)?;
    resources.devices = devices.rules;
    let linux = oci::Linux {
        resources,
        cgroups_path: input.cgroups_path.to_owned(),
        namespaces: namespaces::of_task(input)?,
        devices: devices.nodes,
        seccomp: seccomp::of_task(security, input.host, &process.capabilities, input.fs, &mut warnings)?,
        rootfs_propagation: made.rootfs_propagation,
        masked_paths: hidden("security.masked_paths", &security.masked_paths, security.privileged)?,
        readonly_paths: hidden("security.readonly_paths", &security.readonly_paths, security.privileged)?,
        mount_label,
    };
    let spec = oci::Spec {
        oci_version: oci::VERSION,
        process,
        root: oci::Root { path: "rootfs".to_owned(), readonly: security.readonly_rootfs },
        mounts: made.mounts,
        annotations: task.annotations.clone(),
        linux,
    };
    Ok(Built { spec: to_value(&spec)?, warnings, relabel: made.relabel })
}

/// The JSON of a part of a spec.
///
/// # Errors
/// `Internal`; it would be a fault of ours.
pub(crate) fn to_value(part: &impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(part)
        .map_err(|error| Error::internal("the runtime spec cannot be written").with_source(error))
}

fn process(
    input: &Input<'_>,
    selinux_label: Option<String>,
    warnings: &mut Vec<String>,
) -> Result<oci::Process> {
    let task = input.task;
    let security = &task.security;
    let environment = environment::of_task(task, input.image, &input.sandbox.hostname, warnings)?;
    let oom_score_adj = task
        .resources
        .oom_score_adj
        .map(|asked| limits::oom_score_adj(asked, input.host, warnings))
        .transpose()?;
    Ok(oci::Process {
        terminal: task.stdio.tty,
        user: input.user.to_oci(),
        args: environment::command_line(task, input.image)?,
        env: environment.into_lines(),
        cwd: environment::working_directory(task.cwd.as_deref(), input.image)?,
        capabilities: capabilities::sets(
            &security.capabilities,
            security.privileged,
            &input.host.capabilities,
            warnings,
        ),
        rlimits: limits::rlimits(&task.rlimits, input.host, warnings)?,
        no_new_privileges: security.no_new_privileges,
        apparmor_profile: labels::apparmor(security, input.host)?,
        oom_score_adj,
        selinux_label,
    })
}

/// Masked or read-only paths, exactly as given; none for a privileged task.
fn hidden(field: &str, paths: &[PathBuf], privileged: bool) -> Result<Vec<String>> {
    if privileged {
        return Ok(Vec::new());
    }
    paths.iter().map(|path| text::absolute(field, path)).collect()
}
