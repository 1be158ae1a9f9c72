//! A CDI spec file: JSON or YAML. An unknown key makes it invalid, since a key that is ignored could be the one that
//! makes a device safe; values may be written in all ways that the reference implementation of CDI accepts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

use super::edits::Edits;
use super::scalars::{self, Text};
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
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Document {
    #[serde(deserialize_with = "scalars::text")]
    cdi_version: String,
    #[serde(deserialize_with = "scalars::text")]
    kind: String,
    #[serde(deserialize_with = "scalars::or_default")]
    annotations: BTreeMap<String, Text>,
    #[serde(deserialize_with = "scalars::or_default")]
    devices: Vec<Device>,
    #[serde(deserialize_with = "scalars::or_default")]
    container_edits: Edits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Device {
    #[serde(deserialize_with = "scalars::text")]
    name: String,
    #[serde(deserialize_with = "scalars::or_default")]
    annotations: BTreeMap<String, Text>,
    #[serde(deserialize_with = "scalars::or_default")]
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
        let text = decoded(bytes)?;
        let document = if is_yaml {
            serde_json::from_value(yaml::read(&text)?)
        } else {
            serde_json::from_str(&text).or_else(|fault| as_yaml(&text, fault))
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

/// The kind, `vendor/class`, that a file which cannot be parsed most probably is of: the first value of a key `kind`.
pub(super) fn likely_kind(bytes: &[u8]) -> Option<String> {
    let text = decoded(bytes).unwrap_or_else(|_| String::from_utf8_lossy(bytes));
    text.match_indices("kind").find_map(|(at, key)| {
        let is_whole = !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
        let quotes = ['"', '\''];
        let after = text[at + key.len()..].trim_start_matches(quotes);
        let value = after.trim_start().strip_prefix(':')?.trim_start();
        let value = value.trim_start_matches(quotes);
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
        let end = value.find(|c: char| !is_part(c)).unwrap_or(value.len());
        let kind = &value[..end];
        (is_whole && is_kind(kind)).then(|| kind.to_owned())
    })
}

/// The document of a file that is no JSON because of this fault: as in the reference implementation, a file whose name
/// says JSON may use what YAML allows besides, such as comments and octal numbers.
fn as_yaml(text: &str, fault: serde_json::Error) -> serde_json::Result<Document> {
    if fault.is_data() || text.trim_start().is_empty() {
        return Err(fault);
    }
    match yaml::read(text) {
        Ok(value) => serde_json::from_value(value),
        Err(_) => Err(fault),
    }
}

/// The text of a file: UTF-8, or UTF-16 if its byte order mark says so.
fn decoded(bytes: &[u8]) -> Result<Cow<'_, str>, String> {
    match bytes {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => utf8(rest),
        whole => utf8(whole),
    }
}

fn utf8(bytes: &[u8]) -> Result<Cow<'_, str>, String> {
    let text = std::str::from_utf8(bytes).map_err(|fault| fault.to_string())?;
    Ok(Cow::Borrowed(text))
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<Cow<'static, str>, String> {
    if !bytes.len().is_multiple_of(2) {
        return Err("it ends within a character of UTF-16".to_owned());
    }
    let units = bytes.chunks_exact(2).map(|pair| unit([pair[0], pair[1]]));
    let text: Result<String, _> = char::decode_utf16(units).collect();
    text.map(Cow::Owned).map_err(|fault| fault.to_string())
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
