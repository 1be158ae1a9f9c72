//! Checks of the kernel: file systems, modules, sysctls and limits.

use std::path::Path;

use switchyard_linux::node_limits;
use switchyard_operator_api::LimitView;

use super::codes::node::{
    BRIDGE_BYPASSES_RULES, CONNTRACK_FULL, FEW_FILES, FEW_INOTIFY, FEW_PIDS, LIMIT_NEAR,
    NO_FORWARDING, NO_NETWORK_FEATURE, NO_OVERLAY,
};
use super::facts::Facts;
use super::families::{forwarded, keeping_routers, learning_interfaces};
use super::finding::{Finding, Severity};

/// The largest list of modules that is read, in bytes.
const MODULES_MAX: usize = 16 << 20;

/// Features for networks: each is there if one of these modules is.
const NETWORK_FEATURES: [&[&str]; 3] = [&["bridge"], &["veth"], &["nf_tables", "ip_tables"]];

/// The default of fs.inotify.max_user_instances, which clusters use up.
const INSTANCES_MIN: u64 = 129;

/// The fewest watches that a node with a kubelet should allow.
const WATCHES_MIN: u64 = 65_536;

/// The fewest process ids that a node should have.
const PIDS_MIN: u64 = 65_536;

/// The fewest files that the daemon should be able to open.
const FILES_MIN: u64 = 65_536;

/// From which part of the table of connections on it is nearly full, in percent.
const CONNTRACK_PERCENT: u64 = 80;

/// From which part of it in use on another limit is nearly reached, in percent.
const NEAR: u64 = 90;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let modules = Modules::of(facts);
    let mut found = Vec::new();
    found.extend(overlay(facts, &modules));
    found.extend(network_features(&modules));
    found.extend(forwarding(facts));
    found.extend(bridged_packets(facts));
    found.extend(inotify(facts));
    found.extend(pids(facts));
    found.extend(files(facts));
    found.extend(near_limits(facts));
    found
}

/// The modules that are loaded or built in, or could be loaded.
pub(super) struct Modules {
    loaded: Vec<String>,
    /// The lists of the kernel's package; `None` if it has none here, as in some virtual machines.
    installed: Option<String>,
}

impl Modules {
    pub(super) fn of(facts: &Facts) -> Self {
        let view = &facts.view;
        let dir = facts.modules_dir();
        let lists = ["modules.builtin", "modules.dep"];
        let lists: Vec<String> = lists
            .iter()
            .filter_map(|name| view.read(&dir.join(name), MODULES_MAX).ok())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .collect();
        let loaded = view.list(Path::new("/sys/module")).unwrap_or_default();
        Self {
            loaded,
            installed: (lists.len() == 2).then(|| lists.concat()),
        }
    }

    /// Returns whether a module is available; `None` if that cannot be known.
    pub(super) fn has(&self, name: &str) -> Option<bool> {
        if self.loaded.iter().any(|loaded| loaded == name) {
            return Some(true);
        }
        // Names of files have dashes where the kernel has underscores, or not.
        let names = [
            format!("/{name}.ko"),
            format!("/{}.ko", name.replace('_', "-")),
        ];
        self.installed
            .as_ref()
            .map(|lists| names.iter().any(|name| lists.contains(name)))
    }
}

fn overlay(facts: &Facts, modules: &Modules) -> Option<Finding> {
    if !facts.config.containerd.snapshotters().contains("overlayfs") {
        return None;
    }
    let text = facts.view.text("/proc/filesystems")?;
    let known = text
        .lines()
        .any(|line| line.split_whitespace().last() == Some("overlay"));
    (!known && modules.has("overlay") != Some(true)).then(|| {
        Finding::new(
            &NO_OVERLAY,
            "/proc/filesystems has no overlay, and no such module is installed",
        )
        .command("modprobe overlay")
    })
}

fn network_features(modules: &Modules) -> Vec<Finding> {
    let missing = NETWORK_FEATURES.iter().filter(|names| {
        let known: Vec<Option<bool>> = names.iter().map(|name| modules.has(name)).collect();
        known.iter().all(|has| *has == Some(false))
    });
    missing
        .map(|names| {
            let found = format!(
                "neither loaded, built in nor installed: {}",
                names.join(" or ")
            );
            Finding::new(&NO_NETWORK_FEATURE, found)
        })
        .collect()
}

