//! Converts and checks what plugins send. Pure. Plugins are other vendors' programs: every field is bounded
//! and validated before it is used.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use switchyard_core::device::{Device, Health, Reservation, resource};
use switchyard_core::id::SlotId;
use switchyard_core::spec::{DeviceNode, MissingSource, Mount, MountSource};
use switchyard_core::{Error, Result};
use switchyard_proto::kubelet::device_plugin::v1beta1;

use crate::directory::REGISTRY;
use crate::ids;

/// The version of the device plugin API that is spoken.
const VERSION: &str = "v1beta1";

/// The most devices of a resource.
pub(crate) const DEVICES_MAX: usize = 4096;

/// The longest id that a vendor may give a device, in bytes. Kubelets have no limit; the protocol says 63.
const ID_MAX: usize = 512;

/// The most environment variables, mounts, device nodes, annotations, and CDI device names in an answer, of
/// each.
const ENTRIES_MAX: usize = 256;

/// The permissions for a device node for which an answer has none.
const DEFAULT_PERMISSIONS: &str = "rw";

/// The longest path, in bytes; the kernel accepts no longer one.
const PATH_MAX: usize = 4095;

/// The longest name of an environment variable or of a CDI device, in bytes.
const NAME_MAX: usize = 256;

/// The most bytes of all environment variables of an answer: the kernel's limit for an exec is only a few
/// times this.
const ENV_MAX: usize = 128 << 10;

/// The most characters of a plugin's text that are quoted in a message.
const QUOTED_MAX: usize = 64;

/// Prefix of the annotation keys that name devices of the Container Device Interface (CDI).
const CDI_ANNOTATIONS: &str = "cdi.k8s.io/";

/// A plugin's health text for a healthy device.
const HEALTHY: &str = "Healthy";

/// A validated registration of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PluginRegistration {
    /// A resource name that kubelets accept.
    pub(crate) resource: String,
    /// The name of the plugin's socket: a file in the directory itself, and not kubelet.sock.
    pub(crate) endpoint: String,
}

/// The devices in a plugin's list.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ListedDevices {
    /// In ascending order of their ids.
    pub(crate) devices: Vec<Device>,
    /// The vendor's id of each device, by our id.
    pub(crate) vendors: BTreeMap<String, String>,
    /// Number of entries of the list that were left out, and the reason for the first of them.
    pub(crate) left_out: Option<(usize, String)>,
}

/// Validates a registration.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn registration(request: v1beta1::RegisterRequest) -> Result<PluginRegistration> {
    // The options are read from GetDevicePluginOptions when the plugin is called back, as kubelets do.
    let v1beta1::RegisterRequest {
        version,
        endpoint,
        resource_name,
        options: _,
    } = request;
    if version != VERSION {
        let why = format!("{} is not supported: {VERSION:?} is", quoted(&version));
        return Err(Error::invalid("version", why));
    }
    if let Err(why) = resource::check(&resource_name) {
        let why = format!(
            "{} is no resource that a device plugin can have: {why}",
            quoted(&resource_name)
        );
        return Err(Error::invalid("resource_name", why));
    }
    let mut parts = Path::new(&endpoint).components();
    let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(name)), None) if name == &*endpoint);
    if !plain || endpoint.contains('\0') || endpoint.len() > 255 || endpoint == REGISTRY {
        let why = format!(
            "{} is not the plain name of a socket of the plugin's own",
            quoted(&endpoint)
        );
        return Err(Error::invalid("endpoint", why));
    }
    Ok(PluginRegistration {
        resource: resource_name,
        endpoint,
    })
}

