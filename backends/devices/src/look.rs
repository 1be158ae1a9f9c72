//! One look at what there is.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use switchyard_core::device::{Device, DeviceGroup, Fact, Health, Inventory, Traffic, node};

use crate::config::Group;

/// The bytes of a sector, as the kernel counts them for every device.
const SECTOR: u64 = 512;

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    /// A character device, by major and minor number.
    Character(u64, u64),
    /// A block device, by major and minor number.
    Block(u64, u64),
    /// No device.
    Other,
}

/// The devices that these groups have now. A path that several have is in the first of them. Blocks on the file system.
#[must_use]
pub fn look(groups: &[Group]) -> Inventory {
    let mut taken = BTreeSet::new();
    Inventory { groups: groups.iter().map(|group| of_group(group, &mut taken)).collect() }
}

fn of_group(group: &Group, taken: &mut BTreeSet<PathBuf>) -> DeviceGroup {
    let Group { vendor, kind, name, paths, permissions, shared, env, attributes } = group;
    let mut found: BTreeSet<PathBuf> = paths.iter().flat_map(|pattern| matching(pattern)).collect();
    found.retain(|path| taken.insert(path.clone()));
    DeviceGroup {
        vendor: vendor.clone(),
        kind: kind.clone(),
        name: name.clone(),
        attributes: attributes.iter().map(|(key, text)| (key.clone(), Fact::parse(text))).collect(),
        devices: found.into_iter().filter_map(|path| device(path, permissions)).collect(),
        variable: env.clone(),
        shared: shared.iter().map(|path| node(path.clone(), permissions)).collect(),
    }
}

/// The paths of a pattern; one that has nothing to fill in is itself, there or not.
fn matching(pattern: &str) -> Vec<PathBuf> {
    if !pattern.contains(['*', '?', '[']) {
        return vec![PathBuf::from(pattern)];
    }
    // It was checked; a directory that cannot be read has nothing.
    glob::glob(pattern).map(|paths| paths.flatten().collect()).unwrap_or_default()
}

/// `None` for a path that is no text: nobody could ask for it.
fn device(path: PathBuf, permissions: &str) -> Option<Device> {
    let id = path.to_str()?.to_owned();
    let seen = seen(&path);
    let health = match &seen {
        Ok(Node::Character(..) | Node::Block(..)) => Health::Healthy,
        Ok(Node::Other) => Health::Unhealthy(format!("{id} is no device")),
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => {
            Health::Unhealthy(format!("{id} is not there"))
        }
        Err(fault) => Health::Unhealthy(format!("{id} cannot be looked at: {fault}")),
    };
    let of_kernel = seen.ok().and_then(in_sysfs);
    Some(Device {
        pci_bus_id: of_kernel.as_deref().and_then(pci_bus_id),
        traffic: of_kernel.as_deref().and_then(traffic),
        node: node(path, permissions),
        id,
        health,
    })
}

fn seen(path: &Path) -> io::Result<Node> {
    let metadata = fs::metadata(path)?;
    let (kind, number) = (metadata.file_type(), metadata.rdev());
    // As the C library takes a number apart.
    let major = ((number >> 8) & 0xfff) | ((number >> 32) & 0xffff_f000);
    let minor = (number & 0xff) | ((number >> 12) & 0xffff_ff00);
    Ok(if kind.is_char_device() {
        Node::Character(major, minor)
    } else if kind.is_block_device() {
        Node::Block(major, minor)
    } else {
        Node::Other
    })
}

/// Where the kernel tells of a device.
fn in_sysfs(node: Node) -> Option<PathBuf> {
    Some(match node {
        Node::Character(major, minor) => PathBuf::from(format!("/sys/dev/char/{major}:{minor}")),
        Node::Block(major, minor) => PathBuf::from(format!("/sys/dev/block/{major}:{minor}")),
        Node::Other => return None,
    })
}

/// The address on the PCI bus of a device, or of that which it is a part of: the last on the way to it.
fn pci_bus_id(of_kernel: &Path) -> Option<String> {
    let path = fs::canonicalize(of_kernel).ok()?;
    path.iter().rev().filter_map(|part| part.to_str()).find(|part| is_pci(part)).map(str::to_owned)
}

/// Whether a text has the form `0000:3b:00.0`.
fn is_pci(text: &str) -> bool {
    let fits = |(byte, form): (u8, u8)| if form == b'0' { byte.is_ascii_hexdigit() } else { byte == form };
    let form = b"0000:00:00.0";
    text.len() == form.len() && text.bytes().zip(*form).all(fits)
}

/// What a block device has carried; see the kernel's documentation of `stat` of block devices.
fn traffic(of_kernel: &Path) -> Option<Traffic> {
    let text = fs::read_to_string(of_kernel.join("stat")).ok()?;
    let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let bytes = |sectors: &u64| sectors.saturating_mul(SECTOR);
    Some(Traffic { read_bytes: fields.get(2).map(bytes)?, written_bytes: fields.get(6).map(bytes)? })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;

    fn group(name: &str, paths: &[String]) -> Group {
        Group {
            vendor: "acme".to_owned(),
            kind: "tpu".to_owned(),
            name: name.to_owned(),
            paths: paths.to_vec(),
            permissions: "rw".to_owned(),
            shared: vec!["/dev/null".into()],
            env: "ACME".to_owned(),
            attributes: BTreeMap::from([("memory".to_owned(), "16 GiB".to_owned())]),
        }
    }

    fn ids(group: &DeviceGroup) -> Vec<(String, bool)> {
        let one = |device: &Device| {
            let name = device.id.rsplit('/').next().unwrap().to_owned();
            (name, device.health == Health::Healthy)
        };
        group.devices.iter().map(one).collect()
    }

    #[test]
    fn a_pattern_has_what_is_there_and_a_path_is_told_while_it_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let make = |name: &str| {
            mknod(&dir.path().join(name), SFlag::S_IFCHR, Mode::S_IRUSR, makedev(1, 3))
                .expect("these tests make device nodes and so must run as root");
        };
        make("acme0");
        make("acme1");
        fs::write(path("acme2"), "").unwrap();
        make("other");
        let groups = [
            group("one", &[path("acme[0-9]"), path("missing")]),
            group("two", &[path("acme1"), path("oth*")]),
        ];
        let found = look(&groups);
        let expected = [("acme0", true), ("acme1", true), ("acme2", false), ("missing", false)]
            .map(|(n, h)| (n.to_owned(), h));
        assert_eq!(ids(&found.groups[0]), expected);
        assert_eq!(ids(&found.groups[1]), [("other".to_owned(), true)], "a device is in one group");
        assert_eq!(found.groups[0].attributes["memory"], Fact::Whole(16, "GiB".to_owned()));
        assert_eq!(look(&groups), found);
        fs::remove_file(path("acme0")).unwrap();
        assert_eq!(ids(&look(&groups).groups[0]).len(), 3);
    }

    #[test]
    fn numbers_are_those_of_the_node() {
        assert_eq!(seen(Path::new("/dev/null")).unwrap(), Node::Character(1, 3));
        assert_eq!(seen(Path::new("/dev")).unwrap(), Node::Other);
    }

    #[test]
    fn a_place_on_the_bus_has_its_form() {
        for text in ["0000:3b:00.0", "10de:00:1f.7"] {
            assert!(is_pci(text), "{text}");
        }
        for text in [
            "",
            "pci0000:3b",
            "0000:3b:00:0",
            "0000.3b.00.0",
            "0000:3b:00.0.1",
            "0000:3g:00.0",
            "é000:3b:00.0",
        ] {
            assert!(!is_pci(text), "{text}");
        }
    }
}
