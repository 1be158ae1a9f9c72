//! The private resources of one instance on this machine: directories, network, cgroup, configuration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MsFlags, mount};
use nix::unistd::Pid;
use parking_lot::Mutex;
use toml::{Table, Value};

use crate::bad_disks::Ext4Disk;
use crate::network::{self, TestNetwork};
use crate::prereq;
use crate::scratch::{self, Scratch};

/// Everything that one daemon under test uses alone, so that many can run at the same time.
///
/// Dropping it kills every process that belongs to it (including a managed containerd, shims and containers),
/// unmounts, and removes the cgroups, the bridge, its packet rules and the directory. Drop the daemon first.
#[derive(Debug)]
pub struct PrivateRoot {
    network: TestNetwork,
    bridge: TestNetwork,
    disks: Mutex<Vec<PathBuf>>,
    // Must be the last field: dropping the directory removes the files that the other fields use.
    scratch: Scratch,
}

impl PrivateRoot {
    /// Creates the directories and the CNI configuration.
    ///
    /// # Panics
    /// When a prerequisite is missing; the message names its package.
    #[track_caller]
    #[must_use]
    pub fn new() -> Self {
        prereq::require_all();
        let scratch = Scratch::new();
        let network = TestNetwork::new(scratch.digits(), &scratch.path().join(network::NODE_DIR));
        let bridge =
            TestNetwork::of_gateway(scratch.digits(), &scratch.path().join(network::GATEWAY_DIR));
        let root = Self {
            network,
            bridge,
            disks: Mutex::default(),
            scratch,
        };
        for dir in [
            root.state(),
            root.run(),
            root.certs(),
            root.cdi(),
            root.log_dir(),
        ] {
            fs::create_dir_all(dir).expect("the scratch directory can be written");
        }
        root.network.write_conflist(&root.cni_conf(), false);
        root.write_network_defaults();
        root
    }

    /// Not by keys, which programs of former versions would refuse.
    fn write_network_defaults(&self) {
        fs::write(self.network_defaults(), "version = 1\ndriver = \"cni\"\n")
            .expect("the scratch directory can be written");
    }

    /// The daemon's record of the defaults of its networks. All nodes of tests have those of CNI plugins, unless a test removes the file
    /// before the first start, or sets the keys.
    #[must_use]
    pub fn network_defaults(&self) -> PathBuf {
        self.state().join("network-defaults.toml")
    }