/// The devices of a list, each id once. A device that is listed twice is healthy only if both entries are.
pub(crate) fn listed(resource: &str, list: v1beta1::ListAndWatchResponse) -> ListedDevices {
    let mut devices: BTreeMap<String, (String, Device)> = BTreeMap::new();
    let mut wrong: Option<(usize, String)> = None;
    let mut leave_out = |why: String| {
        let (count, _) = wrong.get_or_insert((0, why));
        *count += 1;
    };
    for device in list.devices {
        let v1beta1::Device {
            id: vendors,
            health,
            topology,
        } = device;
        if vendors.is_empty() || vendors.len() > ID_MAX {
            leave_out(format!(
                "device {} has no id of 1 to {ID_MAX} bytes",
                quoted(&vendors)
            ));
            continue;
        }
        let id = ids::id(resource, &vendors);
        let health = if health == HEALTHY {
            Health::Healthy
        } else {
            Health::Unhealthy("the plugin of its vendor says so".to_owned())
        };
        let is_full = devices.len() >= DEVICES_MAX;
        match devices.get_mut(&id) {
            Some((known, device)) if *known == vendors => {
                if device.health == Health::Healthy {
                    device.health = health;
                }
                leave_out(format!("device {} is listed twice", quoted(&vendors)));
            }
            Some((known, _)) => {
                leave_out(format!(
                    "device {} has the id of {}",
                    quoted(&vendors),
                    quoted(known)
                ));
            }
            None if is_full => {
                leave_out(format!(
                    "device {} is beyond {DEVICES_MAX} devices",
                    quoted(&vendors)
                ));
            }
            None => {
                let nodes = topology.into_iter().flat_map(|topology| topology.nodes);
                let numa_node = nodes.filter_map(|node| u32::try_from(node.id).ok()).min();
                let device = Device {
                    health,
                    numa_node,
                    ..Device::without_nodes(id.clone())
                };
                devices.insert(id, (vendors, device));
            }
        }
    }
    let vendors = devices
        .iter()
        .map(|(id, (vendors, _))| (id.clone(), vendors.clone()))
        .collect();
    ListedDevices {
        vendors,
        devices: devices.into_values().map(|(_, device)| device).collect(),
        left_out: wrong,
    }
}

/// Converts an answer to Allocate for one container to what the container gets.
///
/// # Errors
/// `FailedPrecondition`, which names the invalid field.
pub(crate) fn allocated(answer: v1beta1::AllocateResponse) -> Result<Reservation> {
    let v1beta1::AllocateResponse {
        container_responses,
    } = answer;
    let [answer] = <[_; 1]>::try_from(container_responses).map_err(|all: Vec<_>| {
        fault(
            "container_responses",
            format!("{} answers to a question for one container", all.len()),
        )
    })?;
    let v1beta1::ContainerAllocateResponse {
        envs,
        mounts,
        devices,
        annotations,
        cdi_devices,
    } = answer;
    let counts = [
        ("envs", envs.len()),
        ("mounts", mounts.len()),
        ("devices", devices.len()),
        ("annotations", annotations.len()),
        ("cdi_devices", cdi_devices.len()),
    ];
    if let Some((field, count)) = counts.into_iter().find(|(_, count)| *count > ENTRIES_MAX) {
        return Err(fault(
            field,
            format!("{count} entries, but at most {ENTRIES_MAX}"),
        ));
    }
    let named = cdi_devices
        .into_iter()
        .map(|v1beta1::CdiDevice { name }| name);
    // Annotations other than those of CDI are for runtimes that are configured to pass them on; ours is not.
    let annotated = annotations
        .into_iter()
        .filter(|(key, _)| key.starts_with(CDI_ANNOTATIONS))
        .flat_map(|(_, names)| {
            names
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect::<Vec<_>>()
        });
    Ok(Reservation {
        env: env(envs)?,
        nodes: devices.into_iter().map(node).collect::<Result<_>>()?,
        mounts: mounts.into_iter().map(mount).collect::<Result<_>>()?,
        cdi: cdi(named.chain(annotated))?,
    })
}

/// Our ids of the devices that an answer to GetPreferredAllocation names; `None` if the answer does not match
/// the request.
pub(crate) fn preferred(
    answer: v1beta1::PreferredAllocationResponse,
    ours: &BTreeMap<&str, &SlotId>,
    must: &BTreeSet<SlotId>,
    size: usize,
) -> Option<Vec<SlotId>> {
    let v1beta1::PreferredAllocationResponse {
        container_responses,
    } = answer;
    let [answer] = <[_; 1]>::try_from(container_responses).ok()?;
    let v1beta1::ContainerPreferredAllocationResponse { device_i_ds } = answer;
    let chosen: Option<BTreeSet<SlotId>> = device_i_ds
        .iter()
        .map(|vendors| ours.get(vendors.as_str()).map(|id| (*id).clone()))
        .collect();
    let chosen = chosen.filter(|chosen| chosen.len() == size && chosen.is_superset(must))?;
    Some(chosen.into_iter().collect())
}

