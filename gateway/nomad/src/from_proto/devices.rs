//! Devices of a task: those of its config, and those that Nomad has assigned to it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use switchyard_core::id::{LeaseToken, TOKEN_LEN};
use switchyard_core::spec::{DeviceNode, LeaseClaim};
use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::{absolute, check_count, text};
use switchyard_proto::nomad::drivers::proto as nomad;

use super::request::TaskRequest;
use crate::device::LEASE_VARIABLE;

/// The variable with which Nomad's GPU plugin lists a task's GPUs.
const NVIDIA: &str = "NVIDIA_VISIBLE_DEVICES";

/// The devices of a task.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// By path.
    pub(super) nodes: Vec<DeviceNode>,
    /// For each of these, the field that it comes from.
    pub(super) node_fields: Vec<String>,
    /// By CDI name.
    pub(super) cdi: Vec<String>,
    /// For each of these, the field that it comes from.
    pub(super) cdi_fields: Vec<String>,
    /// The paths in the task, and the names, that there are.
    paths: HashSet<PathBuf>,
    names: HashSet<String>,
}

/// The devices that a task has.
pub(super) fn devices(request: &TaskRequest<'_>) -> Result<Devices> {
    let mut devices = Devices::default();
    if let Some(device) = request
        .options
        .devices
        .first()
        .filter(|_| !request.session.config.allow_devices)
    {
        let why = "jobs may name no devices of the host on this Nomad agent: allow_devices of the plugin's configuration is false";
        return Err(Error::invalid(&device.field, why));
    }
    for device in &request.options.devices {
        let field = &device.field;
        devices.check_count(field)?;
        if is_cdi(&device.host_path) {
            devices.name(&format!("{field}.host_path"), device.host_path.clone());
            continue;
        }
        let inside = Some(&device.container_path)
            .filter(|path| !path.is_empty())
            .unwrap_or(&device.host_path);
        let host = absolute(format_args!("{field}.host_path"), &device.host_path)?;
        let inside = container_path(&format!("{field}.container_path"), inside)?;
        let permissions = permissions(field, &device.cgroup_permissions)?;
        devices.add(
            format!("{field}.host_path"),
            DeviceNode {
                host_path: host,
                container_path: inside,
                permissions,
            },
        );
    }
    for (index, device) in request.task.devices.iter().enumerate() {
        let field = format!("task.devices[{index}]");
        devices.check_count(&field)?;
        let host = absolute(format_args!("{field}.host_path"), &device.host_path)?;
        let inside = container_path(&format!("{field}.task_path"), &device.task_path)?;
        let permissions = permissions(&field, &device.cgroup_permissions)?;
        devices.add(
            format!("{field}.host_path"),
            DeviceNode {
                host_path: host,
                container_path: inside,
                permissions,
            },
        );
    }
    let by_runtime =
        !request.session.config.nvidia_runtime.is_empty() || !request.options.runtime.is_empty();
    if let Some(gpus) = gpus(request).filter(|_| !by_runtime) {
        text("task.device_env", gpus)?;
        for gpu in gpus
            .split(',')
            .map(str::trim)
            .filter(|gpu| !matches!(*gpu, "" | "none" | "void"))
        {
            devices.check_count("task.device_env")?;
            // The gateway's own groups have complete CDI names in this variable.
            let name = if is_cdi(gpu) {
                gpu.to_owned()
            } else {
                format!("nvidia.com/gpu={gpu}")
            };
            devices.name("task.device_env", name);
        }
    }
    devices.keep_last();
    Ok(devices)
}

/// The leases that the device plugin has given to a task. Only variables from Nomad's device plugins count: a
/// variable of the same name that the job sets is the job's own.
pub(crate) fn leases(task: &nomad::TaskConfig) -> Result<Vec<LeaseClaim>> {
    let mut leases: Vec<LeaseClaim> = Vec::new();
    for (name, token) in &task.device_env {
        let Some(digits) = name.strip_prefix(LEASE_VARIABLE) else {
            continue;
        };
        let field = format!("task.device_env[{name:?}]");
        check_count(&field, "leases of devices", leases.len())?;
        let named = token
            .parse::<LeaseToken>()
            .ok()
            .filter(|_| token.starts_with(digits) && digits.len() == 8);
        let token = named.ok_or_else(|| {
            let why = format!(
                "it is no lease of devices: the value is not {TOKEN_LEN} lower-case hexadecimal digits that begin with those of the name"
            );
            Error::invalid(field, why)
        })?;
        leases.push(LeaseClaim::new(token));
    }
    Ok(leases)
}

/// Returns whether a variable of a task is a lease from the device plugin. The task itself does not need it.
pub(super) fn is_lease(task: &nomad::TaskConfig, name: &str) -> bool {
    name.starts_with(LEASE_VARIABLE) && task.device_env.contains_key(name)
}

/// The GPUs that Nomad has assigned to a task; `None` if there are none.
pub(super) fn gpus<'a>(request: &TaskRequest<'a>) -> Option<&'a String> {
    request.task.device_env.get(NVIDIA)
}

// === impl Devices ===

impl Devices {
    /// Adds a device. Of those with one path in the task, the last is used.
    fn add(&mut self, field: String, node: DeviceNode) {
        self.paths.insert(node.container_path.clone());
        self.nodes.push(node);
        self.node_fields.push(field);
    }

    fn name(&mut self, field: &str, name: String) {
        if self.names.insert(name.clone()) {
            self.cdi.push(name);
            self.cdi_fields.push(field.to_owned());
        }
    }

    /// Refuses another device if there are too many.
    fn check_count(&self, field: &str) -> Result<()> {
        check_count(field, "devices", self.paths.len() + self.names.len())
    }

    fn keep_last(&mut self) {
        let nodes = std::mem::take(&mut self.nodes);
        let fields = std::mem::take(&mut self.node_fields);
        let mut kept: Vec<(DeviceNode, String)> = nodes.into_iter().zip(fields).rev().collect();
        kept.retain(|(node, _)| self.paths.remove(&node.container_path));
        (self.nodes, self.node_fields) = kept.into_iter().rev().unzip();
    }
}

/// Returns whether a text is a CDI device name, `vendor/class=name`, and not a path.
fn is_cdi(text: &str) -> bool {
    !text.starts_with('/')
        && text
            .split_once('=')
            .is_some_and(|(kind, name)| kind.contains('/') && !name.is_empty())
}

/// A path inside the task.
fn container_path(field: &str, text: &str) -> Result<PathBuf> {
    let path = absolute(field, text)?;
    // The runtime would find an existing file there, and take it for the device.
    if path == Path::new("/") {
        return Err(Error::invalid(field, "no device can be at \"/\""));
    }
    Ok(path)
}

fn permissions(field: &str, text: &str) -> Result<String> {
    match text {
        "" => Ok("rwm".to_owned()),
        text if text.chars().all(|c| "rwm".contains(c)) => Ok(text.to_owned()),
        other => Err(Error::invalid(
            format_args!("{field}.cgroup_permissions"),
            format!("{other:?} is not made of r, w and m"),
        )),
    }
}
