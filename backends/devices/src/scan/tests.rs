//! Scans of a node that a test creates: `/dev` and `/sys` in a directory.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use switchyard_core::device::{Device, Health, Traffic};
use tempfile::TempDir;

use super::*;
use crate::config::tests::group as of_paths;
use crate::config::{Entry, PathMatch, PciMatch, UsbMatch};

mod device_tree;
mod repeated;
mod usb;

use device_tree::DeviceTree;

fn usb(vendor: &str, serial: &str) -> Group {
    let wanted = UsbMatch {
        vendor: vendor.into(),
        product: String::new(),
        serial: serial.into(),
    };
    Group {
        usb: vec![wanted],
        ..of_paths("usb", &[])
    }
}

fn ids(devices: &[Device]) -> Vec<(&str, bool)> {
    devices
        .iter()
        .map(|device| (device.id.as_str(), device.health == Health::Healthy))
        .collect()
}

#[track_caller]
fn why(device: &Device) -> &str {
    device
        .health
        .fault()
        .unwrap_or_else(|| panic!("{device:?} is healthy"))
}

#[test]
fn a_pattern_has_what_is_there_and_a_path_is_told_while_it_is_missing() {
    let node = DeviceTree::new();
    node.char("acme0", (1, 3));
    node.char("acme1", (1, 5));
    fs::write(node.dev("acme2"), "").unwrap();
    node.char("other", (1, 7));
    let groups = vec![
        of_paths("one", &[node.pattern("acme[0-9]"), node.pattern("missing")]),
        of_paths("two", &[node.pattern("acme1"), node.pattern("oth*")]),
    ];
    let found = node.look(groups.clone()).inventory;
    let expected = [
        ("acme0", true),
        ("acme1", true),
        ("acme2", false),
        ("missing", false),
    ];
    assert_eq!(ids(&found.groups[0].devices), expected);
    assert_eq!(
        ids(&found.groups[1].devices),
        [("other", true)],
        "a path is in one group"
    );
    assert_eq!(found.groups[0].devices[0].aliases, [node.pattern("acme0")]);
    assert!(why(&found.groups[0].devices[2]).ends_with("acme2 is not a device"));
    assert_eq!(node.look(groups.clone()).inventory, found);
    fs::remove_file(node.dev("acme0")).unwrap();
    assert_eq!(node.look(groups).inventory.groups[0].devices.len(), 3);
}

#[test]
fn a_device_by_two_paths_is_one_device_and_the_second_says_whose_it_is() {
    let node = DeviceTree::new();
    node.char("acme0", (1, 3));
    symlink("acme0", node.dev("link0")).unwrap();
    node.char("again", (1, 3));
    let found = node.look(vec![
        of_paths("one", &[node.pattern("acme*")]),
        of_paths("two", &[node.pattern("[al]*n*")]),
    ]);
    assert_eq!(ids(&found.inventory.groups[0].devices), [("acme0", true)]);
    let second = &found.inventory.groups[1].devices;
    assert_eq!(second.len(), 2);
    for device in second {
        assert_eq!(
            why(device),
            "character device 1:3 belongs to device acme0 of acme/tpu/one"
        );
    }
}

#[test]
fn a_pci_device_is_known_by_its_address_and_has_the_nodes_of_its_driver() {
    let node = DeviceTree::new();
    node.pci("0000:3b:00.0", 0, "1");
    node.pci("0000:5e:00.0", 1, "-1");
    let wanted = PciMatch {
        vendor: "10de".into(),
        device: String::new(),
        class: "03".into(),
    };
    let group = Group {
        pci: vec![wanted.clone()],
        ..of_paths("gpu", &[])
    };
    let devices = node.devices(group.clone());
    assert_eq!(
        ids(&devices),
        [("0000:3b:00.0", true), ("0000:5e:00.0", true)]
    );
    assert_eq!(node.nodes(&devices[0]), ["dri/card0", "dri/renderD128"]);
    assert_eq!(
        (devices[0].numa_node, devices[1].numa_node),
        (Some(1), None)
    );
    let class = PciMatch {
        class: "02".into(),
        ..wanted
    };
    assert_eq!(
        ids(&node.devices(Group {
            pci: vec![class],
            ..group
        })),
        []
    );
    // Selected by a path, the device has the same address, and the kernel's number is not part of its id.
    let devices = node.devices(of_paths("gpu", &[node.pattern("dri/renderD*")]));
    assert_eq!(
        ids(&devices),
        [
            ("0000:3b:00.0-renderD", true),
            ("0000:5e:00.0-renderD", true)
        ]
    );
}

