//! Devices that are selected by the paths of their nodes.

use std::collections::BTreeSet;
use std::path::Path;

use switchyard_core::spec::DeviceNode;

use super::{Scan, by_id, nodes, sysfs};
use crate::assemble::Candidate;
use crate::combine::{Matches, combine};
use crate::config::{Entry, Group, PathMatch};
use crate::identity;
use crate::roots::Number;

impl Scan<'_> {
    /// The devices that the paths of a group select.
    pub(super) fn paths(&mut self, group: &Group) -> Vec<Candidate> {
        let mut found = Vec::new();
        for entry in &group.paths {
            match entry {
                Entry::Single(wanted) => {
                    for path in self.matching(wanted) {
                        if self.taken.insert(path.clone()) {
                            found.push(self.of_nodes(group, &[(wanted, path.as_path())]));
                        }
                    }
                }
                Entry::Together(wanted) => found.extend(self.combined(group, wanted)),
            }
        }
        found
    }

    fn combined(&mut self, group: &Group, wanted: &[PathMatch]) -> Vec<Candidate> {
        let matches: Vec<Matches> = wanted
            .iter()
            .map(|wanted| Matches {
                paths: self.matching(wanted),
                limit: usize::from(wanted.limit),
                optional: wanted.optional,
            })
            .collect();
        let devices = combine(&matches).into_iter();
        devices
            .map(|device| {
                let members = wanted.iter().zip(device);
                let members: Vec<_> = members
                    .filter_map(|(wanted, path)| path.map(|path| (wanted, path)))
                    .collect();
                self.of_nodes(group, &members)
            })
            .collect()
    }

    /// A device with these nodes. Its identity is that of the first node that no other device may have.
    fn of_nodes(&mut self, group: &Group, members: &[(&PathMatch, &Path)]) -> Candidate {
        let mut found = Candidate::default();
        let own = members
            .iter()
            .position(|(wanted, _)| wanted.limit == 1)
            .unwrap_or(0);
        for (index, (wanted, path)) in members.iter().enumerate() {
            let is_shared = wanted.limit > 1;
            found.nodes.push(device_node(group, wanted, path));
            let numbers = match nodes::numbers(path) {
                Ok(numbers) => numbers,
                Err(_) if wanted.optional => {
                    found.nodes.pop();
                    BTreeSet::new()
                }
                Err(why) => {
                    found.fault.get_or_insert(why);
                    BTreeSet::new()
                }
            };
            if index == own {
                let only = numbers.first().filter(|_| !path.is_dir());
                self.identify(&mut found, wanted, path, only.copied());
            }
            if !is_shared {
                found.numbers.extend(numbers);
                found.aliases.push(path.display().to_string());
            }
        }
        found
    }

    /// Sets the identity of a device that has this node.
    fn identify(
        &mut self,
        found: &mut Candidate,
        wanted: &PathMatch,
        path: &Path,
        number: Option<Number>,
    ) {
        let roots = &self.search.roots;
        found.known_by = identity::path(path, &roots.dev);
        found.found_at = path.display().to_string();
        let Some(number) = number else { return };
        let dir = sysfs::dir(roots, number);
        if let Some(dir) = &dir {
            found.pci_bus_id = sysfs::pci_bus_id(dir);
            found.numa_node = sysfs::numa_node(dir);
            found.traffic = sysfs::traffic(dir);
        }
        // A path without wildcards means whatever is at this path.
        if !wanted.is_pattern() {
            return;
        }
        let usb = dir.as_deref().and_then(|dir| {
            let (usb, at) = sysfs::usb_above(dir)?;
            Some((sysfs::usb_part(dir, &at), usb))
        });
        let links = self
            .links
            .get_or_insert_with(|| by_id::Links::read(&roots.dev));
        if let Some((part, usb)) = usb {
            found.known_by = identity::usb(&usb, part.as_deref());
            found.distinct_by = Some(usb.port);
        } else if let Some(link) = links.name(number) {
            link.clone_into(&mut found.known_by);
        } else if let Some(address) = found.pci_bus_id.as_deref().filter(|_| !number.block) {
            let name = path.file_name().and_then(|name| name.to_str());
            found.known_by = identity::pci(address, name);
        }
    }
}

/// A node as a task gets it.
fn device_node(group: &Group, wanted: &PathMatch, path: &Path) -> DeviceNode {
    let PathMatch {
        path: _,
        container_path,
        permissions,
        optional: _,
        limit: _,
    } = wanted;
    let inside = Path::new(container_path);
    let container_path = if container_path.is_empty() {
        path.to_owned()
    } else {
        let below = path.file_name().filter(|_| container_path.ends_with('/'));
        below.map_or_else(|| inside.to_owned(), |name| inside.join(name))
    };
    let permissions = if permissions.is_empty() {
        &group.permissions
    } else {
        permissions
    };
    DeviceNode {
        host_path: path.to_owned(),
        container_path,
        permissions: permissions.clone(),
    }
}
