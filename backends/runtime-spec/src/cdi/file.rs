//! A CDI spec file: JSON or YAML, parsed strictly, since a key that is ignored could be the one that makes a
//! device safe.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{is_device, is_kind, yaml};

/// The newest version of CDI that is supported.
const NEWEST: Version = Version(1, 1, 0);
/// The oldest version that is supported.
const OLDEST: Version = Version(0, 3, 0);
/// A version of CDI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

/// A valid file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SpecFile {
    /// `vendor/class`.
    pub(super) kind: String,
    /// The edits of each device, by its name.
    pub(super) devices: BTreeMap<String, Edits>,
    /// The edits for a container that has any of the devices.
    pub(super) edits: Edits,
}

/// The changes to a container's spec.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(crate) struct Edits {
    /// Variables, `NAME=value`.
    pub(crate) env: Vec<String>,
    /// Device nodes.
    pub(crate) device_nodes: Vec<CdiDeviceNode>,
    /// Network devices.
    pub(crate) net_devices: Vec<CdiNetDevice>,
    /// OCI hooks: programs of the host that are run at points of a container's lifecycle.
    pub(crate) hooks: Vec<CdiHook>,
    /// Mounts.
    pub(crate) mounts: Vec<CdiMount>,
    /// Intel RDT: classes of cache and memory bandwidth.
    pub(crate) intel_rdt: Option<CdiIntelRdt>,
    /// Groups of the process.
    pub(crate) additional_gids: Vec<u32>,
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct CdiDeviceNode {
    pub(crate) path: String,
    pub(crate) host_path: Option<String>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) major: Option<i64>,
    pub(crate) minor: Option<i64>,
    pub(crate) file_mode: Option<u32>,
    pub(crate) permissions: Option<String>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct CdiNetDevice {
    pub(crate) host_interface_name: String,
    pub(crate) name: String,
}

/// A program of the host.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct CdiHook {
    pub(crate) hook_name: String,
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) args: Vec<String>,
    #[serde(default)]
    pub(crate) env: Vec<String>,
    pub(crate) timeout: Option<i64>,
}

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct CdiMount {
    pub(crate) host_path: String,
    pub(crate) container_path: String,
    #[serde(default)]
    pub(crate) options: Vec<String>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
}

/// Intel RDT: classes of cache and memory bandwidth, with the keys of the runtime spec.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CdiIntelRdt {
    #[serde(rename = "closID", skip_serializing_if = "Option::is_none")]
    clos_id: Option<String>,
    #[serde(rename = "l3CacheSchema", skip_serializing_if = "Option::is_none")]
    l3_cache_schema: Option<String>,
    #[serde(rename = "memBwSchema", skip_serializing_if = "Option::is_none")]
    mem_bw_schema: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schemata: Option<Vec<String>>,
    #[serde(rename = "enableMonitoring", skip_serializing_if = "Option::is_none")]
    enable_monitoring: Option<bool>,
    #[serde(rename = "enableCMT", skip_serializing_if = "Option::is_none")]
    enable_cmt: Option<bool>,
    #[serde(rename = "enableMBM", skip_serializing_if = "Option::is_none")]
    enable_mbm: Option<bool>,
}

/// The document format.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Document {
    cdi_version: String,
    kind: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    devices: Vec<Device>,
    #[serde(default)]
    container_edits: Edits,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Device {
    name: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    container_edits: Edits,
}

/// The part of a file that is parsed before the whole.
#[derive(Debug, Deserialize)]
struct Head {
    kind: String,
}

// === impl SpecFile ===

impl SpecFile {
    /// Whether a JSON file is of none of these kinds. This is much faster than parsing the whole file.
    pub(super) fn is_of_others(bytes: &[u8], is_yaml: bool, kinds: &[&str]) -> bool {
        !is_yaml
            && serde_json::from_slice::<Head>(bytes).is_ok_and(|head| !kinds.contains(&head.kind.as_str()))
    }

    /// Parses the contents of a file. The error is a description of what is wrong with it.
    pub(super) fn parse(bytes: &[u8], is_yaml: bool) -> Result<Self, String> {
        let document =
            if is_yaml { serde_json::from_value(yaml::read(bytes)?) } else { serde_json::from_slice(bytes) };
        let document: Document = document.map_err(|fault| fault.to_string())?;
        document.check()?;
        let Document { cdi_version: _, kind, annotations: _, devices, container_edits } = document;
        let mut by_name = BTreeMap::new();
        for Device { name, annotations: _, container_edits } in devices {
            if by_name.insert(name.clone(), container_edits).is_some() {
                return Err(format!("device {name} is there twice"));
            }
        }
        Ok(Self { kind, devices: by_name, edits: container_edits })
    }
}