    /// The directory that holds everything.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.scratch.path()
    }

    /// The network of its pods.
    #[must_use]
    pub fn network(&self) -> &TestNetwork {
        &self.network
    }

    /// The gateway's own network.
    #[must_use]
    pub fn bridge(&self) -> &TestNetwork {
        &self.bridge
    }

    /// Mounts a small disk on a directory: a tmpfs with these options, for example `size=32m,nr_inodes=2000`.
    ///
    /// # Panics
    /// When it cannot be mounted.
    pub fn small_disk(&self, dir: &Path, options: &str) {
        fs::create_dir_all(dir).expect("the scratch directory can be written");
        mount(
            Some("tmpfs"),
            dir,
            Some("tmpfs"),
            MsFlags::empty(),
            Some(options),
        )
        .expect("root can mount a tmpfs");
        self.cover(dir);
    }

    /// Notes that a disk is mounted there, which hides what was there.
    fn cover(&self, dir: &Path) {
        self.disks.lock().push(dir.to_owned());
        if dir == self.state() {
            self.write_network_defaults();
        }
    }

    /// Mounts a disk with ext4 on a directory.
    ///
    /// # Panics
    /// When it cannot be mounted, or there are no loop devices.
    #[track_caller]
    #[must_use]
    pub fn ext4_disk(&self, dir: &Path) -> Ext4Disk {
        let disk = Ext4Disk::mounted(self.path().join("disk.img"), dir);
        self.cover(dir);
        disk
    }

    /// The mount points of [`PrivateRoot::small_disk`] and [`PrivateRoot::ext4_disk`].
    #[must_use]
    pub fn disks(&self) -> Vec<PathBuf> {
        self.disks.lock().clone()
    }

    /// From now on gives pods IPv6 addresses beside the IPv4 ones.
    pub fn use_dual_stack(&self) {
        self.network.write_conflist(&self.cni_conf(), true);
    }

    /// The daemon's `paths.state`.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.path().join("state")
    }

    /// The daemon's `paths.run`.
    #[must_use]
    pub fn run(&self) -> PathBuf {
        self.path().join("run")
    }

    /// The CNI configuration directory.
    #[must_use]
    pub fn cni_conf(&self) -> PathBuf {
        self.path().join("cni/net.d")
    }

    /// The directory of registry hosts (`<host>/hosts.toml`).
    #[must_use]
    pub fn certs(&self) -> PathBuf {
        self.path().join("certs.d")
    }

    /// The directory of vendors' files about devices.
    #[must_use]
    pub fn cdi(&self) -> PathBuf {
        self.path().join("cdi.d")
    }

    /// A directory for the logs of pods.
    #[must_use]
    pub fn log_dir(&self) -> PathBuf {
        self.path().join("pods")
    }

    /// The CRI socket.
    #[must_use]
    pub fn cri_socket(&self) -> PathBuf {
        self.run().join("cri.sock")
    }

    /// The runtime directory of the units, which a test makes that starts processes as units do.
    #[must_use]
    pub fn unit_dir(&self) -> PathBuf {
        self.path().join("unit")
    }

    /// The configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.path().join("config.toml")
    }

    /// Copies a binary to where its daemon is run from, [`crate::daemon::Daemon::program`], as a package manager does: the
    /// new file takes the name of the old one, which may be running.
    ///
    /// # Panics
    /// When it cannot be copied.
    #[track_caller]
    pub fn put_program(&self, binary: &Path) {
        let program = self.path().join("switchyard");
        let draft = program.with_extension("new");
        // Copied by another process: a child that another test forks meanwhile would inherit a descriptor for
        // writing, and executing the file would fail with ETXTBSY.
        let install = prereq::require("install", "coreutils");
        let installed = Command::new(install)
            .arg("-m755")
            .arg(binary)
            .arg(&draft)
            .status();
        assert!(
            installed.is_ok_and(|status| status.success()),
            "the binary cannot be copied"
        );
        fs::rename(&draft, &program).expect("the root can be written");
    }

    /// The file that the daemon's output goes to.
    #[must_use]
    pub fn daemon_log(&self) -> PathBuf {
        self.path().join("daemon.log")
    }

    /// The name that every cgroup of this root contains; with systemd, the slice has this name and `.slice`.
    #[must_use]
    pub fn cgroup_name(&self) -> String {
        scratch::cgroup_name(self.scratch.digits())
    }

    /// The cgroup parent for pods, in the form of the cgroup driver in use: a path, or a slice where systemd
    /// runs with cgroup v2.
    #[must_use]
    pub fn cgroup_parent(&self) -> String {
        let systemd = Path::new("/run/systemd/system").is_dir();
        let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        format!(
            "/{}{}",
            self.cgroup_name(),
            if systemd && unified { ".slice" } else { "" }
        )
    }

    /// The process that the daemon has recorded as its containerd or its logkeeper; none before it has
    /// started one.
    #[must_use]
    pub fn managed(&self, name: &str) -> Option<Pid> {
        let text = fs::read_to_string(self.run().join(format!("{name}/{name}.pid"))).ok()?;
        // The second field distinguishes the process from a later one with the same id.
        text.split_whitespace()
            .next()?
            .parse()
            .ok()
            .map(Pid::from_raw)
    }

    /// The file of a blob in containerd's content store.
    #[must_use]
    pub fn blob(&self, digest: &str) -> PathBuf {
        let blobs = self
            .state()
            .join("containerd/root/io.containerd.content.v1.content/blobs");
        blobs.join(digest.replacen(':', "/", 1))
    }

    /// The socket of the managed containerd, once it exists: the daemon chooses its path below the run
    /// directory.
    #[must_use]
    pub fn containerd_socket(&self) -> Option<PathBuf> {
        fn find_containerd_socket(dir: &Path, depth: usize) -> Option<PathBuf> {
            let socket = dir.join("containerd.sock");
            if socket.exists() {
                return Some(socket);
            }
            let below = fs::read_dir(dir)
                .ok()?
                .flatten()
                .filter(|entry| depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()));
            below
                .map(|entry| entry.path())
                .find_map(|dir| find_containerd_socket(&dir, depth - 1))
        }
        find_containerd_socket(&self.run(), 2)
    }

    /// Writes the configuration: the private paths and names of the instance, overlaid with `extra`.
    ///
    /// # Panics
    /// When `extra` is not TOML.
    #[track_caller]
    pub fn write_config(&self, extra: &str) {
        let base = format!(
            "version = 1\n\
             [paths]\nstate = {:?}\nrun = {:?}\n\
             [log]\nlevel = \"info\"\nformat = \"text\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n\
             [containerd]\nmode = \"managed\"\n\
             [network]\nconf_dir = {:?}\nbin_dirs = [{:?}]\n\
             [network.bridge]\nname = {:?}\nsubnets = [{:?}]\naddresses_dir = {:?}\n\
             [devices]\ncdi_spec_dirs = [{:?}]\n\
             [registry]\nconfig_dirs = [{:?}]\n",
            self.state(),
            self.run(),
            self.cni_conf(),
            prereq::CNI_BIN_DIR,
            self.bridge.bridge(),
            self.bridge.subnet(),
            self.bridge.data_dir(),
            self.cdi(),
            self.certs()
        );
        let config = overlaid(&base, extra).to_string();
        fs::write(self.config(), config).expect("the scratch directory can be written");
    }

    /// Changes `network.bridge.driver` in the configuration that was written with it, for the next start.
    ///
    /// # Panics
    /// When there is no such configuration.
    pub fn set_bridge_driver(&self, driver: &str) {
        let text = fs::read_to_string(self.config()).expect("it was written");
        let mut config: Table = text.parse().expect("it was written as TOML");
        config["network"]["bridge"]["driver"] = driver.into();
        fs::write(self.config(), config.to_string()).expect("the scratch directory can be written");
    }
}

impl Default for PrivateRoot {
    fn default() -> Self {
        Self::new()
    }
}

/// A configuration, overlaid with another one.
#[track_caller]
pub(crate) fn overlaid(base: &str, extra: &str) -> Table {
    let mut config: Table = base
        .parse()
        .expect("paths of a test need no escapes in TOML");
    let extra: Table = extra
        .parse()
        .unwrap_or_else(|error| panic!("the extra configuration is wrong: {error}"));
    overlay(&mut config, extra);
    config
}

/// Overlays `base` with `extra`, table by table.
fn overlay(base: &mut Table, extra: Table) {
    for (key, value) in extra {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => overlay(below, above),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}
