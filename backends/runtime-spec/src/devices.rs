//! Device nodes of a task, and the rules of the device controller that go with them.

use std::path::Path;

use indexmap::IndexMap;
use switchyard_core::spec::{DeviceNode, TaskSpec};
use switchyard_core::{Error, Result, SpecPart};

use crate::host_fs::{DeviceInfo, HostFs, HostNode};
use crate::oci::{DeviceRule, LinuxDevice, Mount, Spec};
use crate::text;

/// Device nodes and rules of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Devices {
    /// The device nodes to create.
    pub nodes: Vec<LinuxDevice>,
    /// Rules, in order.
    pub rules: Vec<DeviceRule>,
}

/// Character devices that every task may use: null, zero, full, random, urandom, tty, console, ptmx, and all
/// of pts. The runtime makes their nodes itself.
const DEFAULT_RULES: [(i64, Option<i64>); 9] = [
    (1, Some(3)),
    (1, Some(5)),
    (1, Some(7)),
    (1, Some(8)),
    (1, Some(9)),
    (5, Some(0)),
    (5, Some(1)),
    (5, Some(2)),
    (136, None),
];

/// The rules of a task that has only the default devices.
#[must_use]
pub fn default_rules() -> Vec<DeviceRule> {
    let all = DeviceRule {
        allow: false,
        kind: None,
        major: None,
        minor: None,
        access: "rwm".to_owned(),
    };
    let default = DEFAULT_RULES.iter().map(|(major, minor)| DeviceRule {
        allow: true,
        kind: Some("c".to_owned()),
        major: Some(*major),
        minor: *minor,
        access: "rwm".to_owned(),
    });
    std::iter::once(all).chain(default).collect()
}

/// Devices of a task. A privileged one gets all devices of the host and may use any.
///
/// # Errors
/// `InvalidArgument`, naming `devices`, for invalid permissions, or a host path that does not exist or is not
/// a device.
pub fn of_task(task: &TaskSpec, fs: &dyn HostFs) -> Result<Devices> {
    let mut nodes = Nodes::new();
    let mut rules = default_rules();
    if task.security.privileged {
        let all = fs.all_devices().map_err(|error| {
            Error::internal("the devices of the host cannot be listed").with_source(error)
        })?;
        for (path, info) in all {
            // A name that JSON cannot express is left out: no client could request the device through this
            // API either.
            if let Some(path) = path.to_str() {
                nodes.insert(path.to_owned(), node(path, path.to_owned(), &info));
            }
        }
        rules = vec![DeviceRule {
            allow: true,
            kind: None,
            major: None,
            minor: None,
            access: "rwm".to_owned(),
        }];
    }
    for (index, asked) in task.devices.iter().enumerate() {
        add(&mut nodes, &mut rules, asked, fs)
            .map_err(|error| error.about(SpecPart::Device(index)))?;
    }
    Ok(Devices {
        nodes: nodes.into_values().collect(),
        rules,
    })
}

/// The nodes by their paths: a later one replaces an earlier one in its place.
type Nodes = IndexMap<String, LinuxDevice>;

fn add(
    nodes: &mut Nodes,
    rules: &mut Vec<DeviceRule>,
    asked: &DeviceNode,
    fs: &dyn HostFs,
) -> Result<()> {
    let DeviceNode {
        host_path,
        container_path,
        permissions,
    } = asked;
    let access = checked_permissions(permissions)?;
    let host = text::absolute("devices", host_path)?;
    let inside = text::absolute("devices", container_path)?;
    let found = fs.node(Path::new(&host)).map_err(|error| {
        Error::invalid("devices", format!("{host} cannot be used")).with_source(error)
    })?;
    let found = match found {
        HostNode::Device(info) => vec![(host, inside, info)],
        HostNode::Directory(members) => {
            let mut list = Vec::with_capacity(members.len());
            for (path, info) in members {
                let below = path.strip_prefix(&host).unwrap_or(&path);
                list.push((
                    text::absolute("devices", &path)?,
                    text::absolute("devices", &Path::new(&inside).join(below))?,
                    info,
                ));
            }
            list
        }
        HostNode::Other => {
            return Err(Error::invalid(
                "devices",
                format!("{host} is neither a device nor a directory"),
            ));
        }
    };
    for (host, path, info) in found {
        let node = node(&host, path, &info);
        rules.push(DeviceRule {
            allow: true,
            kind: Some(node.kind.clone()),
            major: Some(node.major),
            minor: Some(node.minor),
            access: access.clone(),
        });
        nodes.insert(node.path.clone(), node);
    }
    Ok(())
}

