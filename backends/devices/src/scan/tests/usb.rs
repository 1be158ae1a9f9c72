//! USB devices.

use super::*;

#[test]
fn a_usb_device_has_all_of_its_nodes_and_is_known_by_its_serial_number_wherever_it_is_plugged_in() {
    let node = DeviceTree::new();
    node.usb("1-2", Some("A5 01"), 4);
    node.usb("1-3", None, 5);
    let devices = node.devices(usb("1a86", ""));
    assert_eq!(
        ids(&devices),
        [("1a86:7523:A5_01", true), ("1a86:7523:usb-1-3", true)]
    );
    assert_eq!(node.nodes(&devices[0]), ["bus/usb/001/004", "ttyUSB4"]);
    assert_eq!(
        (devices[0].numa_node, devices[0].pci_bus_id.as_deref()),
        (Some(1), Some("0000:00:14.0"))
    );
    assert_eq!(
        ids(&node.devices(usb("1A86", "A5 01"))),
        [("1a86:7523:A5_01", true)]
    );
    assert_eq!(ids(&node.devices(usb("0403", ""))), []);
    // Plugged in elsewhere, the device has another number and another node name.
    let moved = DeviceTree::new();
    moved.usb("1-4.1", Some("A5 01"), 7);
    assert_eq!(moved.devices(usb("1a86", ""))[0].id, devices[0].id);
}

#[test]
fn a_node_of_a_usb_device_is_known_by_the_same_and_belongs_to_whoever_has_the_device() {
    let node = DeviceTree::new();
    node.usb("1-2", Some("A501"), 4);
    let ttys = of_paths("tty", &[node.pattern("ttyUSB*")]);
    let devices = node.devices(ttys.clone());
    assert_eq!(ids(&devices), [("1a86:7523:A501:1.0-tty", true)]);
    assert_eq!(devices[0].aliases, [node.pattern("ttyUSB4")]);
    // A path without wildcards means whatever is at this path.
    assert_eq!(
        ids(&node.devices(of_paths("tty", &[node.pattern("ttyUSB4")]))),
        [("ttyUSB4", true)]
    );
    let found = node.look(vec![usb("1a86", ""), ttys]).inventory;
    assert_eq!(ids(&found.groups[0].devices), [("1a86:7523:A501", true)]);
    let refused = &found.groups[1].devices[0];
    assert_eq!(
        why(refused),
        "character device 188:4 belongs to device 1a86:7523:A501 of acme/tpu/usb"
    );
    assert!(
        refused.aliases.is_empty(),
        "what runs with the path has the device that owns it"
    );
}

#[test]
fn twins_are_told_apart_by_their_ports() {
    let node = DeviceTree::new();
    node.usb("1-2", Some("0001"), 4);
    node.usb("1-3", Some("0001"), 5);
    let devices = node.devices(usb("1a86", ""));
    assert!(
        devices
            .iter()
            .all(|device| device.id.starts_with("1a86:7523:0001-")),
        "{devices:?}"
    );
    let of_port = |nodes: &str| {
        devices
            .iter()
            .find(|device| node.nodes(device).contains(&nodes.to_owned()))
            .unwrap()
            .id
            .clone()
    };
    let again = DeviceTree::new();
    // In the reverse order, the kernel swaps their numbers.
    again.usb("1-3", Some("0001"), 4);
    again.usb("1-2", Some("0001"), 5);
    let swapped = again.devices(usb("1a86", ""));
    let at = swapped
        .iter()
        .find(|device| again.nodes(device).contains(&"ttyUSB4".to_owned()))
        .unwrap();
    assert_eq!(at.id, of_port("ttyUSB5"));
}
