//! Checks of a kubelet on the node.

use std::io;
use std::path::{Path, PathBuf};

use switchyard_config::ContainerdMode;
use switchyard_containerd::config::CgroupDriverChoice;

use super::codes::orchestrators::{
    CGROUP_DRIVER, CRI_DISABLED, CRICTL, NO_PLUGIN_DIRECTORY, OTHER_RUNTIME, RUNTIME_SOCKET,
    STALE_RUNTIME_SOCKET, SWAP,
};
use super::facts::{Facts, seen_by};
use super::finding::{Finding, Severity};
use super::text::{top_level_value, yaml_value};
use super::view::FileKind;

/// Path of the configuration with kubeadm and most other installers.
const CONFIG: &str = "/var/lib/kubelet/config.yaml";

/// The extension of the files that a kubelet reads in the directory of its option `--config-dir`.
const DROP_IN: &str = "conf";

/// At most so many of these files are read.
const DROP_INS_MAX: usize = 256;

/// Path of kubeadm's arguments.
const KUBEADM_FLAGS: &str = "/var/lib/kubelet/kubeadm-flags.env";

/// The sockets of other runtimes, and of runtimes that do not exist any more.
const RUNTIME_SOCKETS: [&str; 4] = [
    "/run/dockershim.sock",
    "/run/cri-dockerd.sock",
    "/run/crio/crio.sock",
    "/run/containerd/containerd.sock",
];

/// From this version on a kubelet asks the runtime for the cgroup driver.
const ASKS_FOR_DRIVER: (u32, u32) = (1, 34);

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    if facts.has_kubelet() {
        let kubelet = Kubelet::of(facts);
        found.extend(kubelet.endpoint_findings(facts));
        found.extend(kubelet.cgroup_driver(facts));
        found.extend(kubelet.swap(facts));
        found.extend(plugin_directory(facts));
    }
    found.extend(stale_sockets(facts));
    found.extend(crictl(facts));
    found
}

/// The known configuration of the kubelet: its arguments, those that kubeadm gives it, and its files.
struct Kubelet {
    args: Vec<(String, String)>,
    /// The content of each file: a key of a later one wins over that of an earlier one.
    files: Vec<String>,
}

impl Kubelet {
    fn of(facts: &Facts) -> Self {
        let mut args = Vec::new();
        let process = facts.running("kubelet").next();
        let options = [
            "container-runtime-endpoint",
            "cgroup-driver",
            "fail-swap-on",
            "config",
            "config-dir",
        ]
        .map(str::to_owned);
        for option in options {
            let of_process = process.and_then(|process| process.values(&option).last().copied());
            let value = of_process
                .map(str::to_owned)
                .or_else(|| kubeadm_flag(facts, &option));
            args.extend(value.map(|value| (option, value)));
        }
        let mut kubelet = Self {
            args,
            files: Vec::new(),
        };
        let seen = |path: &str| match process {
            Some(process) => seen_by(&*facts.view, process, Path::new(path)).ok(),
            None => Some(PathBuf::from(path)),
        };
        let config = kubelet.arg("config").unwrap_or(CONFIG);
        let mut files: Vec<PathBuf> = seen(config).into_iter().collect();
        if let Some(dir) = kubelet.arg("config-dir").and_then(seen) {
            files.extend(drop_ins(facts, &dir));
        }
        kubelet.files = files
            .iter()
            .filter_map(|file| facts.view.text(file))
            .collect();
        kubelet
    }

    fn arg(&self, option: &str) -> Option<&str> {
        self.args
            .iter()
            .find(|(name, _)| name == option)
            .map(|(_, value)| value.as_str())
    }

    /// A setting: an argument wins over the key of a file.
    fn setting(&self, option: &str, key: &str) -> Option<String> {
        let mut files = self.files.iter().rev();
        self.arg(option)
            .map(str::to_owned)
            .or_else(|| files.find_map(|file| top_level_value(file, key)))
    }

    fn endpoint(&self) -> Option<PathBuf> {
        let endpoint = self.setting("container-runtime-endpoint", "containerRuntimeEndpoint")?;
        Some(socket_of(&endpoint))
    }

    fn is_ours(&self, facts: &Facts) -> bool {
        self.endpoint()
            .is_some_and(|endpoint| endpoint == without_var(&facts.served.cri_socket()))
    }

    fn endpoint_findings(&self, facts: &Facts) -> Vec<Finding> {
        let Some(endpoint) = self.endpoint() else {
            return Vec::new();
        };
        let shown = endpoint.display();
        let ours = facts.served.cri_socket();
        match (self.is_ours(facts), facts.served.cri.enabled) {
            (true, true) => return Vec::new(),
            (true, false) => {
                let found = format!("the kubelet uses {shown}, and cri.enabled is false");
                return vec![Finding::new(&CRI_DISABLED, found)];
            }
            (false, _) => {}
        }
        let mut found = Vec::new();
        if facts.served.cri.enabled && !is_of_another_daemon(facts, &endpoint) {
            let text = format!(
                "the kubelet uses {shown}, Switchyard serves {}",
                ours.display()
            );
            found.push(Finding::new(&OTHER_RUNTIME, text));
        }
        let why = match facts.view.connect(&endpoint).map_err(|error| error.kind()) {
            Err(io::ErrorKind::ConnectionRefused) => "the file is there, but nobody listens",
            Err(io::ErrorKind::NotFound) => "there is no such file",
            _ => return found,
        };
        found.push(Finding::new(&RUNTIME_SOCKET, format!("{shown}: {why}")));
        found
    }

