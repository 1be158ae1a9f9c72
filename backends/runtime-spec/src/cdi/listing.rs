//! Lists the devices that CDI spec files describe, for an inventory that offers them by name.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::edits::{CdiDeviceNode, Edits};
use super::{because, is_word, visit};
use crate::host_fs::HostFs;

/// The most devices and nodes of devices that are listed.
const MAX_LISTED: usize = 100_000;

/// The devices in the files of some directories.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// The devices of each kind, `vendor/class`, by name in ascending order, each once.
    pub kinds: BTreeMap<String, Vec<Listed>>,
    /// The files that cannot be read or parsed, or have too many devices.
    pub bad: Vec<BadFile>,
}

/// A file that cannot be read or parsed, or has too many devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadFile {
    /// The kind of its devices, `vendor/class`, as far as it can be seen.
    pub kind: Option<String>,
    /// Its path, and the reason.
    pub why: String,
}

/// A device of a CDI spec file. Small, since a node may have thousands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name within its kind.
    pub device: Box<str>,
    /// Its own device nodes, without those that a container gets with any device of the file.
    pub nodes: Box<[ListedNode]>,
    /// Reason why it cannot be given to a container; `None` if it can.
    pub fault: Option<Box<str>>,
}

/// A device node in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedNode {
    /// Path on the host.
    pub path: PathBuf,
    /// True for a block device, its major and its minor number, if the file gives them.
    pub number: Option<(bool, u32, u32)>,
}

/// Lists the devices in the files of these directories. As for containers, a later directory takes
/// precedence, a device that is in two files of one directory cannot be used, and a malformed file makes only
/// its own devices unavailable. The contents of one file are in memory at a time; a file with which the listing would
/// have more than 100 000 devices and nodes is left out. Blocks on the file system.
#[must_use]
pub fn list(dirs: &[PathBuf], fs: &dyn HostFs) -> Listing {
    // Each with the index of its directory.
    let mut files: Vec<(usize, PathBuf)> = Vec::new();
    let mut kinds: BTreeMap<String, Vec<(Listed, usize)>> = BTreeMap::new();
    let mut bad = Vec::new();
    let mut left = MAX_LISTED;
    for (number, dir) in dirs.iter().enumerate() {
        let mut left_out = Vec::new();
        bad.extend(visit(dir, fs, None, |path, file| {
            let size: usize = file.devices.values().map(|own| 1 + own.device_nodes.len()).sum();
            let Some(rest) = left.checked_sub(size) else {
                let why = format!(
                    "its devices ({}) are left out: with them there would be more than {MAX_LISTED} devices and nodes",
                    file.devices.len()
                );
                return left_out.push(BadFile {
                    kind: Some(file.kind),
                    why: because(&path, &why),
                });
            };
            left = rest;
            let of_kind = kinds.entry(file.kind).or_default();
            of_kind.reserve_exact(file.devices.len());
            let listed = |(name, own): (&String, &Edits)| (Listed::new(name, &file.edits, own), files.len());
            of_kind.extend(file.devices.iter().map(listed));
            files.push((number, path));
        }));
        bad.append(&mut left_out);
    }
    let effective = |(kind, listed)| (kind, effective(listed, &files));
    Listing {
        kinds: kinds.into_iter().map(effective).collect(),
        bad,
    }
}

/// The devices of a kind, each once, by name. `listed` has them with the indices of their files, in ascending
/// order of these.
fn effective(mut listed: Vec<(Listed, usize)>, files: &[(usize, PathBuf)]) -> Vec<Listed> {
    listed.sort_by(|(one, _), (other, _)| one.device.cmp(&other.device));
    listed.dedup_by(|(later, file), (kept, of)| {
        let is_same = later.device == kept.device;
        if is_same {
            std::mem::swap(later, kept);
            let (dir, path) = &files[*file];
            let (other_dir, other) = &files[std::mem::replace(of, *file)];
            if dir == other_dir {
                let text = format!("it is in both {} and {}", other.display(), path.display());
                kept.fault = Some(text.into());
            }
        }
        is_same
    });
    listed.into_iter().map(|(listed, _)| listed).collect()
}

/// Returns whether this can be the kind of a device, `vendor/class`.
#[must_use]
pub fn is_kind(kind: &str) -> bool {
    kind.split_once('/')
        .is_some_and(|(vendor, class)| is_word(vendor) && is_word(class))
}

// === impl Listing ===

impl Listing {
    /// The devices of a kind.
    #[must_use]
    pub fn of_kind(&self, kind: &str) -> &[Listed] {
        self.kinds.get(kind).map_or(&[], Vec::as_slice)
    }

    /// All devices, each with its kind.
    pub fn devices(&self) -> impl Iterator<Item = (&str, &Listed)> {
        self.kinds
            .iter()
            .flat_map(|(kind, listed)| listed.iter().map(move |device| (kind.as_str(), device)))
    }
}

// === impl BadFile ===

impl BadFile {
    /// Returns whether it may have devices of one of these kinds.
    #[must_use]
    pub fn may_be_of(&self, kinds: &[&str]) -> bool {
        self.kind
            .as_deref()
            .is_none_or(|kind| kinds.contains(&kind))
    }
}

// === impl Listed ===

