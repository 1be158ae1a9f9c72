//! Configuration: the device groups of the node.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use glob::Pattern;
use serde::Deserialize;
use switchyard_core::device::{SlotPlacement, quota, resource};
use switchyard_core::id::Owner;
use switchyard_core::{Error, Result};
use switchyard_runtime_spec::cdi::is_kind;

mod check;
mod path;
mod selector;

pub use path::{Entry, PathMatch};
pub use selector::{PciMatch, UsbMatch};

use check::{is_absolute, is_permissions, is_variable};

/// The most tasks that may share one device.
pub const SHARES_MAX: u16 = 1000;

/// `[[devices.groups]]`: devices that are interchangeable.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The vendor.
    pub vendor: String,
    /// The type, such as `gpu`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The model.
    #[serde(default = "default_name")]
    pub name: String,
    /// The resource name for pods, such as `acme.com/tpu`; empty if the group is not offered to kubelets.
    #[serde(default)]
    pub resource: String,
    /// The kind under which a swarm is offered the devices, such as `NVIDIA-GPU`; empty for the resource, or else the
    /// full name.
    #[serde(default)]
    pub swarm_kind: String,
    /// Device nodes by their paths.
    #[serde(default)]
    pub paths: Vec<Entry>,
    /// USB devices, each with all of its nodes.
    #[serde(default)]
    pub usb: Vec<UsbMatch>,
    /// PCI devices, each with all of its nodes.
    #[serde(default)]
    pub pci: Vec<PciMatch>,
    /// CDI kinds, such as `nvidia.com/gpu`: all devices of these kinds in vendors' CDI spec files.
    #[serde(default)]
    pub cdi: Vec<String>,
    /// Number of tasks that may share one device.
    #[serde(default = "default_shares")]
    pub shares: u16,
    /// Maximum number of slots for each owner; an owner that is not named may hold all.
    #[serde(default)]
    pub quota: BTreeMap<String, usize>,
    /// The slots that kubelets should prefer.
    #[serde(default)]
    pub placement: Placement,
    /// The access of a task to the nodes: any of `r`, `w`, `m`.
    #[serde(default = "default_permissions")]
    pub permissions: String,
    /// Further nodes for a task with any of the devices.
    #[serde(default)]
    pub shared: Vec<PathBuf>,
    /// Mounts for a task with any of the devices.
    #[serde(default)]
    pub mounts: Vec<GroupMount>,
    /// The environment variable with the comma-separated paths of the task's devices; empty for none.
    #[serde(default)]
    pub env: String,
    /// Further environment variables for a task with any of the devices.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Attributes that jobs can use in constraints, such as `memory = "16 GiB"`.
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
}

/// The slots that kubelets should prefer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Slots of devices that are in use already.
    #[default]
    Packed,
    /// Slots of the devices with the fewest slots in use.
    Spread,
}

/// A mount for a task with a device.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupMount {
    /// The source; it must exist when the task is created.
    pub host_path: PathBuf,
    /// The destination; empty for the same path.
    #[serde(default)]
    pub container_path: PathBuf,
    /// True if the mount is read-only.
    #[serde(default)]
    pub read_only: bool,
}

fn default_name() -> String {
    "default".to_owned()
}

fn default_permissions() -> String {
    "rw".to_owned()
}

fn default_shares() -> u16 {
    1
}

// === impl Group ===

impl Group {
    /// Checks the values of all groups together.
    ///
    /// # Errors
    /// `InvalidArgument`, which names the key.
    pub fn check(groups: &[Self]) -> Result<()> {
        let mut names = BTreeSet::new();
        let mut resources = BTreeSet::new();
        let mut kinds = BTreeSet::new();
        for group in groups {
            group.check_one()?;
            if !names.insert(group.full_name()) {
                return Err(Error::invalid(
                    "name",
                    format!("two groups are {}", group.full_name()),
                ));
            }
            if !group.resource.is_empty() && !resources.insert(&group.resource) {
                return Err(Error::invalid(
                    "resource",
                    format!("two groups are {}", group.resource),
                ));
            }
            if let Some(kind) = group.cdi.iter().find(|kind| !kinds.insert(*kind)) {
                return Err(Error::invalid("cdi", format!("{kind} is named twice")));
            }
        }
        Ok(())
    }

