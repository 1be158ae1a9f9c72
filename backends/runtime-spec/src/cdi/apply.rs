//! Applies the edits of CDI devices to a runtime spec, after everything else.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use indexmap::IndexMap;
use switchyard_core::{Error, Result};

use super::edits::{CdiDeviceNode, CdiHook, CdiMount, Edits};
use crate::host_fs::{DeviceInfo, HostFs, HostNode};
use crate::resolved::{DEVICE_MOUNT, ResolvedSource, Staging};
use crate::{oci, text};

/// The mode of a device node if the file gives none.
const DEFAULT_MODE: u32 = 0o666;

/// The parts of a spec that edits change.
#[derive(Debug)]
pub(crate) struct Target<'s> {
    /// The directory for mounts with mapped ids, if the container has a user namespace.
    pub(crate) stage: Option<&'s Path>,
    pub(crate) process: &'s mut oci::Process,
    pub(crate) mounts: &'s mut Vec<oci::Mount>,
    pub(crate) linux: &'s mut oci::Linux,
    pub(crate) hooks: &'s mut oci::Hooks,
}

/// Applies edits to a spec. Mounts are sorted by the depth of their destination afterwards, so that none
/// hides another. Returns the mounts that have to be staged before the runtime creates the container.
///
/// # Errors
/// `InvalidArgument`, naming `cdi_devices`, for a device node that does not exist, or is of another type than its file says.
pub(crate) fn apply(
    edits: &Edits,
    target: Target<'_>,
    fs: &dyn HostFs,
) -> Result<Vec<ResolvedSource>> {
    // Devices with network devices are refused earlier.
    let Edits {
        env,
        device_nodes,
        net_devices: _,
        hooks,
        mounts,
        intel_rdt,
        additional_gids,
    } = edits;
    let Target {
        stage,
        process,
        mounts: made,
        linux,
        hooks: all_hooks,
    } = target;
    put_variables(&mut process.env, env);
    let own = std::mem::take(&mut linux.devices);
    let mut nodes: IndexMap<String, oci::LinuxDevice> = own
        .into_iter()
        .map(|device| (device.path.clone(), device))
        .collect();
    for node in device_nodes {
        let device = put_node(node, &process.user, linux, fs)?;
        // A later one is the last.
        nodes.shift_remove(&device.path);
        nodes.insert(device.path.clone(), device);
    }
    linux.devices = nodes.into_values().collect();
    let staged = put_mounts(made, mounts, stage);
    for hook in hooks {
        all_hooks
            .entry(hook.hook_name.clone())
            .or_default()
            .push(to_hook(hook));
    }
    if let Some(rdt) = intel_rdt {
        linux.intel_rdt = Some(oci::to_value(rdt)?);
    }
    let gids = &mut process.user.additional_gids;
    let mut known: HashSet<u32> = gids.iter().copied().collect();
    // As the reference implementation of CDI, which ignores group 0.
    gids.extend(
        additional_gids
            .iter()
            .filter(|gid| **gid != 0 && known.insert(**gid)),
    );
    Ok(staged)
}

/// Adds mounts to those that are made. With a directory for mounts with mapped ids, all that are bind mounts have their
/// sources there; returns these sources.
fn put_mounts(
    made: &mut Vec<oci::Mount>,
    mounts: &[CdiMount],
    stage: Option<&Path>,
) -> Vec<ResolvedSource> {
    if mounts.is_empty() {
        return Vec::new();
    }
    // Of those at one place, the last.
    let mut taken: HashSet<String> = HashSet::with_capacity(mounts.len());
    let mut put: Vec<oci::Mount> = mounts.iter().rev().map(to_mount).collect();
    put.retain(|mount| taken.insert(mount.destination.clone()));
    put.reverse();
    let staged = stage.map_or_else(Vec::new, |stage| staged(&mut put, stage));
    made.retain(|other| !taken.contains(&other.destination));
    made.extend(put);
    made.sort_by_key(|mount| text::depth(&mount.destination));
    staged
}

/// Moves the sources of bind mounts to the directory for mounts with mapped ids, and returns them.
fn staged(mounts: &mut [oci::Mount], stage: &Path) -> Vec<ResolvedSource> {
    let mut staged = Vec::new();
    let binds = mounts.iter_mut().filter(|mount| is_bind(&mount.options));
    for (number, mount) in binds.enumerate() {
        let name = format!("{DEVICE_MOUNT}{number}");
        let path = stage.join(&name);
        let source = std::mem::replace(&mut mount.source, path.display().to_string());
        // The staged mount has them mapped already.
        mount
            .options
            .retain(|option| option != "idmap" && option != "ridmap");
        staged.push(ResolvedSource {
            path,
            staging: Staging::IdMapped {
                name,
                path: source.into(),
            },
        });
    }
    staged
}

fn is_bind(options: &[String]) -> bool {
    options
        .iter()
        .any(|option| option == "bind" || option == "rbind")
}