#[test]
fn a_pci_device_without_nodes_says_so_and_one_for_programs_has_that_of_its_iommu_group() {
    let node = DeviceTree::new();
    node.pci("0000:3b:00.0", 0, "0");
    fs::remove_dir_all(node.dev("dri")).unwrap();
    let wanted = PciMatch {
        vendor: "10de".into(),
        device: "2230".into(),
        class: String::new(),
    };
    let group = Group {
        pci: vec![wanted],
        ..of_paths("gpu", &[])
    };
    assert!(why(&node.devices(group.clone())[0]).contains("no device node"));
    let dir = node.0.path().join("sys/devices/pci0000:3a/0000:3b:00.0");
    symlink("../../../bus/pci/drivers/vfio-pci", dir.join("driver")).unwrap();
    symlink("../../../kernel/iommu_groups/42", dir.join("iommu_group")).unwrap();
    assert!(why(&node.devices(group.clone())[0]).ends_with("vfio/42 does not exist"));
    node.char("vfio/42", (243, 0));
    assert_eq!(node.nodes(&node.devices(group)[0]), ["vfio/42"]);
}

#[test]
fn a_disk_is_known_by_the_link_that_udev_makes() {
    let node = DeviceTree::new();
    node.make("sdq", SFlag::S_IFBLK, (65, 0));
    let pattern = [node.pattern("sd*")];
    assert_eq!(
        ids(&node.devices(of_paths("disk", &pattern))),
        [("sdq", true)]
    );
    fs::create_dir_all(node.dev("disk/by-id")).unwrap();
    for name in ["wwn-0x5000", "ata-Disk_S3Z8"] {
        symlink("../../sdq", node.dev("disk/by-id").join(name)).unwrap();
    }
    fs::create_dir_all(node.0.path().join("sys/dev/block/65:0")).unwrap();
    fs::write(
        node.0.path().join("sys/dev/block/65:0/stat"),
        "1 2 3 4 5 6 7 8",
    )
    .unwrap();
    let devices = node.devices(of_paths("disk", &pattern));
    assert_eq!(ids(&devices), [("ata-Disk_S3Z8", true)]);
    assert_eq!(
        devices[0].traffic,
        Some(Traffic {
            read_bytes: 3 * 512,
            written_bytes: 7 * 512
        })
    );
}

