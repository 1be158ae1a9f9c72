//! A node that is held in memory.

use switchyard_linux::host_features::HostFeatures;

use super::*;
use crate::NetworkTable;

/// A node that is held in memory.
#[derive(Debug, Clone)]
pub(super) struct TestNode {
    pub(super) files: BTreeMap<PathBuf, String>,
    pub(super) programs: BTreeSet<PathBuf>,
    pub(super) links: BTreeMap<PathBuf, PathBuf>,
    pub(super) device_files: BTreeMap<PathBuf, FileFacts>,
    /// By socket, true if a process listens on it.
    pub(super) sockets: BTreeMap<PathBuf, bool>,
    /// Exit status and output, by the command with its arguments.
    pub(super) commands: BTreeMap<String, (i32, String)>,
    pub(super) space: DiskSpace,
    pub(super) groups: BTreeSet<String>,
    pub(super) features: HostFeatures,
    /// The daemons' tables of nf_tables, or why they cannot be read.
    pub(super) tables: Result<Vec<NetworkTable>, String>,
    /// By the value of a variable that causes it.
    pub(super) start_faults: BTreeMap<String, String>,
    /// The configuration by its file; the default one is `config.toml`.
    pub(super) configs: BTreeMap<PathBuf, String>,
    /// The daemon's answers; `None` while it does not run.
    pub(super) status: Option<StatusReport>,
    /// Its answer with the configuration in force; `None` if it has none.
    pub(super) in_force: Option<String>,
    pub(super) devices: DevicesView,
    pub(super) swarm: SwarmView,
    pub(super) objects: Objects,
    pub(super) denied: Vec<PathBuf>,
    /// The processes of containers.
    pub(super) contained: BTreeSet<i32>,
    /// The defaults of its networks. Who examines a healthy node may not look, so that those of the tests' configurations are in force.
    pub(super) network_defaults: Result<FoundDefaults, io::ErrorKind>,
}