/// Paths at which a runtime itself makes something after all mounts, which would hide a device there or fail.
const OF_RUNTIME: [&str; 7] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
];

/// The same for the terminal of a task that has one.
const CONSOLE: &str = "/dev/console";

/// Moves the nodes that have another path on the host to the mounts. In a user namespace, of the sandbox or of the node, nobody may make
/// nodes: a runtime binds what is at the path inside on the host, which is nothing there, or another device. As a runtime, this
/// leaves owner and mode as the host has them: those that a CDI file declares for such a node are lost.
///
/// Below a mounted `/dev` a runtime makes no nodes, and a mount there would leave a file in the source: nothing is moved.
///
/// # Errors
/// `InvalidArgument`, naming `devices`, for another device at one of [`OF_RUNTIME`], or at [`CONSOLE`] of a task with a terminal.
pub(crate) fn bind_renamed(spec: &mut Spec) -> Result<()> {
    let has_terminal = spec.process.terminal;
    let devices = &mut spec.linux.devices;
    let mounts = &mut spec.mounts;
    let is_dev = |mount: &Mount| mount.destination == "/dev" && mount.kind == "bind";
    if mounts.iter().any(is_dev) {
        return Ok(());
    }
    let all = std::mem::take(devices).into_iter();
    let (renamed, same): (Vec<_>, Vec<_>) = all.partition(|device| device.path != device.host_path);
    *devices = same;
    for device in renamed {
        let path = device.path.as_str();
        if OF_RUNTIME.contains(&path) || has_terminal && path == CONSOLE {
            let why = format!(
                "{} cannot be {} in a user namespace, where the runtime puts another device there: choose another path in the container",
                device.host_path, device.path
            );
            return Err(Error::invalid("devices", why));
        }
        mounts.push(Mount {
            destination: device.path,
            kind: "bind".to_owned(),
            source: device.host_path,
            options: vec!["bind".to_owned()],
        });
    }
    Ok(())
}

fn node(host_path: &str, path: String, info: &DeviceInfo) -> LinuxDevice {
    LinuxDevice {
        path,
        host_path: host_path.to_owned(),
        kind: if info.block { "b" } else { "c" }.to_owned(),
        major: i64::from(info.major),
        minor: i64::from(info.minor),
        file_mode: info.mode & 0o7777,
        uid: info.uid,
        gid: info.gid,
    }
}

/// Any of `r`, `w` and `m`, each at most once; none at all is all of them.
fn checked_permissions(permissions: &str) -> Result<String> {
    let known = permissions.chars().all(|c| matches!(c, 'r' | 'w' | 'm'));
    if !known
        || ['r', 'w', 'm']
            .iter()
            .any(|c| permissions.matches(*c).count() > 1)
    {
        return Err(Error::invalid(
            "devices",
            format!("{permissions:?} are no permissions: any of r, w, m"),
        ));
    }
    Ok(if permissions.is_empty() {
        "rwm".to_owned()
    } else {
        permissions.to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_permissions_are_any_of_rwm() {
        assert_eq!(checked_permissions("mr").unwrap(), "mr");
        assert_eq!(checked_permissions("").unwrap(), "rwm");
        for bad in ["x", "rr", "rwmx", " r"] {
            assert!(checked_permissions(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn everything_is_denied_before_anything_is_allowed() {
        let rules = default_rules();
        assert!(!rules[0].allow && rules[0].kind.is_none() && rules[0].access == "rwm");
        assert!(rules[1..].iter().all(|rule| rule.allow));
    }
}
