//! A node that a test creates: `/dev` and `/sys` in a directory.

use super::*;

/// A node with no devices.
pub(super) struct DeviceTree(pub(super) TempDir);

impl DeviceTree {
    pub(super) fn new() -> Self {
        let node = Self(tempfile::tempdir().unwrap());
        for dir in [
            "dev",
            "sys/dev/char",
            "sys/dev/block",
            "sys/bus/usb/devices",
            "sys/bus/pci/devices",
            "cdi",
        ] {
            fs::create_dir_all(node.0.path().join(dir)).unwrap();
        }
        node
    }

    pub(super) fn dev(&self, name: &str) -> PathBuf {
        self.0.path().join("dev").join(name)
    }

    pub(super) fn pattern(&self, name: &str) -> String {
        self.dev(name).display().to_string()
    }

    pub(super) fn make(&self, name: &str, kind: SFlag, number: (u64, u64)) {
        fs::create_dir_all(self.dev(name).parent().unwrap()).unwrap();
        mknod(
            &self.dev(name),
            kind,
            Mode::S_IRUSR,
            makedev(number.0, number.1),
        )
        .expect("these tests make device nodes and so must run as root");
    }

    pub(super) fn char(&self, name: &str, number: (u64, u64)) {
        self.make(name, SFlag::S_IFCHR, number);
    }

    /// Writes files below a directory of sysfs.
    pub(super) fn files(&self, dir: &str, files: &[(&str, &str)]) {
        let dir = self.0.path().join("sys/devices").join(dir);
        fs::create_dir_all(&dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), format!("{text}\n")).unwrap();
        }
    }

    /// Creates a node and its description in sysfs.
    pub(super) fn described(&self, dir: &str, name: &str, number: (u64, u64), subsystem: &str) {
        self.char(name, number);
        self.files(
            dir,
            &[("uevent", &format!("MAJOR={}\nDEVNAME={name}", number.0))],
        );
        let sys = self.0.path().join("sys");
        symlink(
            format!("../../class/{subsystem}"),
            sys.join("devices").join(dir).join("subsystem"),
        )
        .unwrap();
        let link = sys
            .join("dev/char")
            .join(format!("{}:{}", number.0, number.1));
        symlink(sys.join("devices").join(dir), link).unwrap();
    }

    /// A USB device with a serial port, plugged into a port of a controller on the PCI bus.
    pub(super) fn usb(&self, port: &str, serial: Option<&str>, tty: u64) {
        let dir = format!("pci0000:00/0000:00:14.0/usb1/{port}");
        self.files("pci0000:00/0000:00:14.0", &[("numa_node", "1")]);
        self.files(
            "pci0000:00/0000:00:14.0/usb1",
            &[("idVendor", "1d6b"), ("idProduct", "0002")],
        );
        self.described(&dir, &format!("bus/usb/001/{tty:03}"), (189, tty), "usb");
        self.files(&dir, &[("idVendor", "1a86"), ("idProduct", "7523")]);
        if let Some(serial) = serial {
            self.files(&dir, &[("serial", serial)]);
        }
        let of_tty = format!("{dir}/{port}:1.0/ttyUSB{tty}/tty/ttyUSB{tty}");
        self.described(&of_tty, &format!("ttyUSB{tty}"), (188, tty), "tty");
        let sys = self.0.path().join("sys");
        symlink(
            sys.join("devices").join(dir),
            sys.join("bus/usb/devices").join(port),
        )
        .unwrap();
    }

    /// A display on the PCI bus.
    pub(super) fn pci(&self, address: &str, card: u64, numa: &str) {
        let dir = format!("pci0000:3a/{address}");
        self.files(
            &dir,
            &[
                ("vendor", "0x10de"),
                ("device", "0x2230"),
                ("class", "0x030000"),
                ("numa_node", numa),
            ],
        );
        for (name, minor) in [
            (format!("card{card}"), card),
            (format!("renderD{}", 128 + card), 128 + card),
        ] {
            self.described(
                &format!("{dir}/drm/{name}"),
                &format!("dri/{name}"),
                (226, minor),
                "drm",
            );
        }
        let sys = self.0.path().join("sys");
        symlink(
            sys.join("devices").join(dir),
            sys.join("bus/pci/devices").join(address),
        )
        .unwrap();
    }

    pub(super) fn search(&self, groups: Vec<Group>) -> Search {
        let roots = Roots {
            dev: self.0.path().join("dev"),
            sys: self.0.path().join("sys"),
        };
        Search {
            groups,
            cdi_spec_dirs: vec![self.0.path().join("cdi")],
            roots,
        }
    }

    pub(super) fn look(&self, groups: Vec<Group>) -> Found {
        scan(&self.search(groups))
    }

    /// The devices of one group.
    pub(super) fn devices(&self, group: Group) -> Vec<Device> {
        self.look(vec![group]).inventory.groups[0].devices.clone()
    }

    /// The names of a device's nodes.
    pub(super) fn nodes(&self, device: &Device) -> Vec<String> {
        let below = |path: &Path| {
            path.strip_prefix(self.0.path().join("dev"))
                .unwrap()
                .display()
                .to_string()
        };
        device
            .nodes
            .iter()
            .map(|node| below(&node.host_path))
            .collect()
    }
}