impl NodeView for TestNode {
    fn read(&self, path: &Path, max: usize) -> io::Result<Vec<u8>> {
        let text = self.files.get(path).ok_or(io::ErrorKind::NotFound)?;
        if text.len() > max {
            Err(io::ErrorKind::FileTooLarge.into())
        } else {
            Ok(text.clone().into_bytes())
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let below = self
            .paths()
            .filter_map(|path| path.strip_prefix(dir).ok()?.components().next());
        let names: BTreeSet<String> = below
            .map(|name| name.as_os_str().to_string_lossy().into_owned())
            .collect();
        if names.is_empty() {
            Err(io::ErrorKind::NotFound.into())
        } else {
            Ok(names.into_iter().collect())
        }
    }

    fn stat(&self, path: &Path) -> io::Result<FileFacts> {
        let path = self.links.get(path).map_or(path, PathBuf::as_path);
        if let Some(device) = self.device_files.get(path) {
            return Ok(*device);
        }
        let (kind, mode) = if self.programs.contains(path) {
            (FileKind::Regular, 0o755)
        } else if self.files.contains_key(path) {
            (FileKind::Regular, 0o644)
        } else if self.sockets.contains_key(path) {
            (FileKind::Socket, 0o660)
        } else if self.paths().any(|known| known.starts_with(path)) {
            (FileKind::Directory, 0o755)
        } else {
            return Err(io::ErrorKind::NotFound.into());
        };
        Ok(FileFacts {
            kind,
            mode,
            uid: 0,
            character_device: None,
        })
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        self.links
            .get(path)
            .cloned()
            .ok_or(io::ErrorKind::InvalidInput.into())
    }

    fn space(&self, _: &Path) -> io::Result<DiskSpace> {
        Ok(self.space)
    }

    fn run(&self, program: &Path, args: &[&str]) -> Result<CommandOutput, CommandError> {
        let name = program
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let command = [&[name.as_str()], args].concat().join(" ");
        match self
            .commands
            .iter()
            .find(|(known, _)| command.starts_with(*known))
        {
            Some((_, (status, stdout))) => Ok(CommandOutput {
                status: Some(*status),
                stdout: stdout.clone().into_bytes(),
                stderr: Vec::new(),
                is_cut: false,
            }),
            None => Err(CommandError::Deadline(command)),
        }
    }

    fn connect(&self, socket: &Path) -> io::Result<()> {
        if self.denied.iter().any(|denied| denied == socket) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        match self.sockets.get(socket) {
            Some(true) => Ok(()),
            Some(false) => Err(io::ErrorKind::ConnectionRefused.into()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn is_own_root(&self, pid: i32) -> bool {
        !self.contained.contains(&pid)
    }

    fn has_group(&self, name: &str) -> bool {
        self.groups.contains(name)
    }

    fn host_features(&self, _: &Path) -> HostFeatures {
        self.features.clone()
    }

    fn network_tables(&self) -> Result<Vec<NetworkTable>, String> {
        self.tables.clone()
    }

    fn start_faults(&self, _: &Config, environment: &[(String, String)]) -> Vec<String> {
        environment
            .iter()
            .filter_map(|(_, value)| self.start_faults.get(value).cloned())
            .collect()
    }

    fn load(&self, sources: &Sources) -> Result<Loaded, ConfigError> {
        let name = sources
            .file
            .clone()
            .unwrap_or_else(|| "/etc/switchyard/config.toml".into());
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        std::fs::write(
            &file,
            self.configs
                .get(&name)
                .map_or("version = 1\n", String::as_str),
        )
        .unwrap();
        config::load_for_start(&Sources {
            file: Some(file),
            ..sources.clone()
        })
    }

    fn network_defaults(&self, state: &Path) -> Result<FoundDefaults, DefaultsError> {
        self.network_defaults.map_err(|kind| DefaultsError::Read {
            path: state.to_owned(),
            source: kind.into(),
        })
    }

    fn ask(&self, socket: &Path, page: &str) -> Result<Vec<u8>, String> {
        let status = self
            .status
            .as_ref()
            .filter(|_| self.connect(socket).is_ok());
        let status = status.ok_or("connection refused")?;
        match page {
            "/statusz" => Ok(serde_json::to_vec(status).unwrap()),
            "/v1/devices" => Ok(serde_json::to_vec(&self.devices).unwrap()),
            "/v1/swarm" => Ok(serde_json::to_vec(&self.swarm).unwrap()),
            "/v1/objects" => Ok(serde_json::to_vec(&self.objects).unwrap()),
            "/v1/config" if let Some(text) = &self.in_force => Ok(text.clone().into_bytes()),
            other => Err(format!("there is no {other}")),
        }
    }

    fn denied(&self) -> Vec<PathBuf> {
        self.denied.clone()
    }
}

/// The character device with this minor number among those of memory.
pub(super) fn device(minor: u64, uid: u32, mode: u32) -> FileFacts {
    FileFacts {
        kind: FileKind::Other,
        mode,
        uid,
        character_device: Some((1, minor)),
    }
}

impl TestNode {
    /// A node on which nothing is to be found: with a kubelet, a Nomad agent and a daemon that serves both.
    pub(super) fn healthy() -> Self {
        let mut node = Self {
            files: BTreeMap::new(),
            programs: BTreeSet::new(),
            links: BTreeMap::new(),
            device_files: BTreeMap::new(),
            sockets: BTreeMap::new(),
            commands: BTreeMap::new(),
            space: DiskSpace {
                bytes: 100 << 30,
                free_bytes: 50 << 30,
                inodes: 1000,
                free_inodes: 900,
            },
            groups: BTreeSet::new(),
            features: HostFeatures::default(),
            tables: Ok(Vec::new()),
            start_faults: BTreeMap::new(),
            configs: BTreeMap::new(),
            status: Some(status()),
            in_force: None,
            devices: DevicesView::default(),
            swarm: SwarmView {
                state: "not_joined".to_owned(),
                ..SwarmView::default()
            },
            objects: Objects::default(),
            denied: Vec::new(),
            contained: BTreeSet::new(),
            network_defaults: Err(io::ErrorKind::PermissionDenied),
        };
        node.kernel();
        node.orchestrators();
        node.devices_of_memory();
        let sockets = [
            "admin.sock",
            "cri.sock",
            "nomad.sock",
            "logkeeper/logkeeper.sock",
            "containerd/containerd.sock",
        ];
        node.sockets = sockets
            .map(|name| (Path::new("/run/switchyard").join(name), true))
            .into();
        node.installed_programs();
        let unit = |name: &str| {
            format!(
                "Id={name}\nLoadState=loaded\nUnitFileState=enabled\nActiveState=active\nResult=success\n\
                 Delegate=yes\nKillMode=process\nStartLimitIntervalUSec=0\n"
            )
        };
        let units = ["switchyard.service", "switchyard-logkeeper.service"]
            .map(unit)
            .join("\n");
        node.command("systemctl show --property=Id", &units);
        node.command(
            "systemctl show --property=Environment",
            "LoadState=loaded\nEnvironment=SWITCHYARD_LOGKEEPER__MODE=external\n",
        );
        node.command("iptables --version", "iptables v1.8.9 (nf_tables)\n");
        node.command("iptables -S FORWARD", "-P FORWARD ACCEPT\n");
        node.command("runc --version", "runc version 1.5.1\n");
        node.command("crun --version", "crun version 1.30\n");
        node.command(
            "containerd --version",
            "containerd github.com/containerd/containerd v2.2.1 abc\n",
        );
        node.command("kubelet --version", "Kubernetes v1.33.1\n");
        node
    }

    fn devices_of_memory(&mut self) {
        let devices = [
            ("null", 3),
            ("zero", 5),
            ("full", 7),
            ("random", 8),
            ("urandom", 9),
        ];
        for (name, minor) in devices {
            let path = Path::new("/dev").join(name);
            self.device_files.insert(path, device(minor, 0, 0o666));
        }
    }

    fn installed_programs(&mut self) {
        let bin = [
            "containerd",
            "containerd-shim-runc-v2",
            "runc",
            "crun",
            "iptables",
            "ip6tables",
            "systemctl",
            "kubelet",
        ];
        self.programs
            .extend(bin.map(|name| Path::new("/usr/bin").join(name)));
        let plugins = ["bridge", "host-local", "firewall", "portmap"];
        self.programs
            .extend(plugins.map(|name| Path::new("/usr/lib/cni").join(name)));
    }

    pub(super) fn kernel(&mut self) {
        for (path, text) in [
            ("/proc/sys/kernel/osrelease", "6.1.0\n"),
            (
                "/proc/filesystems",
                "nodev\ttmpfs\nnodev\toverlay\n\text4\n",
            ),
            (
                "/lib/modules/6.1.0/modules.builtin",
                "kernel/fs/ext4/ext4.ko\n",
            ),
            (
                "/lib/modules/6.1.0/modules.dep",
                "kernel/net/bridge/bridge.ko.xz: x\nkernel/drivers/net/veth.ko.xz:\nkernel/net/netfilter/nft_chain_nat.ko.xz:\n\
                 kernel/net/netfilter/nft_nat.ko.xz:\nkernel/net/netfilter/nft_masq.ko.xz:\nkernel/net/netfilter/nft_ct.ko.xz:\n\
                 kernel/net/ipv4/netfilter/nft_fib_ipv4.ko.xz:\nkernel/net/ipv6/netfilter/nft_fib_ipv6.ko.xz:\n",
            ),
            ("/sys/module/nf_tables/refcnt", "1\n"),
            ("/sys/module/apparmor/parameters/enabled", "Y\n"),
            ("/proc/net/netfilter/nf_log", ""),
            ("/proc/sys/net/ipv4/ip_forward", "1\n"),
            ("/proc/sys/net/bridge/bridge-nf-call-iptables", "1\n"),
            ("/proc/sys/fs/inotify/max_user_instances", "8192\n"),
            ("/proc/sys/fs/inotify/max_user_watches", "524288\n"),
            ("/proc/sys/kernel/pid_max", "4194304\n"),
            ("/proc/sys/net/netfilter/nf_conntrack_count", "79\n"),
            ("/proc/sys/net/netfilter/nf_conntrack_max", "100\n"),
            ("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
            ("/proc/sys/net/ipv4/ip_local_reserved_ports", "\n"),
            (
                "/sys/fs/cgroup/cgroup.controllers",
                "cpuset cpu io memory pids\n",
            ),
            ("/proc/swaps", "Filename Type Size Used Priority\n"),
            (
                "/proc/self/mountinfo",
                "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n23 22 0:21 / /run rw,nosuid,noexec - tmpfs tmpfs rw\n",
            ),
            (
                "/proc/net/route",
                "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n",
            ),
            (
                "/etc/resolv.conf",
                "nameserver 192.0.2.53\nnameserver 2001:db8::53\n",
            ),
            (
                "/proc/net/if_inet6",
                "00000000000000000000000000000001 01 80 10 80       lo\n",
            ),
            ("/run/systemd/system/x", ""),
            ("/var/lib/switchyard/lock", ""),
        ] {
            self.file(path, text);
        }
        self.process(DAEMON, "/usr/bin/switchyard serve");
        self.file(
            &format!("/proc/{DAEMON}/environ"),
            "PATH=/usr/bin\0SWITCHYARD_LOGKEEPER__MODE=external\0",
        );
        self.file(
            &format!("/proc/{DAEMON}/limits"),
            "Max open files   1048576   1048576   files\n",
        );
    }

    pub(super) fn orchestrators(&mut self) {
        self.file(
            "/var/lib/kubelet/config.yaml",
            "cgroupDriver: systemd\ncontainerRuntimeEndpoint: unix:///run/switchyard/cri.sock\n",
        );
        self.file(
            "/etc/crictl.yaml",
            "runtime-endpoint: unix:///run/switchyard/cri.sock\n",
        );
        self.process(
            200,
            "/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml",
        );
        self.process(201, "/usr/bin/nomad agent -config /etc/nomad.d");
        self.file(
            "/etc/nomad.d/nomad.hcl",
            "data_dir = \"/opt/nomad/data\"\nclient {\n  enabled = true\n  max_dynamic_port = 29999\n}\n",
        );
        self.file(
            "/etc/nomad.d/switchyard.hcl",
            "plugin \"switchyard\" {}\nplugin \"switchyard-device\" {}\n",
        );
        for name in ["switchyard", "switchyard-device"] {
            self.links.insert(
                Path::new("/opt/nomad/data/plugins").join(name),
                "/usr/bin/switchyard".into(),
            );
        }
        self.programs.insert("/usr/bin/switchyard".into());
        self.file(
            "/etc/cni/net.d/10-net.conflist",
            r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"cni0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.85.0.0/16"}]]}},{"type":"portmap"}]}"#,
        );
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.files
            .keys()
            .chain(&self.programs)
            .chain(self.links.keys())
            .chain(self.sockets.keys())
    }

    pub(super) fn file(&mut self, path: &str, text: &str) {
        self.files.insert(path.into(), text.to_owned());
    }

    pub(super) fn remove(&mut self, path: &str) {
        self.files.retain(|known, _| !known.starts_with(path));
        self.programs.remove(Path::new(path));
        self.sockets.remove(Path::new(path));
        self.links.remove(Path::new(path));
        self.device_files.remove(Path::new(path));
    }

    pub(super) fn process(&mut self, pid: u32, command: &str) {
        self.file(
            &format!("/proc/{pid}/cmdline"),
            &(command.replace(' ', "\0") + "\0"),
        );
    }

    pub(super) fn socket(&mut self, path: &str, is_listening: bool) {
        self.sockets.insert(path.into(), is_listening);
    }

    pub(super) fn command(&mut self, command: &str, output: &str) {
        self.commands
            .insert(command.to_owned(), (0, output.to_owned()));
    }

    pub(super) fn config(&mut self, text: &str) {
        self.configs.insert(
            "/etc/switchyard/config.toml".into(),
            format!("version = 1\n{text}\n"),
        );
    }

    /// Ends the daemon as a kill does.
    pub(super) fn kill_daemon(&mut self) {
        self.status = None;
        self.remove(&format!("/proc/{DAEMON}"));
        for name in ["admin.sock", "cri.sock", "nomad.sock"] {
            self.sockets
                .insert(Path::new("/run/switchyard").join(name), false);
        }
    }
}
