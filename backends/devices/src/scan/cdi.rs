//! Devices in vendors' CDI spec files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use switchyard_runtime_spec::RealHost;
use switchyard_runtime_spec::cdi::{BadFile, Listed, Listing, list};

use super::{Scan, nodes, sysfs};
use crate::assemble::Candidate;
use crate::config::Group;
use crate::identity;
use crate::roots::Number;

/// The name that stands for all devices of a kind.
const ALL: &str = "all";

/// The most files of a directory whose changes are noticed; fewer are read.
const STAMPS_MAX: usize = 10_000;

/// Detects changes of a file: its path, inode, length, mtime and ctime.
type Stamp = (PathBuf, u64, u64, (i64, i64), (i64, i64));

/// The parsed files, which are read again when one of them has changed.
#[derive(Debug, Default)]
pub(super) struct Specs {
    stamps: Option<Vec<Stamp>>,
    listing: Listing,
}

impl Scan<'_> {
    /// The devices of a group that are described in CDI spec files.
    pub(super) fn cdi(&mut self, group: &Group, specs: &Specs) -> Vec<Candidate> {
        if group.cdi.is_empty() {
            return Vec::new();
        }
        let listing = &specs.listing;
        self.notes.extend(listing.bad.iter().map(unusable));
        let mut found = Vec::new();
        for kind in &group.cdi {
            let family: Arc<str> = kind.as_str().into();
            let devices = distinct(listing.of_kind(kind)).into_iter();
            found.extend(devices.map(|names| self.described(&family, &names)));
        }
        found
    }

    /// A device of a kind, named by its first name.
    fn described(&self, kind: &Arc<str>, names: &[&Listed]) -> Candidate {
        let device = names[0];
        let mut found = Candidate {
            known_by: identity::cdi(kind, &device.device),
            aliases: names[1..].iter().map(|other| other.name(kind)).collect(),
            cdi: vec![device.name(kind)],
            family: Some(Arc::clone(kind)),
            fault: device.fault.as_deref().map(str::to_owned),
            ..Candidate::default()
        };
        for node in &device.nodes {
            let told = node.number.map(|(block, major, minor)| Number {
                block,
                major,
                minor,
            });
            match told.map_or_else(|| nodes::number(&node.path), Ok) {
                Ok(number) => drop(found.numbers.insert(number)),
                Err(why) => drop(found.fault.get_or_insert(why)),
            }
        }
        let mut dirs = found
            .numbers
            .iter()
            .filter_map(|number| sysfs::dir(&self.search.roots, *number));
        if let Some(dir) = dirs.next() {
            found.pci_bus_id = sysfs::pci_bus_id(&dir);
            found.numa_node = sysfs::numa_node(&dir);
        }
        found
    }
}

/// That a file cannot be used, and whose it is: devices of other kinds are not affected.
fn unusable(file: &BadFile) -> String {
    let of_kind = file.kind.as_ref().map(|kind| format!(" of {kind}"));
    format!(
        "cannot use a CDI spec file{}: {}",
        of_kind.unwrap_or_default(),
        file.why
    )
}

/// The devices, each with all its names: those with the same nodes are one device. A name that is not only a
/// number comes first, since numbers are reassigned at boot. The name for all devices is left out.
fn distinct(devices: &[Listed]) -> Vec<Vec<&Listed>> {
    let several = devices.len() > 1;
    let mut by_nodes: BTreeMap<Vec<&PathBuf>, Vec<&Listed>> = BTreeMap::new();
    let mut found = Vec::new();
    for device in devices
        .iter()
        .filter(|device| !several || *device.device != *ALL)
    {
        let mut nodes: Vec<&PathBuf> = device.nodes.iter().map(|node| &node.path).collect();
        nodes.sort();
        if nodes.is_empty() {
            found.push(vec![device]);
        } else {
            by_nodes.entry(nodes).or_default().push(device);
        }
    }
    found.extend(by_nodes.into_values());
    for names in &mut found {
        names.sort_by_key(|device| (identity::is_number(&device.device), &device.device));
    }
    found
}

// === impl Specs ===

impl Specs {
    /// Reads the files again if one of them has changed, and returns whether that is so.
    pub(super) fn refresh(&mut self, dirs: &[PathBuf]) -> bool {
        let stamps = stamps(dirs);
        let is_changed = self.stamps.as_ref() != Some(&stamps);
        if is_changed {
            // Dropped first, so that only one listing is in memory.
            self.listing = Listing::default();
            self.listing = list(dirs, &RealHost);
            self.stamps = Some(stamps);
        }
        is_changed
    }

    /// Returns whether the devices of a group are found in these files alone, so that nothing else on the
    /// node has to be scanned.
    pub(super) fn determine(&self, group: &Group) -> bool {
        let without_nodes = |kind: &String| {
            self.listing
                .of_kind(kind)
                .iter()
                .all(|one| one.nodes.is_empty())
        };
        group.paths.is_empty()
            && group.usb.is_empty()
            && group.pci.is_empty()
            && group.cdi.iter().all(without_nodes)
    }
}

fn stamps(dirs: &[PathBuf]) -> Vec<Stamp> {
    let mut stamps = Vec::new();
    for dir in dirs {
        for entry in fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .take(STAMPS_MAX)
        {
            let path = entry.path();
            let Ok(seen) = fs::metadata(&path) else {
                continue;
            };
            let content = (seen.mtime(), seen.mtime_nsec());
            let inode = (seen.ctime(), seen.ctime_nsec());
            stamps.push((path, seen.ino(), seen.len(), content, inode));
        }
    }
    stamps.sort();
    stamps
}

#[cfg(test)]
mod tests {
    use switchyard_runtime_spec::cdi::ListedNode;

    use super::*;

    fn listed(device: &str, nodes: &[&str]) -> Listed {
        let node = |path: &&str| ListedNode {
            path: path.into(),
            number: None,
        };
        Listed {
            device: device.into(),
            nodes: nodes.iter().map(node).collect(),
            fault: None,
        }
    }

    #[track_caller]
    fn check(devices: &[Listed], expected: &[&[&str]]) {
        let found = distinct(devices);
        let names: Vec<Vec<&str>> = found
            .iter()
            .map(|names| names.iter().map(|device| &*device.device).collect())
            .collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn names_of_the_same_nodes_are_one_device_and_all_is_none() {
        let both = ["/dev/gpu0", "/dev/gpu1"];
        check(
            &[
                listed("0", &both[..1]),
                listed("1", &both[1..]),
                listed("GPU-7", &both[..1]),
                listed("all", &both),
            ],
            &[&["GPU-7", "0"], &["1"]],
        );
        check(&[listed("all", &both)], &[&["all"]]);
        check(&[listed("a", &[]), listed("b", &[])], &[&["a"], &["b"]]);
    }
}
