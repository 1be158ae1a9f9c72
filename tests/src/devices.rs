//! Device nodes of a test, and a group that has one of them.

use std::fs;
use std::path::Path;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use switchyard_proto::cri::v1 as cri;

use crate::node::TestNode;
use crate::root::PrivateRoot;

/// Makes a device like `/dev/null`, `/dev/zero`, `/dev/full` or `/dev/urandom`, which are harmless: each has a
/// device number of its own.
///
/// # Panics
/// When the test does not run as root.
pub fn make_device(path: &Path) {
    let mode = Mode::S_IRUSR | Mode::S_IWUSR;
    let minor = match path.file_name().and_then(|name| name.to_str()) {
        Some("acme0") => 3,
        Some("acme1") => 5,
        Some("acme2") => 7,
        Some(_) | None => 9,
    };
    mknod(path, SFlag::S_IFCHR, mode, makedev(1, minor))
        .expect("tests make device nodes and so must run as root");
}

/// Makes the device of a group, and returns the configuration of the group.
///
/// # Panics
/// As [`make_device`].
#[must_use]
pub fn device_group(root: &PrivateRoot) -> String {
    let dir = root.path().join("dev");
    fs::create_dir(&dir).expect("the root can be written");
    make_device(&dir.join("acme0"));
    format!(
        "[devices.kubelet]\nenabled = false\n[[devices.groups]]\nvendor = \"acme\"\ntype = \"tpu\"\n\
         name = \"v2\"\npaths = [\"{}/acme0\"]\n",
        dir.display()
    )
}

/// The path of the device of that group.
#[must_use]
pub fn device_path(root: &PrivateRoot) -> String {
    root.path().join("dev/acme0").display().to_string()
}

/// A container with that device.
#[must_use]
pub fn container_with_device(node: &TestNode, name: &str) -> cri::ContainerConfig {
    let device = device_path(node.root());
    let mut container = node.container(name, &["sleep", "1000"]);
    let container_path = device.clone();
    container.devices = vec![cri::Device {
        host_path: device,
        container_path,
        permissions: "rw".to_owned(),
    }];
    container
}