    /// `vendor/type/name`, by which Nomad jobs request it.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}/{}", self.vendor, self.kind, self.name)
    }

    /// The quotas: how many slots each owner may hold at most.
    pub(crate) fn quotas(&self) -> BTreeMap<Owner, usize> {
        // A quota that cannot be parsed was refused with the configuration.
        quota::parse(&self.quota).unwrap_or_default()
    }

    fn check_one(&self) -> Result<()> {
        for (key, text) in [
            ("vendor", &self.vendor),
            ("type", &self.kind),
            ("name", &self.name),
        ] {
            if text.is_empty()
                || text
                    .chars()
                    .any(|c| c == '/' || c.is_whitespace() || c.is_control())
            {
                return Err(Error::invalid(
                    key,
                    format!("{text:?} is no word without a slash"),
                ));
            }
        }
        if self.paths.is_empty()
            && self.usb.is_empty()
            && self.pci.is_empty()
            && self.cdi.is_empty()
        {
            return Err(Error::invalid(
                "paths",
                "there is none, and neither usb nor pci nor cdi says more",
            ));
        }
        self.check_selectors()?;
        self.check_sharing()?;
        self.check_given()
    }

    fn check_selectors(&self) -> Result<()> {
        for entry in &self.paths {
            entry.check()?;
        }
        for wanted in &self.usb {
            wanted.check()?;
        }
        for wanted in &self.pci {
            wanted.check()?;
        }
        match self.cdi.iter().find(|kind| !is_kind(kind)) {
            Some(kind) => Err(Error::invalid(
                "cdi",
                format!("{kind:?} is not of the form vendor/class"),
            )),
            None => Ok(()),
        }
    }

    fn check_sharing(&self) -> Result<()> {
        if !self.resource.is_empty() {
            resource::check(&self.resource).map_err(|why| {
                Error::invalid(
                    "resource",
                    format!("{:?} is no resource of kubelets: {why}", self.resource),
                )
            })?;
        }
        if !self.swarm_kind.is_empty() {
            resource::check_plain_kind(&self.swarm_kind).map_err(|why| {
                Error::invalid("swarm_kind", format!("{:?}: {why}", self.swarm_kind))
            })?;
        }
        if !(1..=SHARES_MAX).contains(&self.shares) {
            return Err(Error::invalid(
                "shares",
                format!("{} is not within 1 to {SHARES_MAX}", self.shares),
            ));
        }
        quota::parse(&self.quota).map(drop)
    }

    /// Checks what a task gets in addition to the devices.
    fn check_given(&self) -> Result<()> {
        if let Some(path) = self.shared.iter().find(|path| !is_absolute(path)) {
            return Err(Error::invalid(
                "shared",
                not_absolute(&path.display().to_string()),
            ));
        }
        let mut places = BTreeSet::new();
        for mount in &self.mounts {
            for path in [&mount.host_path, mount.destination()] {
                if !is_absolute(path) {
                    return Err(Error::invalid(
                        "mounts",
                        not_absolute(&path.display().to_string()),
                    ));
                }
            }
            if mount.destination().parent().is_none() || !places.insert(mount.destination()) {
                let place = mount.destination().display();
                return Err(Error::invalid(
                    "mounts",
                    format!("{place} is the root, or the place of two mounts"),
                ));
            }
        }
        if !is_permissions(&self.permissions) {
            let why = format!("{:?} is none of r, w and m", self.permissions);
            return Err(Error::invalid("permissions", why));
        }
        if !self.env.is_empty() && !is_variable(&self.env) {
            return Err(Error::invalid(
                "env",
                format!("{:?} cannot name a variable", self.env),
            ));
        }
        for (name, value) in &self.environment {
            if !is_variable(name) || name == &self.env || value.contains('\0') {
                let why = format!(
                    "{name:?} cannot name a variable, is that of env, or has a value with a NUL"
                );
                return Err(Error::invalid("environment", why));
            }
        }
        match self.attributes.keys().find(|key| key.is_empty()) {
            Some(_) => Err(Error::invalid("attributes", "one has no name")),
            None => Ok(()),
        }
    }
}

/// The error for a path that is not [`is_absolute`].
fn not_absolute(path: &str) -> String {
    format!("{path:?} is not an absolute path without `..`")
}

/// Checks a path pattern.
fn check_pattern(pattern: &str) -> Result<()> {
    Pattern::new(pattern).map_err(|fault| {
        Error::invalid("paths", format!("{pattern:?} is no pattern of paths")).with_source(fault)
    })?;
    if pattern.split('/').any(|part| part == "**") {
        // `**` follows links, such as those in /dev/fd, and would reach every directory of the node.
        return Err(Error::invalid(
            "paths",
            format!("{pattern:?} has `**`, which is not supported: name the directories"),
        ));
    }
    if is_absolute(std::path::Path::new(pattern)) {
        return Ok(());
    }
    Err(Error::invalid("paths", not_absolute(pattern)))
}

// === impl GroupMount ===

impl GroupMount {
    /// The destination of the mount.
    pub(crate) fn destination(&self) -> &PathBuf {
        if self.container_path.as_os_str().is_empty() {
            &self.host_path
        } else {
            &self.container_path
        }
    }
}

// === impl SlotPlacement ===

impl From<Placement> for SlotPlacement {
    fn from(placement: Placement) -> Self {
        match placement {
            Placement::Packed => Self::Packed,
            Placement::Spread => Self::Spread,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