fn env(envs: BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
    let bytes: usize = envs
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    if bytes > ENV_MAX {
        return Err(fault(
            "envs",
            format!("{bytes} bytes, but at most {ENV_MAX}"),
        ));
    }
    for (name, value) in &envs {
        if name.is_empty()
            || name.len() > NAME_MAX
            || !name
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'=')
        {
            return Err(fault(
                "envs",
                format!("{} is not a variable's name", quoted(name)),
            ));
        }
        if value.contains('\0') {
            return Err(fault(
                "envs",
                format!("the value of {} has a NUL byte", quoted(name)),
            ));
        }
    }
    Ok(envs)
}

/// A device node. What a plugin leaves out of it is the same as for a group of ours: permissions to read and write, and
/// the path of the host.
fn node(node: v1beta1::DeviceSpec) -> Result<DeviceNode> {
    let v1beta1::DeviceSpec {
        container_path,
        host_path,
        permissions,
    } = node;
    let once = |c: char| permissions.matches(c).count() <= 1;
    if !permissions.chars().all(|c| "rwm".contains(c) && once(c)) {
        let why = format!(
            "{} of {} are not some of r, w and m",
            quoted(&permissions),
            quoted(&host_path)
        );
        return Err(fault("devices.permissions", why));
    }
    let or = |text: String, default: &str| {
        if text.is_empty() {
            default.to_owned()
        } else {
            text
        }
    };
    let container_path = or(container_path, &host_path);
    Ok(DeviceNode {
        host_path: absolute("devices.host_path", &host_path)?,
        container_path: inside("devices.container_path", &container_path)?,
        permissions: or(permissions, DEFAULT_PERMISSIONS),
    })
}

fn mount(mount: v1beta1::Mount) -> Result<Mount> {
    let v1beta1::Mount {
        container_path,
        host_path,
        read_only,
    } = mount;
    let path = absolute("mounts.host_path", &host_path)?;
    let destination = inside("mounts.container_path", &container_path)?;
    // The source must exist: a plugin names only paths that it has created or found.
    let source = MountSource::Host {
        path,
        missing: MissingSource::Fail,
    };
    Ok(Mount {
        readonly: read_only,
        ..Mount::new(destination, source)
    })
}

/// Valid CDI device names, without duplicates.
fn cdi(names: impl Iterator<Item = String>) -> Result<Vec<String>> {
    let mut known: Vec<String> = Vec::new();
    for name in names {
        let word = |text: &str| {
            !text.is_empty()
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
        };
        let parts = name
            .split_once('=')
            .and_then(|(kind, device)| Some((kind.split_once('/')?, device)));
        let whole = parts
            .is_some_and(|((vendor, class), device)| word(vendor) && word(class) && word(device));
        if !whole || name.len() > NAME_MAX {
            return Err(fault(
                "cdi_devices",
                format!("{} is no vendor/class=device", quoted(&name)),
            ));
        }
        if known.len() >= ENTRIES_MAX {
            return Err(fault(
                "cdi_devices",
                format!("more than {ENTRIES_MAX} devices"),
            ));
        }
        if !known.contains(&name) {
            known.push(name);
        }
    }
    Ok(known)
}

/// A path inside a container, other than its root.
fn inside(field: &str, text: &str) -> Result<PathBuf> {
    let path = absolute(field, text)?;
    if path == Path::new("/") {
        return Err(fault(field, "cannot mount over \"/\"".to_owned()));
    }
    Ok(path)
}

fn absolute(field: &str, text: &str) -> Result<PathBuf> {
    let path = Path::new(text);
    let plain = path.components().all(|part| part != Component::ParentDir);
    if !text.starts_with('/') || !plain || text.contains('\0') || text.len() > PATH_MAX {
        return Err(fault(
            field,
            format!("{} is not an absolute path without `..`", quoted(text)),
        ));
    }
    // Normalizes the path, e.g. without a slash at the end.
    Ok(path.components().collect())
}

fn fault(field: &str, why: String) -> Error {
    Error::failed_precondition(format!("{field}: {why}"))
}

/// An untrusted text, quoted for a message and truncated when long.
pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED_MAX) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests;
