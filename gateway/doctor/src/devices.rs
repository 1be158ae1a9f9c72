//! Checks of devices and of files of the Container Device Interface.

use std::io;
use std::path::{Path, PathBuf};

use switchyard_core::spec::MissingSource;
use switchyard_runtime_spec::cdi;
use switchyard_runtime_spec::host_fs::{DeviceInfo, HostFs, HostNode, HostPropagation};

use super::codes::orchestrators::{CDI, EMPTY_GROUP, UNHEALTHY_DEVICE};
use super::facts::Facts;
use super::finding::Finding;
use super::node_devices;
use super::text::first_of;
use super::view::NodeView;

/// Maximum number of devices that a finding names.
const NAMED_MAX: usize = 5;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(empty_groups(facts));
    found.extend(unhealthy(facts));
    found.extend(refused(facts));
    found.extend(node_devices::check(facts));
    found
}

/// Configured groups in which the daemon has found no device.
fn empty_groups(facts: &Facts) -> Vec<Finding> {
    let Some(devices) = &facts.devices else {
        return Vec::new();
    };
    let empty = facts.config.devices.groups.iter().filter(|group| {
        let name = (&group.vendor, &group.kind, &group.name);
        // A group that was added to the files is not known before the reload.
        let shown = devices
            .groups
            .iter()
            .find(|shown| (&shown.vendor, &shown.kind, &shown.name) == name);
        shown.is_some_and(|shown| shown.capacity == 0)
    });
    empty
        .map(|group| {
            Finding::new(&EMPTY_GROUP, format!("group {}", group.full_name()))
                .command("switchyard devices")
        })
        .collect()
}

fn unhealthy(facts: &Facts) -> Option<Finding> {
    let devices = facts.devices.as_ref()?;
    let slots = devices.slots.iter().filter(|slot| !slot.healthy);
    let mut named: Vec<String> = slots
        .map(|slot| format!("{} ({})", slot.device, slot.reason))
        .collect();
    named.dedup();
    (!named.is_empty()).then(|| {
        Finding::new(&UNHEALTHY_DEVICE, first_of(&named, NAMED_MAX)).command("switchyard devices")
    })
}

/// The files and devices that the daemon refuses, as it reads them.
fn refused(facts: &Facts) -> Vec<Finding> {
    let listing = cdi::list(
        &facts.config.devices.cdi_spec_dirs,
        &SpecFiles(&*facts.view),
    );
    let faults: Vec<String> = listing
        .devices()
        .filter_map(|(kind, device)| {
            let fault = device.fault.as_deref()?;
            Some(format!("{}: {fault}", device.name(kind)))
        })
        .collect();
    let devices = (!faults.is_empty()).then(|| first_of(&faults, NAMED_MAX));
    let files = listing.bad.into_iter().map(|file| file.why);
    files
        .chain(devices)
        .map(|what| Finding::new(&CDI, what))
        .collect()
}

/// The files of a node in the directories of the Container Device Interface.
struct SpecFiles<'v>(&'v dyn NodeView);

impl HostFs for SpecFiles<'_> {
    fn source(&self, _: &Path, _: MissingSource) -> io::Result<PathBuf> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn propagation(&self, _: &Path) -> io::Result<HostPropagation> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn node(&self, _: &Path) -> io::Result<HostNode> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn all_devices(&self) -> io::Result<Vec<(PathBuf, DeviceInfo)>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.0
            .read(path, usize::try_from(limit).unwrap_or(usize::MAX))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let names = self.0.list(dir)?;
        Ok(names.iter().map(|name| dir.join(name)).collect())
    }
}