impl Document {
    fn check(&self) -> Result<(), String> {
        let version = Version::parse(&self.cdi_version)
            .filter(|version| (OLDEST..=NEWEST).contains(version))
            .ok_or_else(|| format!("cdiVersion {:?} is not known", self.cdi_version))?;
        if !is_kind(&self.kind) {
            return Err(format!("kind {:?} is not of the form vendor/class", self.kind));
        }
        if self.devices.is_empty() {
            return Err("it has no devices".to_owned());
        }
        for device in &self.devices {
            if !is_device(&device.name) {
                return Err(format!("{:?} cannot name a device", device.name));
            }
            if device.container_edits == Edits::default() {
                return Err(format!("device {} has empty containerEdits", device.name));
            }
        }
        let edits = self.devices.iter().map(|device| &device.container_edits).chain([&self.container_edits]);
        for edits in edits {
            edits.check()?;
        }
        let (needed, what) = self.needs();
        if version < needed {
            return Err(format!("{what} needs a later cdiVersion than {}", self.cdi_version));
        }
        Ok(())
    }

    /// The lowest version that has all features that the file uses, and the feature that needs it.
    fn needs(&self) -> (Version, &'static str) {
        let all: Vec<&Edits> = self
            .devices
            .iter()
            .map(|device| &device.container_edits)
            .chain([&self.container_edits])
            .collect();
        let any = |uses: &dyn Fn(&Edits) -> bool| all.iter().any(|edits| uses(edits));
        let dotted = self.kind.split_once('/').is_some_and(|(_, class)| class.contains('.'));
        let digit = |device: &Device| device.name.starts_with(|c: char| c.is_ascii_digit());
        let uses = [
            (any(&|edits| !edits.net_devices.is_empty()), Version(1, 1, 0), "netDevices"),
            (
                any(&|edits| edits.intel_rdt.as_ref().is_some_and(|rdt| rdt.schemata.is_some())),
                Version(1, 1, 0),
                "intelRdt.schemata",
            ),
            (any(&|edits| edits.intel_rdt.is_some()), Version(0, 7, 0), "intelRdt"),
            (any(&|edits| !edits.additional_gids.is_empty()), Version(0, 7, 0), "additionalGids"),
            (
                !self.annotations.is_empty()
                    || self.devices.iter().any(|device| !device.annotations.is_empty()),
                Version(0, 6, 0),
                "annotations",
            ),
            (dotted, Version(0, 6, 0), "a class with a dot"),
            (
                any(&|edits| edits.device_nodes.iter().any(|node| node.host_path.is_some())),
                Version(0, 5, 0),
                "hostPath of a device node",
            ),
            (self.devices.iter().any(digit), Version(0, 5, 0), "a device whose name begins with a digit"),
            (
                any(&|edits| edits.mounts.iter().any(|mount| mount.kind.is_some())),
                Version(0, 4, 0),
                "type of a mount",
            ),
        ];
        let used = uses.into_iter().find(|(used, ..)| *used);
        used.map_or((OLDEST, ""), |(_, version, what)| (version, what))
    }
}

// === impl Edits ===

impl Edits {
    /// Appends others to these. The last of several RDT classes applies.
    pub(super) fn append(&mut self, others: &Self) {
        let Self { env, device_nodes, net_devices, hooks, mounts, intel_rdt, additional_gids } =
            others.clone();
        self.env.extend(env);
        self.device_nodes.extend(device_nodes);
        self.net_devices.extend(net_devices);
        self.hooks.extend(hooks);
        self.mounts.extend(mounts);
        self.intel_rdt = intel_rdt.or_else(|| self.intel_rdt.take());
        self.additional_gids.extend(additional_gids);
    }

    fn check(&self) -> Result<(), String> {
        const HOOKS: [&str; 6] =
            ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];
        if let Some(line) =
            self.env.iter().find(|line| line.split_once('=').is_none_or(|(name, _)| name.is_empty()))
        {
            return Err(format!("env {line:?} is not NAME=value"));
        }
        for node in &self.device_nodes {
            let host = node.host_path.as_deref().unwrap_or("/");
            let kind = node.kind.as_deref().unwrap_or("c");
            let permissions = node.permissions.as_deref().unwrap_or("rwm");
            let known = permissions == "none" || permissions.chars().all(|c| "rwm".contains(c));
            if !node.path.starts_with('/') || !host.starts_with('/') {
                return Err(format!("device node {:?} is not an absolute path", node.path));
            }
            if !["b", "c", "u", "p"].contains(&kind) || !known {
                return Err(format!("device node {} has a type or permissions that are none", node.path));
            }
        }
        for hook in &self.hooks {
            if !HOOKS.contains(&hook.hook_name.as_str()) || !hook.path.starts_with('/') {
                return Err(format!("hook {:?} of {:?} is none", hook.hook_name, hook.path));
            }
        }
        let relative =
            |mount: &&CdiMount| !mount.container_path.starts_with('/') || mount.host_path.is_empty();
        match self.mounts.iter().find(relative) {
            Some(mount) => Err(format!("mount at {:?} has no absolute path", mount.container_path)),
            None => Ok(()),
        }
    }
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix('v').unwrap_or(text).splitn(3, '.').map(|part| part.parse().ok());
        Some(Self(parts.next()??, parts.next()??, parts.next()??))
    }
}