impl Listed {
    fn new(name: &str, of_file: &Edits, own: &Edits) -> Self {
        let moved = of_file.net_devices.iter().chain(&own.net_devices).next();
        let moved = moved.map(|net| {
            format!(
                "its network device {} cannot be moved",
                net.host_interface_name
            )
        });
        // A FIFO is not a device and has no number.
        let nodes = own
            .device_nodes
            .iter()
            .filter(|node| node.kind.as_deref() != Some("p"));
        Self {
            device: name.into(),
            nodes: nodes.map(node).collect(),
            fault: moved.map(Into::into),
        }
    }

    /// The full name of this device of a kind, `vendor/class=device`.
    #[must_use]
    pub fn name(&self, kind: &str) -> String {
        format!("{kind}={}", self.device)
    }
}

fn node(node: &CdiDeviceNode) -> ListedNode {
    let CdiDeviceNode {
        path,
        host_path,
        kind,
        major,
        minor,
        file_mode: _,
        permissions: _,
        uid: _,
        gid: _,
    } = node;
    let device_number = |number: &Option<i64>| number.and_then(|number| u32::try_from(number).ok());
    // As for containers, numbers are used only together with the type.
    let number = match (kind.as_deref(), device_number(major), device_number(minor)) {
        (Some(kind), Some(major), minor) => Some((kind == "b", major, minor.unwrap_or(0))),
        (Some(_) | None, _, _) => None,
    };
    ListedNode {
        path: PathBuf::from(host_path.as_deref().unwrap_or(path)),
        number,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::files;
    use super::*;

    fn file(kind: &str, devices: &str) -> String {
        format!(r#"{{"cdiVersion":"1.1.0","kind":"{kind}","devices":[{devices}]}}"#)
    }

    fn device(name: &str, edits: &str) -> String {
        format!(r#"{{"name":"{name}","containerEdits":{{{edits}}}}}"#)
    }

    fn listed(list: &[(&str, &str)]) -> Listing {
        super::list(&["/etc/cdi".into(), "/var/run/cdi".into()], &files(list))
    }

    #[test]
    fn cdi_devices_are_listed_with_nodes_and_later_directory_wins() {
        let nodes = r#""deviceNodes":[{"path":"/dev/x","hostPath":"/dev/real"},
            {"path":"/dev/y","type":"b","major":8,"minor":1},{"path":"/dev/p","type":"p"}]"#;
        let old = file("v.example/class", &device("a", r#""env":["A=old"]"#));
        let new = file("v.example/class", &device("a", nodes));
        let listing = listed(&[("/etc/cdi/v.json", &old), ("/var/run/cdi/v.json", &new)]);
        let [one] = listing.of_kind("v.example/class") else {
            panic!("{listing:?}")
        };
        assert_eq!(
            (one.name("v.example/class").as_str(), &one.fault),
            ("v.example/class=a", &None)
        );
        assert_eq!(listing.devices().count(), 1);
        let expected =
            [("/dev/real", None), ("/dev/y", Some((true, 8, 1)))].map(|(path, number)| {
                ListedNode {
                    path: path.into(),
                    number,
                }
            });
        assert_eq!(*one.nodes, expected);
        assert!(listing.bad.is_empty(), "{:?}", listing.bad);
    }

    #[test]
    fn invalid_cdi_file_is_named_and_others_still_load() {
        let good = file("v.example/class", &device("a", r#""env":["A=1"]"#));
        let bad = [
            "",
            "{",
            "[]",
            "null",
            "\u{0}",
            r#"{"cdiVersion":"1.1.0"}"#,
            r#"{"strange":1}"#,
        ];
        for text in bad {
            let listing = listed(&[("/etc/cdi/bad.json", text), ("/etc/cdi/v.json", &good)]);
            assert_eq!(listing.devices().count(), 1, "{text:?}");
            assert!(
                listing.bad[0].why.starts_with("/etc/cdi/bad.json: "),
                "{:?}",
                listing.bad
            );
        }
    }

    #[test]
    fn unusable_cdi_device_has_a_reason() {
        let one = file("v.example/class", &device("a", r#""env":["A=1"]"#));
        let listing = listed(&[("/etc/cdi/v.json", &one), ("/etc/cdi/w.json", &one)]);
        let [twice] = listing.of_kind("v.example/class") else {
            panic!("{listing:?}")
        };
        assert_eq!(
            twice.fault.as_deref(),
            Some("it is in both /etc/cdi/v.json and /etc/cdi/w.json")
        );
        let two = [
            ("/etc/cdi/v.json", one.as_str()),
            ("/etc/cdi/w.json", &one),
            ("/var/run/cdi/v.json", &one),
        ];
        let listing = listed(&two);
        let [later] = listing.of_kind("v.example/class") else {
            panic!("{listing:?}")
        };
        assert_eq!(
            later.fault, None,
            "a later directory takes precedence over both"
        );
        let three = [
            ("/etc/cdi/v.json", one.as_str()),
            ("/etc/cdi/w.json", &one),
            ("/etc/cdi/x.json", &one),
        ];
        let listing = listed(&three);
        let [thrice] = listing.of_kind("v.example/class") else {
            panic!("{listing:?}")
        };
        assert_eq!(
            thrice.fault.as_deref(),
            Some("it is in both /etc/cdi/w.json and /etc/cdi/x.json")
        );
        let net = device(
            "n",
            r#""netDevices":[{"hostInterfaceName":"vf7","name":"eth1"}]"#,
        );
        let listing = listed(&[("/etc/cdi/v.json", &file("v.example/nic", &net))]);
        let [moved] = listing.of_kind("v.example/nic") else {
            panic!("{listing:?}")
        };
        assert_eq!(
            moved.fault.as_deref(),
            Some("its network device vf7 cannot be moved")
        );
    }
}
