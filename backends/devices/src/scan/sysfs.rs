//! The kernel's description of a device, in files that a driver may omit or fill with anything.

use std::fs;
use std::path::{Component, Path, PathBuf};

use switchyard_core::device::Traffic;

use crate::identity::Usb;
use crate::roots::{Number, Roots};

/// The largest file in sysfs: a page.
const FILE_MAX: u64 = 4096;
/// The size of a sector in the kernel's statistics, in bytes; the same for all devices.
const SECTOR: u64 = 512;
/// Maximum number of parent directories of a device that are searched.
const ABOVE_MAX: usize = 32;
/// Maximum depth of the search below a device, and maximum number of entries read.
const BELOW_MAX: usize = 10;
const ENTRIES_MAX: usize = 2048;
/// The most nodes of one device.
const NODES_MAX: usize = 64;

/// The trimmed text of a small file; `None` if the file does not exist, is empty or too large.
pub(super) fn text(path: &Path) -> Option<String> {
    let bytes = switchyard_node_files::read(path, FILE_MAX).ok()?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The sysfs directory of a device.
pub(super) fn dir(roots: &Roots, number: Number) -> Option<PathBuf> {
    let Number {
        block,
        major,
        minor,
    } = number;
    let kind = if block { "block" } else { "char" };
    fs::canonicalize(
        roots
            .sys
            .join("dev")
            .join(kind)
            .join(format!("{major}:{minor}")),
    )
    .ok()
}

/// The directory of a device, and those of its parent devices.
fn above(dir: &Path) -> impl Iterator<Item = &Path> {
    dir.ancestors().take(ABOVE_MAX)
}

/// The USB device that a device is, or belongs to, and its directory.
pub(super) fn usb_above(dir: &Path) -> Option<(Usb, PathBuf)> {
    above(dir).find_map(|dir| Some((usb(dir)?, dir.to_owned())))
}

/// The USB device with this directory.
pub(super) fn usb(dir: &Path) -> Option<Usb> {
    let digits = |name: &str| {
        let text = text(&dir.join(name))?.to_ascii_lowercase();
        (text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(text)
    };
    Some(Usb {
        vendor: digits("idVendor")?,
        product: digits("idProduct")?,
        serial: text(&dir.join("serial")),
        port: dir.file_name()?.to_str()?.to_owned(),
    })
}

/// Identifies the part of the USB device at `usb` that a node belongs to: its interface and subsystem, and
/// its number among the nodes that have both in common.
pub(super) fn usb_part(dir: &Path, usb: &Path) -> Option<String> {
    let below = dir.strip_prefix(usb).ok()?;
    let interface = below
        .iter()
        .next()?
        .to_str()?
        .rsplit_once(':')?
        .1
        .to_owned();
    let subsystem = link(&dir.join("subsystem"))?;
    let among = ["port_number", "device/port_number", "index", "partition"];
    let among = among.iter().find_map(|name| text(&dir.join(name)));
    let among =
        among.filter(|text| text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit()));
    Some(among.map_or_else(
        || format!("{interface}-{subsystem}"),
        |among| format!("{interface}-{subsystem}-{among}"),
    ))
}

/// The PCI address of a device, or of the one that it belongs to: the last one in the path.
pub(super) fn pci_bus_id(dir: &Path) -> Option<String> {
    dir.iter()
        .rev()
        .filter_map(|part| part.to_str())
        .find(|part| is_pci(part))
        .map(str::to_owned)
}

/// Returns whether a text has the form `0000:3b:00.0`. A domain has up to eight digits, such as `10000` for
/// NVMe devices behind Intel's VMD.
pub(super) fn is_pci(text: &str) -> bool {
    let fits = |(byte, form): (u8, u8)| {
        if form == b'0' {
            byte.is_ascii_hexdigit()
        } else {
            byte == form
        }
    };
    let Some((domain, rest)) = text.split_once(':') else {
        return false;
    };
    let form = b"00:00.0";
    (4..=8).contains(&domain.len())
        && domain.bytes().all(|byte| byte.is_ascii_hexdigit())
        && rest.len() == form.len()
        && rest.bytes().zip(*form).all(fits)
}

/// The NUMA node of a device, or of the one that it belongs to. The kernel reports -1 for none.
pub(super) fn numa_node(dir: &Path) -> Option<u32> {
    above(dir)
        .find_map(|dir| text(&dir.join("numa_node")))?
        .parse()
        .ok()
}

/// The I/O counters of a block device; see the kernel's documentation of the `stat` file of block devices.
pub(super) fn traffic(dir: &Path) -> Option<Traffic> {
    let text = text(&dir.join("stat"))?;
    let fields: Vec<u64> = text
        .split_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    let bytes = |sectors: &u64| sectors.saturating_mul(SECTOR);
    Some(Traffic {
        read_bytes: fields.get(2).map(bytes)?,
        written_bytes: fields.get(6).map(bytes)?,
    })
}

/// The last component of a link's target.
pub(super) fn link(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
}

/// The path of the device node of a sysfs directory, if it has one.
pub(super) fn node(dir: &Path, dev: &Path) -> Option<PathBuf> {
    let uevent = text(&dir.join("uevent"))?;
    let name = Path::new(
        uevent
            .lines()
            .find_map(|line| line.strip_prefix("DEVNAME="))?,
    );
    let is_below = name
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    (is_below && !name.as_os_str().is_empty()).then(|| dev.join(name))
}

/// The paths of the nodes of a device in ascending order: its own, and those of all its parts that are not
/// USB or PCI devices themselves.
pub(super) fn nodes_below(device: &Path, dev: &Path) -> Vec<PathBuf> {
    let mut nodes: Vec<PathBuf> = node(device, dev).into_iter().collect();
    let mut open = vec![(device.to_owned(), 0)];
    let mut left = ENTRIES_MAX;
    while let Some((dir, depth)) = open.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        for entry in entries.flatten() {
            if left == 0 || nodes.len() >= NODES_MAX {
                break;
            }
            left -= 1;
            let path = entry.path();
            let name = entry.file_name();
            // Links lead to related devices, not to parts of the device.
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if !is_dir || name.to_str().is_none_or(is_pci) || path.join("idVendor").exists() {
                continue;
            }
            nodes.extend(node(&path, dev));
            if depth < BELOW_MAX {
                open.push((path, depth + 1));
            }
        }
    }
    nodes.sort();
    nodes.dedup();
    nodes
}

