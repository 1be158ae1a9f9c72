//! Lists the devices that CDI spec files describe, for an inventory that offers them by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::file::{CdiDeviceNode, Edits};
use super::{Directory, is_word};
use crate::input::HostFs;

/// The devices in the files of some directories.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// The devices, by name in ascending order, each once.
    pub devices: Vec<Listed>,
    /// The files that cannot be read or parsed, each with the reason.
    pub bad: Vec<String>,
}

/// A device of a CDI spec file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its kind, `vendor/class`.
    pub kind: String,
    /// Its name within its kind.
    pub device: String,
    /// Its own device nodes, without those that a container gets with any device of the file.
    pub nodes: Vec<ListedNode>,
    /// Why it cannot be given to a container; `None` if it can.
    pub fault: Option<String>,
}

/// A device node in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedNode {
    /// Path on the host.
    pub path: PathBuf,
    /// Whether it is a block device, its major and its minor number, if the file gives them.
    pub number: Option<(bool, u32, u32)>,
}

/// Lists the devices in the files of these directories. As for containers, a later directory takes
/// precedence, a device that is in two files of one directory cannot be used, and a malformed file makes only
/// its own devices unavailable. Blocks on the file system.
#[must_use]
pub fn list(dirs: &[PathBuf], fs: &dyn HostFs) -> Listing {
    let mut found: BTreeMap<(String, String), Listed> = BTreeMap::new();
    let mut bad = Vec::new();
    for dir in dirs {
        let directory = Directory::read(dir, fs, None);
        bad.extend(directory.bad);
        let mut here: BTreeMap<(String, String), (PathBuf, Listed)> = BTreeMap::new();
        for (path, file) in directory.files {
            for (device, edits) in &file.devices {
                let key = (file.kind.clone(), device.clone());
                let clash = here.get(&key).map(|(other, _)| both(&path, other));
                let listed = Listed::new(&file.kind, device, &file.edits, edits, clash);
                here.insert(key, (path.clone(), listed));
            }
        }
        found.extend(here.into_iter().map(|(key, (_, listed))| (key, listed)));
    }
    Listing { devices: found.into_values().collect(), bad }
}

fn both(path: &Path, other: &Path) -> String {
    format!("it is in both {} and {}", other.display(), path.display())
}

/// Whether this can be the kind of a device, `vendor/class`.
#[must_use]
pub fn is_kind(kind: &str) -> bool {
    kind.split_once('/').is_some_and(|(vendor, class)| is_word(vendor) && is_word(class))
}

// === impl Listed ===

impl Listed {
    fn new(kind: &str, device: &str, of_file: &Edits, own: &Edits, clash: Option<String>) -> Self {
        let moved = of_file.net_devices.iter().chain(&own.net_devices).next();
        let moved =
            moved.map(|net| format!("its network device {} cannot be moved", net.host_interface_name));
        Self {
            kind: kind.to_owned(),
            device: device.to_owned(),
            // A FIFO is not a device and has no number.
            nodes: own
                .device_nodes
                .iter()
                .filter(|node| node.kind.as_deref() != Some("p"))
                .map(node)
                .collect(),
            fault: clash.or(moved),
        }
    }

    /// Its full name, `vendor/class=device`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}={}", self.kind, self.device)
    }
}

fn node(node: &CdiDeviceNode) -> ListedNode {
    let CdiDeviceNode { path, host_path, kind, major, minor, file_mode: _, permissions: _, uid: _, gid: _ } =
        node;
    let told = |number: &Option<i64>| number.and_then(|number| u32::try_from(number).ok());
    // As for containers, numbers are used only together with the type.
    let number = match (kind.as_deref(), told(major), told(minor)) {
        (Some(kind), Some(major), minor) => Some((kind == "b", major, minor.unwrap_or(0))),
        (Some(_) | None, _, _) => None,
    };
    ListedNode { path: PathBuf::from(host_path.as_deref().unwrap_or(path)), number }
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
    fn devices_are_listed_with_their_nodes_and_a_later_directory_wins() {
        let nodes = r#""deviceNodes":[{"path":"/dev/x","hostPath":"/dev/real"},
            {"path":"/dev/y","type":"b","major":8,"minor":1},{"path":"/dev/p","type":"p"}]"#;
        let old = file("v.example/class", &device("a", r#""env":["A=old"]"#));
        let new = file("v.example/class", &device("a", nodes));
        let listing = listed(&[("/etc/cdi/v.json", &old), ("/var/run/cdi/v.json", &new)]);
        let [one] = &listing.devices[..] else { panic!("{listing:?}") };
        assert_eq!((one.name().as_str(), &one.fault), ("v.example/class=a", &None));
        let expected = [("/dev/real", None), ("/dev/y", Some((true, 8, 1)))]
            .map(|(path, number)| ListedNode { path: path.into(), number });
        assert_eq!(one.nodes, expected);
        assert_eq!(listing.bad, [""; 0]);
    }

    #[test]
    fn a_bad_file_is_named_and_hides_no_other() {
        let good = file("v.example/class", &device("a", r#""env":["A=1"]"#));
        let bad = ["", "{", "[]", "null", "\u{0}", r#"{"cdiVersion":"1.1.0"}"#, r#"{"strange":1}"#];
        for text in bad {
            let listing = listed(&[("/etc/cdi/bad.json", text), ("/etc/cdi/v.json", &good)]);
            assert_eq!(listing.devices.len(), 1, "{text:?}");
            assert!(listing.bad[0].starts_with("/etc/cdi/bad.json: "), "{:?}", listing.bad);
        }
    }

    #[test]
    fn what_no_container_can_be_given_says_why() {
        let one = file("v.example/class", &device("a", r#""env":["A=1"]"#));
        let listing = listed(&[("/etc/cdi/v.json", &one), ("/etc/cdi/w.json", &one)]);
        let [twice] = &listing.devices[..] else { panic!("{listing:?}") };
        assert_eq!(twice.fault.as_deref(), Some("it is in both /etc/cdi/v.json and /etc/cdi/w.json"));
        let net = device("n", r#""netDevices":[{"hostInterfaceName":"vf7","name":"eth1"}]"#);
        let listing = listed(&[("/etc/cdi/v.json", &file("v.example/nic", &net))]);
        assert_eq!(listing.devices[0].fault.as_deref(), Some("its network device vf7 cannot be moved"));
    }
}