fn forwarding(facts: &Facts) -> Vec<Finding> {
    let has = forwarded(facts);
    let four = has.four.then_some("net.ipv4.ip_forward");
    let six = has.six.then_some("net.ipv6.conf.all.forwarding");
    [four, six]
        .into_iter()
        .flatten()
        .filter(|key| sysctl(facts, key) == Some(0))
        .map(|key| {
            // First, so that the node keeps what it learns from routers.
            let learning = if six == Some(key) {
                learning_interfaces(facts)
            } else {
                Vec::new()
            };
            let mut settings = keeping_routers(&learning);
            if !settings.is_empty() {
                settings.push(' ');
            }
            Finding::new(&NO_FORWARDING, format!("{key} = 0"))
                .command(format!("sysctl -w {settings}{key}=1"))
        })
        .collect()
}

fn bridged_packets(facts: &Facts) -> Option<Finding> {
    if !facts.has_kubelet() {
        return None;
    }
    let has = forwarded(facts);
    let four = "net.bridge.bridge-nf-call-iptables";
    let six = "net.bridge.bridge-nf-call-ip6tables";
    // The module has both, also on a node that uses one of them.
    if [four, six].iter().all(|key| sysctl(facts, key).is_none()) {
        let found = "the module br_netfilter is not loaded";
        return Some(Finding::new(&BRIDGE_BYPASSES_RULES, found).command("modprobe br_netfilter"));
    }
    [(has.four, four), (has.six, six)]
        .into_iter()
        .find(|(is_used, key)| *is_used && sysctl(facts, key) == Some(0))
        .map(|(_, key)| {
            Finding::new(&BRIDGE_BYPASSES_RULES, format!("{key} = 0"))
                .command(format!("sysctl -w {key}=1"))
        })
}

fn inotify(facts: &Facts) -> Option<Finding> {
    let instances = sysctl(facts, "fs.inotify.max_user_instances")?;
    let watches = sysctl(facts, "fs.inotify.max_user_watches")?;
    if instances >= INSTANCES_MIN && watches >= WATCHES_MIN {
        return None;
    }
    let found = format!(
        "fs.inotify.max_user_instances = {instances}, fs.inotify.max_user_watches = {watches}"
    );
    let severity = if facts.has_kubelet() {
        Severity::Warning
    } else {
        Severity::Note
    };
    Some(Finding::new(&FEW_INOTIFY, found).severity(severity))
}

fn pids(facts: &Facts) -> Option<Finding> {
    let most = sysctl(facts, "kernel.pid_max").filter(|most| *most < PIDS_MIN)?;
    Some(Finding::new(&FEW_PIDS, format!("kernel.pid_max = {most}")))
}

fn files(facts: &Facts) -> Option<Finding> {
    let pid = facts.status.as_ref().ok()?.pid?;
    let path = format!("/proc/{pid}/limits");
    let text = facts.view.text(&path)?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    let soft: u64 = line.split_whitespace().next()?.parse().ok()?;
    (soft < FILES_MIN).then(|| Finding::new(&FEW_FILES, format!("{path}: {soft} open files")))
}

/// Limits whose use is near to them. Those that the kernel does not count are known while the daemon runs.
fn near_limits(facts: &Facts) -> Vec<Finding> {
    let counted = node_limits::counted(|path| facts.view.text(path));
    let mut limits: Vec<LimitView> = counted
        .iter()
        .map(|limit| LimitView::new(limit.name, limit.used, limit.most))
        .collect();
    for reported in facts.status.iter().flat_map(|status| &status.limits) {
        if limits.iter().all(|known| known.name != reported.name) {
            limits.push(reported.clone());
        }
    }
    limits.iter().filter_map(near_limit).collect()
}

fn near_limit(limit: &LimitView) -> Option<Finding> {
    let LimitView { name, used, most } = limit;
    let (code, from) = if name == "connections" {
        (&CONNTRACK_FULL, CONNTRACK_PERCENT)
    } else {
        (&LIMIT_NEAR, NEAR)
    };
    let what = match name.as_str() {
        "open_files" => "open files (fs.file-max)",
        "processes" => "processes and threads (kernel.pid_max and kernel.threads-max)",
        "inotify_instances" => "inotify instances of root (fs.inotify.max_user_instances)",
        "group_processes" => {
            "processes and threads of a cgroup above several pods or tasks (its pids.max)"
        }
        name => name,
    };
    (limit.percent() >= from).then(|| Finding::new(code, format!("{used} of {most} {what}")))
}

/// The value of a sysctl that is a number.
fn sysctl(facts: &Facts, key: &str) -> Option<u64> {
    facts
        .view
        .number(Path::new("/proc/sys").join(key.replace('.', "/")))
}