#[test]
fn devices_of_vendors_files_are_offered_by_name_and_a_bad_file_hides_none() {
    let node = DeviceTree::new();
    node.char("gpu0", (195, 0));
    let spec = |devices: &str| {
        format!(r#"{{"cdiVersion":"0.6.0","kind":"acme.com/gpu","devices":[{devices}]}}"#)
    };
    let device = |name: &str, minor: u64| {
        let path = node.pattern(&format!("gpu{minor}"));
        format!(r#"{{"name":"{name}","containerEdits":{{"deviceNodes":[{{"path":"{path}"}}]}}}}"#)
    };
    let devices = [device("0", 0), device("GPU-7", 0), device("1", 1)].join(",");
    fs::write(node.0.path().join("cdi/acme.json"), spec(&devices)).unwrap();
    fs::write(node.0.path().join("cdi/bad.json"), "{").unwrap();
    fs::write(
        node.0.path().join("cdi/huge.json"),
        vec![b' '; (4 << 20) + 1],
    )
    .unwrap();
    let group = Group {
        cdi: vec!["acme.com/gpu".into()],
        ..of_paths("gpu", &[])
    };
    let found = node.look(vec![group]);
    let devices = &found.inventory.groups[0].devices;
    assert_eq!(ids(devices), [("GPU-7", true), ("gpu-1", false)]);
    assert_eq!(
        (&devices[0].cdi[..], &devices[0].nodes[..]),
        (&["acme.com/gpu=GPU-7".to_owned()][..], &[][..])
    );
    assert_eq!(devices[0].aliases, ["acme.com/gpu=0"]);
    assert!(why(&devices[1]).ends_with("gpu1 does not exist"));
    let notes: Vec<&String> = found.notes.iter().collect();
    assert!(
        notes[0].contains("bad.json: ") && notes[1].contains("huge.json: "),
        "{notes:?}"
    );
}

#[test]
fn several_paths_are_one_device_and_a_control_node_serves_several() {
    let node = DeviceTree::new();
    for (name, minor) in [
        ("cam0", 0),
        ("cam1", 1),
        ("mic0", 2),
        ("mic1", 3),
        ("ctl", 4),
    ] {
        node.char(name, (240, minor));
    }
    let control = PathMatch {
        container_path: "/dev/acme/".to_owned(),
        permissions: "r".to_owned(),
        limit: 10,
        ..PathMatch::from(node.pattern("ctl").as_str())
    };
    let light = PathMatch {
        optional: true,
        ..PathMatch::from(node.pattern("light*").as_str())
    };
    let own = |name: &str| PathMatch::from(node.pattern(name).as_str());
    let entry = Entry::Together(vec![control, own("cam*"), own("mic*"), light]);
    let devices = node.devices(Group {
        paths: vec![entry],
        ..of_paths("cam", &[])
    });
    assert_eq!(ids(&devices), [("cam0", true), ("cam1", true)]);
    assert_eq!(node.nodes(&devices[1]), ["ctl", "cam1", "mic1"]);
    let given = &devices[1].nodes[0];
    assert_eq!(
        (given.container_path.to_str().unwrap(), &*given.permissions),
        ("/dev/acme/ctl", "r")
    );
    assert_eq!(
        devices[1].aliases,
        [node.pattern("cam1"), node.pattern("mic1")]
    );
}

#[test]
fn a_directory_of_nodes_is_one_device_with_all_of_them() {
    let node = DeviceTree::new();
    node.char("snd/controlC0", (116, 0));
    node.char("snd/deep/pcmC0D0p", (116, 1));
    fs::create_dir(node.dev("empty")).unwrap();
    let sound = of_paths("snd", &[node.pattern("snd"), node.pattern("empty")]);
    let found = node
        .look(vec![
            sound,
            of_paths("pcm", &[node.pattern("snd/controlC*")]),
        ])
        .inventory;
    assert_eq!(
        ids(&found.groups[0].devices),
        [("empty", false), ("snd", true)]
    );
    assert!(why(&found.groups[0].devices[0]).ends_with("empty has no device"));
    assert_eq!(
        why(&found.groups[1].devices[0]),
        "character device 116:0 belongs to device snd of acme/tpu/snd"
    );
}

#[test]
fn a_pattern_with_very_many_matches_is_cut_and_told() {
    let node = DeviceTree::new();
    for number in 0..100_000 {
        fs::write(node.dev(&format!("acme{number:06}")), "").unwrap();
    }
    let pattern = [node.pattern("acme*")];
    let found = node.look(vec![of_paths("many", &pattern)]);
    let devices = &found.inventory.groups[0].devices;
    assert_eq!(
        (devices.len(), devices[0].id.as_str()),
        (DEVICES_MAX, "acme000000")
    );
    assert!(
        found
            .notes
            .iter()
            .any(|note| note.contains("matches more than 4096 paths")),
        "{:?}",
        found.notes
    );
    let found = node.look(vec![Group {
        shares: 1000,
        ..of_paths("many", &pattern)
    }]);
    assert_eq!(found.inventory.groups[0].devices.len(), 32);
    assert!(
        found
            .notes
            .iter()
            .any(|note| note.contains("has 4096 devices: only 32 are offered"))
    );
}

#[test]
fn whatever_byte_is_in_a_name_the_id_is_valid() {
    let node = DeviceTree::new();
    for byte in (1..=255_u8).filter(|byte| *byte != b'/') {
        fs::write(
            node.dev("")
                .join(std::ffi::OsStr::from_bytes(&[b'x', byte, b'y'])),
            "",
        )
        .unwrap();
    }
    fs::write(node.dev("").join("z".repeat(255)), "").unwrap();
    let found = node.look(vec![of_paths("odd", &[node.pattern("[xz]*")])]);
    let devices = &found.inventory.groups[0].devices;
    // The bytes above 127 are not valid UTF-8 by themselves: no protocol can represent such a name.
    assert_eq!(devices.len(), 126 + 1);
    assert!(
        devices
            .iter()
            .all(|device| crate::identity::is_id(&device.id)),
        "{devices:?}"
    );
    let distinct: BTreeSet<&str> = devices.iter().map(|device| device.id.as_str()).collect();
    assert_eq!(distinct.len(), devices.len());
}

#[test]
fn files_of_the_kernel_that_are_huge_or_odd_do_no_harm() {
    let node = DeviceTree::new();
    node.usb("1-2", Some(&"9".repeat(5000)), 4);
    node.usb("1-3", Some("\u{1b}[2J\u{0}\n../../etc"), 5);
    node.files(
        "pci0000:00/0000:00:14.0",
        &[("numa_node", "99999999999999999999")],
    );
    let devices = node.devices(usb("1a86", ""));
    assert_eq!(
        ids(&devices),
        [
            ("1a86:7523:__2J__.._.._etc", true),
            ("1a86:7523:usb-1-2", true)
        ]
    );
    assert!(devices.iter().all(|device| device.numa_node.is_none()));
    // A link to itself, and a directory in the place of a file.
    let sys = node.0.path().join("sys");
    symlink("1-9", sys.join("bus/usb/devices/1-9")).unwrap();
    fs::create_dir_all(sys.join("bus/usb/devices/1-8/idVendor")).unwrap();
    assert_eq!(node.devices(usb("1a86", "")).len(), 2);
}

#[test]
fn what_a_task_gets_with_any_device_is_the_groups() {
    let lines = "vendor = \"acme\"\ntype = \"tpu\"\npaths = [\"/dev/none*\"]\nresource = \"acme.com/tpu\"\nshares = 3\n\
                 quota = { nomad = 1 }\nshared = [\"/dev/null\"]\nenv = \"ACME\"\nenvironment = { A = \"1\" }\n\
                 mounts = [{ host_path = \"/opt\", container_path = \"/o\", read_only = true }]\n\
                 attributes = { memory = \"16 GiB\" }";
    let group: Group = toml::from_str(lines).unwrap();
    let group = DeviceTree::new()
        .look(vec![group])
        .inventory
        .groups
        .remove(0);
    assert_eq!(
        (&*group.resource, group.shares, &*group.variable),
        ("acme.com/tpu", 3, "ACME")
    );
    assert_eq!(
        group.attributes["memory"],
        Fact::Whole(16, "GiB".to_owned())
    );
    assert_eq!(
        (
            group.env["A"].as_str(),
            group.shared.len(),
            group.quota.len()
        ),
        ("1", 1, 1)
    );
    assert_eq!(
        (
            group.mounts[0].destination.to_str(),
            group.mounts[0].readonly
        ),
        (Some("/o"), true)
    );
}
