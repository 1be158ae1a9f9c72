//! Builds the spec of a task.

use std::path::PathBuf;

use serde_json::Value;
use switchyard_core::spec::{OomScoreAdj, Resources, SeccompProfile, TaskSpec};
use switchyard_core::{Error, Result, SpecPart};

use crate::input::Input;
use crate::resolved::ResolvedSource;
use crate::{
    capabilities, cdi, devices, environment, labels, limits, mounts, namespaces, network, oci,
    resources, seccomp, text, throttles,
};

/// Paths of `/proc` and `/sys` that reveal information about the host; frontends whose protocol does not name
/// masked paths use these.
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

/// Paths of `/proc` that control the host; frontends whose protocol does not name read-only paths use these.
pub const DEFAULT_READONLY_PATHS: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// The capability to change interfaces and addresses.
const NET_ADMIN: &str = "CAP_NET_ADMIN";

/// The result of building a spec.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Built {
    /// The spec, `config.json`.
    pub spec: Value,
    /// The limits in the spec: the requested ones, as far as this node can set them.
    pub limits: Resources,
    /// Requests that this node does not support, left out or changed; for the log and the task's events.
    pub warnings: Vec<String>,
    /// The sources of mounts of CDI devices that are staged as the sources of the task's own mounts are.
    pub staged: Vec<ResolvedSource>,
}

/// Returns whether the task of a spec may change interfaces and addresses of its network namespace: whether a process of it can have the
/// capability NET_ADMIN.
#[must_use]
pub fn has_net_admin(spec: &Value) -> bool {
    let bounding = spec.pointer("/process/capabilities/bounding");
    let names = bounding.and_then(Value::as_array);
    names.is_some_and(|names| names.iter().any(|name| name == NET_ADMIN))
}

/// Returns whether the spec of a task depends on paths of the host that its client chose, or that lead to
/// such ones, so that [`Gathered::of_task`](crate::Gathered::of_task) may block for ever on one of their file
/// systems. Otherwise it reads the kernel's files alone.
#[must_use]
pub fn depends_on_host_paths(task: &TaskSpec) -> bool {
    let security = &task.security;
    security.privileged
        || matches!(security.seccomp, SeccompProfile::Localhost(_))
        || !task.devices.is_empty()
        || !task.cdi_devices.is_empty()
        || !task.throttles.is_empty()
        || task.io_weights.iter().any(|weight| weight.device.is_some())
}