/// The entries of a sysfs directory, in ascending order.
pub(super) fn entries(dir: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(dir).into_iter().flatten().flatten();
    // The entries are links to the devices' directories.
    let mut entries: Vec<PathBuf> = found
        .take(super::DEVICES_MAX)
        .filter_map(|entry| fs::canonicalize(entry.path()).ok())
        .collect();
    entries.sort();
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_on_the_bus_has_its_form() {
        for text in ["0000:3b:00.0", "10de:00:1f.7", "10000:e1:00.0"] {
            assert!(is_pci(text), "{text}");
        }
        for text in [
            "",
            "pci0000:3b",
            "0000:3b:00:0",
            "0000.3b.00.0",
            "0000:3b:00.0.1",
            "0000:3g:00.0",
            "000:3b:00.0",
            "123456789:3b:00.0",
            "é000:3b:00.0",
        ] {
            assert!(!is_pci(text), "{text}");
        }
    }

    #[test]
    fn a_file_that_is_huge_missing_or_none_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("serial");
        assert_eq!(text(&path), None);
        fs::write(&path, vec![b'7'; 4097]).unwrap();
        assert_eq!(text(&path), None);
        fs::write(&path, " \n\0\n").unwrap();
        assert_eq!(text(&path).as_deref(), Some("\0"));
        fs::write(&path, b"A\xff7\n").unwrap();
        assert_eq!(text(&path).as_deref(), Some("A\u{fffd}7"));
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert_eq!(text(&path), None, "nobody writes into a FIFO");
    }

    #[test]
    fn a_node_is_below_the_root_of_devices() {
        let dir = tempfile::tempdir().unwrap();
        for (uevent, expected) in [
            ("MAJOR=188\nDEVNAME=ttyUSB0\n", Some("/dev/ttyUSB0")),
            ("DEVNAME=bus/usb/001/002", Some("/dev/bus/usb/001/002")),
            ("DEVNAME=../etc/shadow", None),
            ("DEVNAME=/etc/shadow", None),
            ("DEVNAME=", None),
            ("DRIVER=usb", None),
        ] {
            fs::write(dir.path().join("uevent"), uevent).unwrap();
            assert_eq!(
                node(dir.path(), Path::new("/dev")),
                expected.map(PathBuf::from),
                "{uevent}"
            );
        }
    }
}
