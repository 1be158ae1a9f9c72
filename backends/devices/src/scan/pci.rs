//! PCI devices that are selected by their ids, each with all nodes that its driver creates.

use std::path::{Path, PathBuf};

use super::{Scan, sysfs};
use crate::assemble::Candidate;
use crate::config::Group;
use crate::identity;

impl Scan<'_> {
    /// The PCI devices of a group.
    pub(super) fn pci(&self, group: &Group) -> Vec<Candidate> {
        if group.pci.is_empty() {
            return Vec::new();
        }
        let dirs = sysfs::entries(&self.search.roots.sys.join("bus/pci/devices"));
        dirs.iter()
            .filter_map(|dir| self.pci_device(group, dir))
            .collect()
    }

    fn pci_device(&self, group: &Group, dir: &Path) -> Option<Candidate> {
        let address = dir
            .file_name()?
            .to_str()
            .filter(|name| sysfs::is_pci(name))?;
        let digits = |name: &str| {
            let text = sysfs::text(&dir.join(name))?;
            Some(
                text.strip_prefix("0x")
                    .unwrap_or(&text)
                    .to_ascii_lowercase(),
            )
        };
        let vendor = digits("vendor")?;
        let device = digits("device")?;
        let class = digits("class")?;
        if !group
            .pci
            .iter()
            .any(|wanted| wanted.matches(&vendor, &device, &class))
        {
            return None;
        }
        let mut found = Candidate {
            known_by: identity::pci(address, None),
            distinct_by: Some(address.to_owned()),
            ..Candidate::default()
        };
        self.add_nodes(group, &mut found, self.vfio(dir), dir);
        Some(found)
    }

    /// The node for a device that is bound to vfio-pci, by which programs access it: that of its IOMMU group.
    fn vfio(&self, dir: &Path) -> Option<PathBuf> {
        let is_vfio = sysfs::link(&dir.join("driver")).is_some_and(|driver| driver == "vfio-pci");
        let group = sysfs::link(&dir.join("iommu_group")).filter(|_| is_vfio)?;
        Some(self.search.roots.dev.join("vfio").join(group))
    }
}