/// The spec of a task.
///
/// Pure: what is on the host was found out before.
///
/// # Errors
/// `InvalidArgument` with the name of the field; `FailedPrecondition` and `Unimplemented` for what this node
/// or the sandbox cannot give.
pub fn build(input: &Input<'_>) -> Result<Built> {
    let mut warnings = Vec::new();
    let task = input.task;
    let security = &task.security;
    if security.privileged && !input.sandbox.privileged {
        return Err(Error::invalid(
            "security.privileged",
            "no privileged task is allowed in this sandbox",
        ));
    }
    let selinux = labels::selinux(security, input.sandbox.selinux.as_ref(), input.host)
        .map_err(|error| error.about(SpecPart::Selinux))?;
    let (process_label, mount_label) = selinux.map(|labels| (labels.process, labels.mount)).unzip();
    let limits = resources::granted(&task.resources, input.host, &mut warnings)?;
    let process = process(input, limits.oom_score_adj, process_label, &mut warnings)?;
    let made = mounts::of_task(input)?;
    let devices = devices::of_task(task, input.found)?;
    let mut resources = resources::linux_resources(&limits, input.host, &mut warnings)?;
    resources.devices = devices.rules;
    resources.block_io = throttles::block_io(task, input.host, input.found)?;
    resources.network = network::priorities(task, input.sandbox, input.host, input.found)?;
    check_user(input)?;
    let (uid_mappings, gid_mappings) = namespaces::id_mappings(input.sandbox);
    let linux = oci::Linux {
        resources,
        cgroups_path: input.cgroups_path.to_owned(),
        namespaces: namespaces::of_task(input)?,
        uid_mappings,
        gid_mappings,
        devices: devices.nodes,
        seccomp: seccomp::of_task(
            security,
            input.host,
            &process.capabilities,
            input.found,
            &mut warnings,
        )
        .map_err(|error| error.about(SpecPart::Seccomp))?,
        rootfs_propagation: made.rootfs_propagation,
        masked_paths: hidden(
            "security.masked_paths",
            &security.masked_paths,
            security.privileged,
        )?,
        readonly_paths: hidden(
            "security.readonly_paths",
            &security.readonly_paths,
            security.privileged,
        )?,
        mount_label,
        intel_rdt: None,
    };
    let mut spec = oci::Spec {
        oci_version: oci::VERSION,
        process,
        root: oci::Root {
            path: "rootfs".to_owned(),
            readonly: security.readonly_rootfs,
        },
        mounts: made.mounts,
        annotations: task.annotations.clone(),
        hooks: oci::Hooks::new(),
        linux,
    };
    // Applied last, as vendors expect.
    let staged = if task.cdi_devices.is_empty() {
        Vec::new()
    } else {
        apply_cdi(&mut spec, input)?
    };
    if input.sandbox.users.is_some() || input.host.in_user_namespace {
        devices::bind_renamed(&mut spec)?;
    }
    Ok(Built {
        spec: oci::to_value(&spec)?,
        limits,
        warnings,
        staged,
    })
}

/// Adds what the CDI specs of the task's devices ask for.
fn apply_cdi(spec: &mut oci::Spec, input: &Input<'_>) -> Result<Vec<ResolvedSource>> {
    let resolved = input.found.cdi_edits();
    let edits =
        resolved.ok_or_else(|| Error::internal("the CDI devices of the task were not resolved"))?;
    let oci::Spec {
        process,
        mounts,
        linux,
        hooks,
        ..
    } = spec;
    cdi::apply(
        edits,
        cdi::Target {
            stage: input.sandbox.users.as_ref().map(|_| input.stage),
            process,
            mounts,
            linux,
            hooks,
        },
        input.found,
    )
}

/// Refuses ids that the sandbox's user namespace does not have: the runtime's own error for that is hard to
/// understand.
fn check_user(input: &Input<'_>) -> Result<()> {
    let Some(users) = &input.sandbox.users else {
        return Ok(());
    };
    let absent = |what: &str, id: u32| {
        Error::invalid(
            "user",
            format!("the user namespace of the sandbox has no {what} {id}"),
        )
    };
    if users.map.uids.host(input.user.uid).is_none() {
        return Err(absent("user", input.user.uid));
    }
    let groups = std::iter::once(&input.user.gid).chain(&input.user.additional_gids);
    match groups
        .copied()
        .find(|gid| users.map.gids.host(*gid).is_none())
    {
        Some(gid) => Err(absent("group", gid)),
        None => Ok(()),
    }
}

fn process(
    input: &Input<'_>,
    oom_score_adj: Option<OomScoreAdj>,
    selinux_label: Option<String>,
    warnings: &mut Vec<String>,
) -> Result<oci::Process> {
    let task = input.task;
    let security = &task.security;
    let environment = environment::of_task(task, input.image, &input.sandbox.hostname, warnings)?;
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
        apparmor_profile: labels::apparmor(security, input.host)
            .map_err(|error| error.about(SpecPart::AppArmor))?,
        oom_score_adj: oom_score_adj.map(OomScoreAdj::get),
        selinux_label,
    })
}

/// Masked or read-only paths, exactly as given; none for a privileged task.
fn hidden(field: &str, paths: &[PathBuf], privileged: bool) -> Result<Vec<String>> {
    if privileged {
        return Ok(Vec::new());
    }
    paths
        .iter()
        .map(|path| text::absolute(field, path))
        .collect()
}