/// Sets variables: each in place of the first of its name.
fn put_variables(env: &mut Vec<String>, lines: &[String]) {
    let name = |line: &str| line.split('=').next().unwrap_or_default().to_owned();
    if lines.is_empty() {
        return;
    }
    let mut places = HashMap::with_capacity(env.len());
    for (place, line) in env.iter().enumerate() {
        places.entry(name(line)).or_insert(place);
    }
    for line in lines {
        match places.entry(name(line)) {
            Entry::Occupied(known) => line.clone_into(&mut env[*known.get()]),
            Entry::Vacant(free) => {
                free.insert(env.len());
                env.push(line.clone());
            }
        }
    }
}

/// The device nodes of the host whose numbers or modes are looked up.
pub(crate) fn host_nodes(edits: &Edits) -> impl Iterator<Item = &str> {
    edits
        .device_nodes
        .iter()
        .filter(|node| !is_declared(node) || node.file_mode.is_none())
        .map(host_node)
}

/// Returns whether the file says by itself which device a node is: it has its type and number, or a type that has no
/// number.
fn is_declared(node: &CdiDeviceNode) -> bool {
    node.kind
        .as_deref()
        .is_some_and(|kind| kind == "p" || node.major.is_some())
}

fn host_node(node: &CdiDeviceNode) -> &str {
    node.host_path.as_deref().unwrap_or(&node.path)
}

/// The device of a node, whose rule is added. As in the reference implementation, a node that the file declares in full
/// need not exist on the host; if it does, and the file gives no mode, it has the mode that it has there.
fn put_node(
    node: &CdiDeviceNode,
    user: &oci::User,
    linux: &mut oci::Linux,
    fs: &dyn HostFs,
) -> Result<oci::LinuxDevice> {
    let CdiDeviceNode {
        path,
        host_path: _,
        kind,
        major,
        minor,
        file_mode,
        permissions,
        uid,
        gid,
    } = node;
    let on_host = stat_device(host_node(node), fs);
    let (kind, (major, minor), mode) = match kind {
        Some(kind) if is_declared(node) => {
            let number = (major.unwrap_or(0), minor.unwrap_or(0));
            (kind.as_str(), number, on_host.ok().map(|info| info.mode))
        }
        kind => {
            let info = on_host?;
            let found = (i64::from(info.major), i64::from(info.minor));
            let number = major.map_or(found, |major| (major, minor.unwrap_or(0)));
            (
                checked_kind(node, kind.as_deref(), &info)?,
                number,
                Some(info.mode),
            )
        }
    };
    let id = |declared: Option<u32>, of_process: u32| declared.unwrap_or(of_process);
    let device = oci::LinuxDevice {
        path: path.clone(),
        host_path: host_node(node).to_owned(),
        kind: kind.to_owned(),
        major,
        minor,
        file_mode: file_mode
            .or(mode)
            .map_or(DEFAULT_MODE, |mode| mode & 0o7777),
        uid: id(*uid, user.uid),
        gid: id(*gid, user.gid),
    };
    let access = permissions.as_deref().unwrap_or("rwm");
    if device.kind != "p" && access != "none" {
        linux.resources.devices.push(oci::DeviceRule {
            allow: true,
            kind: Some(if device.kind == "b" { "b" } else { "c" }.to_owned()),
            major: Some(device.major),
            minor: Some(device.minor),
            access: access.to_owned(),
        });
    }
    Ok(device)
}

/// The type of the device on the host, which must be the one in the file if that has one.
fn checked_kind(
    node: &CdiDeviceNode,
    declared: Option<&str>,
    info: &DeviceInfo,
) -> Result<&'static str> {
    let found = if info.block { "b" } else { "c" };
    match declared {
        // The word for a character device without a buffer, which all are.
        Some("u") if !info.block => Ok(found),
        Some(declared) if declared != found => Err(Error::invalid(
            "cdi_devices",
            format!(
                "device node {} has type {declared} in its CDI file, and {} is of type {found}",
                node.path,
                host_node(node)
            ),
        )),
        Some(_) | None => Ok(found),
    }
}

fn stat_device(path: &str, fs: &dyn HostFs) -> Result<DeviceInfo> {
    let refused = |why: &str| Error::invalid("cdi_devices", format!("device node {path} {why}"));
    match fs
        .node(Path::new(path))
        .map_err(|fault| refused("cannot be used").with_source(fault))?
    {
        HostNode::Device(info) => Ok(info),
        HostNode::Directory(_) | HostNode::Other => Err(refused("is no device")),
    }
}

fn to_mount(mount: &CdiMount) -> oci::Mount {
    let CdiMount {
        host_path,
        container_path,
        options,
        kind,
    } = mount;
    let mut options = options.clone();
    let kind = kind.clone().unwrap_or_else(|| "bind".to_owned());
    if kind == "bind" && !is_bind(&options) {
        options.insert(0, "rbind".to_owned());
    }
    oci::Mount {
        destination: container_path.clone(),
        kind,
        source: host_path.clone(),
        options,
    }
}

fn to_hook(hook: &CdiHook) -> oci::Hook {
    let CdiHook {
        hook_name: _,
        path,
        args,
        env,
        timeout,
    } = hook;
    oci::Hook {
        path: path.clone(),
        args: args.clone(),
        env: env.clone(),
        timeout: *timeout,
    }
}
