//! USB devices that are selected by their ids, each with its own node and those of its interfaces.

use std::path::{Path, PathBuf};

use switchyard_core::device::node;

use super::{Scan, nodes, sysfs};
use crate::assemble::Candidate;
use crate::config::Group;
use crate::identity;

impl Scan<'_> {
    /// The USB devices of a group.
    pub(super) fn usb(&self, group: &Group) -> Vec<Candidate> {
        if group.usb.is_empty() {
            return Vec::new();
        }
        let dirs = sysfs::entries(&self.search.roots.sys.join("bus/usb/devices"));
        dirs.iter()
            .filter_map(|dir| self.usb_device(group, dir))
            .collect()
    }

    fn usb_device(&self, group: &Group, dir: &Path) -> Option<Candidate> {
        let usb = sysfs::usb(dir)?;
        let is_met = |usb: &identity::Usb| {
            let serial = usb.serial.as_deref();
            group
                .usb
                .iter()
                .any(|wanted| wanted.matches(&usb.vendor, &usb.product, serial))
        };
        if !is_met(&usb) {
            return None;
        }
        let mut found = Candidate {
            known_by: identity::usb(&usb, None),
            distinct_by: Some(usb.port.clone()),
            ..Candidate::default()
        };
        let own = sysfs::node(dir, &self.search.roots.dev);
        self.add_nodes(group, &mut found, own, dir);
        Some(found)
    }

    /// Adds the nodes of the device at `dir`. Nodes that sysfs lists and that do not exist (yet) are left
    /// out, except for `own`, without which the device cannot be used.
    pub(super) fn add_nodes(
        &self,
        group: &Group,
        found: &mut Candidate,
        own: Option<PathBuf>,
        dir: &Path,
    ) {
        let parts = sysfs::nodes_below(dir, &self.search.roots.dev);
        let parts = parts.into_iter().filter(|path| own.as_ref() != Some(path));
        for path in own.iter().cloned().chain(parts) {
            match nodes::number(&path) {
                Ok(number) => {
                    found.numbers.insert(number);
                    found.aliases.push(path.display().to_string());
                    found.nodes.push(node(path, &group.permissions));
                }
                Err(why) if own.as_ref() == Some(&path) => found.fault = Some(why),
                Err(_) => {}
            }
        }
        if found.nodes.is_empty() {
            found.fault.get_or_insert_with(|| {
                "it has no driver, or its driver creates no device node".to_owned()
            });
        }
        found.pci_bus_id = sysfs::pci_bus_id(dir);
        found.numa_node = sysfs::numa_node(dir);
    }
}
