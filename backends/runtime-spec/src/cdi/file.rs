//! A CDI spec file: JSON or YAML, parsed strictly, since a key that is ignored could be the one that makes a
//! device safe.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::edits::Edits;
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
    /// Returns whether a JSON file is of none of these kinds, much faster than parsing the whole file.
    pub(super) fn is_of_others(bytes: &[u8], is_yaml: bool, kinds: &[&str]) -> bool {
        !is_yaml
            && serde_json::from_slice::<Head>(bytes)
                .is_ok_and(|head| !kinds.contains(&head.kind.as_str()))
    }

    /// Parses the contents of a file. The error is a description of what is wrong with it.
    pub(super) fn parse(bytes: &[u8], is_yaml: bool) -> Result<Self, String> {
        let document = if is_yaml {
            serde_json::from_value(yaml::read(bytes)?)
        } else {
            serde_json::from_slice(bytes)
        };
        let document: Document = document.map_err(|fault| fault.to_string())?;
        document.check()?;
        let Document {
            cdi_version: _,
            kind,
            annotations: _,
            devices,
            container_edits,
        } = document;
        let mut by_name = BTreeMap::new();
        for Device {
            name,
            annotations: _,
            container_edits,
        } in devices
        {
            if by_name.insert(name.clone(), container_edits).is_some() {
                return Err(format!("device {name} is there twice"));
            }
        }
        Ok(Self {
            kind,
            devices: by_name,
            edits: container_edits,
        })
    }
}

impl Document {
    fn check(&self) -> Result<(), String> {
        let version = Version::parse(&self.cdi_version)
            .filter(|version| (OLDEST..=NEWEST).contains(version))
            .ok_or_else(|| format!("cdiVersion {:?} is not known", self.cdi_version))?;
        if !is_kind(&self.kind) {
            return Err(format!(
                "kind {:?} is not of the form vendor/class",
                self.kind
            ));
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
        let edits = self
            .devices
            .iter()
            .map(|device| &device.container_edits)
            .chain([&self.container_edits]);
        for edits in edits {
            edits.check()?;
        }
        let (needed, what) = self.needs();
        if version < needed {
            return Err(format!(
                "{what} needs a later cdiVersion than {}",
                self.cdi_version
            ));
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
        let dotted = self
            .kind
            .split_once('/')
            .is_some_and(|(_, class)| class.contains('.'));
        let digit = |device: &Device| device.name.starts_with(|c: char| c.is_ascii_digit());
        let uses = [
            (
                any(&|edits| !edits.net_devices.is_empty()),
                Version(1, 1, 0),
                "netDevices",
            ),
            (
                any(&|edits| {
                    edits
                        .intel_rdt
                        .as_ref()
                        .is_some_and(|rdt| rdt.schemata.is_some())
                }),
                Version(1, 1, 0),
                "intelRdt.schemata",
            ),
            (
                any(&|edits| edits.intel_rdt.is_some()),
                Version(0, 7, 0),
                "intelRdt",
            ),
            (
                any(&|edits| !edits.additional_gids.is_empty()),
                Version(0, 7, 0),
                "additionalGids",
            ),
            (
                !self.annotations.is_empty()
                    || self
                        .devices
                        .iter()
                        .any(|device| !device.annotations.is_empty()),
                Version(0, 6, 0),
                "annotations",
            ),
            (dotted, Version(0, 6, 0), "a class with a dot"),
            (
                any(&|edits| {
                    edits
                        .device_nodes
                        .iter()
                        .any(|node| node.host_path.is_some())
                }),
                Version(0, 5, 0),
                "hostPath of a device node",
            ),
            (
                self.devices.iter().any(digit),
                Version(0, 5, 0),
                "a device whose name begins with a digit",
            ),
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

// === impl Version ===

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text
            .strip_prefix('v')
            .unwrap_or(text)
            .splitn(3, '.')
            .map(|part| part.parse().ok());
        Some(Self(parts.next()??, parts.next()??, parts.next()??))
    }
}