    fn cgroup_driver(&self, facts: &Facts) -> Option<Finding> {
        if !self.is_ours(facts) {
            return None;
        }
        let ours = match facts.config.cgroup.driver {
            CgroupDriverChoice::Systemd => "systemd",
            CgroupDriverChoice::Cgroupfs => "cgroupfs",
            CgroupDriverChoice::Auto if facts.view.has_systemd() && facts.is_unified() => "systemd",
            CgroupDriverChoice::Auto => "cgroupfs",
        };
        let theirs = self
            .setting("cgroup-driver", "cgroupDriver")
            .unwrap_or_else(|| "cgroupfs".to_owned());
        (theirs != ours).then(|| {
            let found =
                format!("the kubelet's cgroupDriver is {theirs}, cgroup.driver here is {ours}");
            let asks = kubelet_version(facts).is_some_and(|version| version >= ASKS_FOR_DRIVER);
            let severity = if asks {
                Severity::Note
            } else {
                Severity::Error
            };
            Finding::new(&CGROUP_DRIVER, found).severity(severity)
        })
    }

    fn swap(&self, facts: &Facts) -> Option<Finding> {
        let text = facts.view.text("/proc/swaps")?;
        let devices: Vec<&str> = text
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        let fails = self.setting("fail-swap-on", "failSwapOn").as_deref() != Some("false");
        (fails && !devices.is_empty()).then(|| {
            let found = format!(
                "/proc/swaps has {}, and failSwapOn is true",
                devices.join(", ")
            );
            Finding::new(&SWAP, found).command("swapoff -a")
        })
    }
}

/// The files of a directory that a kubelet reads after its configuration file, in its order.
fn drop_ins(facts: &Facts, dir: &Path) -> Vec<PathBuf> {
    let names = facts.view.list(dir).unwrap_or_default();
    let paths = names.iter().map(|name| dir.join(name));
    paths
        .filter(|path| path.extension().is_some_and(|it| it == DROP_IN))
        .take(DROP_INS_MAX)
        .collect()
}

/// An argument in the file of kubeadm: `KUBELET_KUBEADM_ARGS="--name=value ..."`.
fn kubeadm_flag(facts: &Facts, option: &str) -> Option<String> {
    let text = facts.view.text(KUBEADM_FLAGS)?;
    let start = format!("--{option}=");
    let mut values = text
        .split(|c: char| c.is_whitespace() || c == '"')
        .filter_map(|word| word.strip_prefix(&start));
    values.next_back().map(str::to_owned)
}

fn kubelet_version(facts: &Facts) -> Option<(u32, u32)> {
    let text = facts.output("kubelet", &["--version"])?;
    let mut numbers = text.trim().strip_prefix("Kubernetes v")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The path of an endpoint, without its scheme.
fn socket_of(endpoint: &str) -> PathBuf {
    without_var(Path::new(
        endpoint.strip_prefix("unix://").unwrap_or(endpoint),
    ))
}

/// Returns whether another daemon of the node serves pods on this socket.
fn is_of_another_daemon(facts: &Facts, socket: &Path) -> bool {
    facts
        .other_daemons()
        .iter()
        .any(|(_, other)| other.cri.enabled && without_var(&other.cri_socket()) == socket)
}

/// A path in which `/var/run`, which is a link, is `/run`.
fn without_var(path: &Path) -> PathBuf {
    path.strip_prefix("/var/run")
        .map_or_else(|_| path.to_owned(), |rest| Path::new("/run").join(rest))
}

fn plugin_directory(facts: &Facts) -> Option<Finding> {
    let devices = &facts.config.devices;
    let offers = devices.kubelet.enabled
        && devices
            .groups
            .iter()
            .any(|group| !group.resource.is_empty());
    let directory = &devices.kubelet.directory;
    (offers && !facts.view.exists(directory)).then(|| {
        Finding::new(
            &NO_PLUGIN_DIRECTORY,
            format!("{} does not exist", directory.display()),
        )
    })
}

fn stale_sockets(facts: &Facts) -> Vec<Finding> {
    let config = &facts.config;
    let is_ours = |path: &Path| {
        config.containerd.mode == ContainerdMode::External && config.containerd_socket() == path
    };
    let is_stale = |path: &Path| {
        facts
            .view
            .stat(path)
            .is_ok_and(|file| file.kind == FileKind::Socket)
            && facts
                .view
                .connect(path)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    let stale = RUNTIME_SOCKETS
        .map(Path::new)
        .into_iter()
        .filter(|path| !is_ours(path) && is_stale(path));
    stale
        .map(|path| {
            let path = path.display();
            Finding::new(&STALE_RUNTIME_SOCKET, format!("{path}: nobody listens"))
                .command(format!("rm {path}"))
        })
        .collect()
}

fn crictl(facts: &Facts) -> Option<Finding> {
    if !facts.served.cri.enabled {
        return None;
    }
    let text = facts.view.text("/etc/crictl.yaml")?;
    let endpoint = yaml_value(&text, "runtime-endpoint")?;
    let ours = facts.served.cri_socket();
    let socket = socket_of(endpoint);
    (socket != without_var(&ours) && !is_of_another_daemon(facts, &socket)).then(|| {
        let found = format!(
            "/etc/crictl.yaml: runtime-endpoint is {endpoint}, not unix://{}",
            ours.display()
        );
        Finding::new(&CRICTL, found)
    })
}
