//! Checks of the daemon: whether it answers, its parts, its sockets, and what an upgrade left to be done.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use switchyard_config::{Config, ContainerdMode};
use switchyard_containerd::SNAPSHOTTER_UNUSABLE;
use switchyard_containerd::config::BridgeDriverChoice;
use switchyard_linux::report;
use switchyard_operator_api::VERSION;
use switchyard_operator_api::{PartView, StatusReport, TroubleView};

use super::codes::daemon::{
    ADMIN_EXPOSED, CANNOT_START, DAEMON_DOWN, DAMAGED_IMAGE, FAILING_OPERATIONS,
    FORMER_CONFIGURATION, FORMER_PROGRAM, FULL_PIPE, LEFT_CGROUP, NO_GROUP, OTHER_LOGKEEPER,
    OTHER_VERSION, PART_DOWN, SHARED_BY_INSTANCES, SILENT_SHIM, STALE_SOCKET, TREE_SET_ASIDE,
    UNENDED_TASK, UNREADABLE, UNRECORDED_EXIT,
};
use super::codes::runtime::NO_SNAPSHOTTER;
use super::facts::Facts;
use super::finding::{Finding, Severity};
use super::network_defaults::{UsedDefaults, load_settled};
use super::pod_bridge::has_pods_on_bridge;
use super::view::FileKind;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    match &facts.status {
        Ok(status) => {
            found.extend(parts(status));
            found.extend(status.troubles.iter().map(trouble));
            found.extend(programs(facts, status));
            found.extend(configurations(facts, status));
            found.extend(logkeeper(status));
            found.extend(version(status));
        }
        Err(why) => found.extend(down(facts, why)),
    }
    found.extend(sockets(facts));
    found.extend(groups(facts));
    found.extend(start(facts));
    found.extend(exposed(facts));
    found.extend(instances(facts));
    found
}

fn down(facts: &Facts, why: &str) -> Option<Finding> {
    let socket = &facts.admin_socket;
    match facts.view.connect(socket).map_err(|error| error.kind()) {
        // It may well run: what could not be looked at is a finding by itself.
        Err(io::ErrorKind::PermissionDenied) => return None,
        Err(io::ErrorKind::NotFound) => {
            if let Some(pid) = facts.silent_daemon() {
                let text = format!(
                    "{}: the file is gone, and the daemon runs as process {pid}",
                    socket.display()
                );
                let found = Finding::new(&STALE_SOCKET, text);
                return Some(found.command_if(facts.service_command("restart", "switchyard")));
            }
        }
        Ok(()) | Err(_) => {}
    }
    let path = socket.display().to_string();
    let why = if why.contains(&path) {
        why.to_owned()
    } else {
        format!("{path}: {why}")
    };
    let found = Finding::new(&DAEMON_DOWN, why);
    Some(found.command_if(facts.service_command("status", "switchyard")))
}

fn parts(status: &StatusReport) -> Vec<Finding> {
    let down = || status.parts.iter().filter(|part| !part.up);
    // The snapshotter that the whole node needs is one of all that are configured.
    let is_repeated = |part: &&PartView| {
        part.name == "snapshotters"
            && down().any(|other| other.name == "runtime" && other.detail == part.detail)
    };
    let told = down().filter(|part| !is_repeated(part));
    told.map(|part| {
        if part.name == "objects" {
            return Finding::new(&UNREADABLE, part.detail.clone())
                .command("switchyard ps --state unreadable");
        }
        let severity = if part.needed {
            Severity::Error
        } else {
            Severity::Warning
        };
        let code = if part.detail.starts_with(SNAPSHOTTER_UNUSABLE) {
            &NO_SNAPSHOTTER
        } else {
            &PART_DOWN
        };
        Finding::new(code, format!("{}: {}", part.name, part.detail))
            .severity(severity)
            .command("switchyard status")
    })
    .collect()
}

/// The objects of a trouble. One of a kind that only a later daemon knows is reported as a part of it.
fn trouble(trouble: &TroubleView) -> Finding {
    let objects = trouble.listed();
    match trouble.kind.as_str() {
        "silent_shim" => Finding::new(&SILENT_SHIM, objects),
        "unrecorded_exit" => Finding::new(&UNRECORDED_EXIT, objects),
        "left_cgroup" => Finding::new(&LEFT_CGROUP, objects),
        "tree_set_aside" => Finding::new(&TREE_SET_ASIDE, objects),
        "damaged_image" => Finding::new(&DAMAGED_IMAGE, objects),
        "unended_task" => Finding::new(&UNENDED_TASK, objects),
        "full_pipe" => Finding::new(&FULL_PIPE, objects),
        "failing_operations" => {
            Finding::new(&FAILING_OPERATIONS, objects).command("switchyard events")
        }
        kind => Finding::new(&PART_DOWN, format!("{kind}: {objects}")).severity(Severity::Warning),
    }
}

fn programs(facts: &Facts, status: &StatusReport) -> Vec<Finding> {
    let replaced = status.programs.iter().filter(|program| program.replaced);
    replaced
        .map(|program| {
            let found = format!(
                "{} (process {}) still runs a former {}",
                program.part, program.pid, program.path
            );
            Finding::new(&FORMER_PROGRAM, found)
                .command(program.restart_command(facts.service_command("restart", "switchyard")))
        })
        .collect()
}

/// The processes that have read a former configuration. One whose program was replaced is reported as such: the restart
/// mends both.
fn configurations(facts: &Facts, status: &StatusReport) -> Vec<Finding> {
    let former = status
        .programs
        .iter()
        .filter(|program| program.has_former_configuration() && !program.replaced);
    former
        .map(|program| {
            let found = format!(
                "{} (process {}) has read another configuration than this daemon generates for it",
                program.part, program.pid
            );
            Finding::new(&FORMER_CONFIGURATION, found)
                .command(program.restart_command(facts.service_command("restart", "switchyard")))
        })
        .collect()
}

/// The logkeeper, if its build is another one than the daemon's.
fn logkeeper(status: &StatusReport) -> Option<Finding> {
    let part = status
        .parts
        .iter()
        .find(|part| part.name == "logkeeper" && part.up)?;
    // A replaced program is reported as such.
    if status
        .programs
        .iter()
        .any(|program| program.part == "logkeeper" && program.replaced)
    {
        return None;
    }
    let build = build_of(&part.detail)?;
    (build != status.version).then(|| {
        let build = if build.is_empty() {
            "an old one, which does not report its version"
        } else {
            build
        };
        let found = format!("the logkeeper is {build}, the daemon {}", status.version);
        Finding::new(&OTHER_LOGKEEPER, found).command("switchyard restart logkeeper")
    })
}

/// The build in a description such as `logkeeper 0.1.0 protocol 2`, which other words may precede or follow;
/// empty for a logkeeper that does not report it.
fn build_of(detail: &str) -> Option<&str> {
    let mut words = detail
        .split_whitespace()
        .skip_while(|word| *word != "logkeeper")
        .skip(1);
    match words.next()? {
        "protocol" => Some(""),
        build => (words.next()? == "protocol").then_some(build),
    }
}

fn version(status: &StatusReport) -> Option<Finding> {
    (status.version != VERSION).then(|| {
        Finding::new(
            &OTHER_VERSION,
            format!("the daemon is {}, this command {VERSION}", status.version),
        )
    })
}

/// Sockets of the daemon and of the logkeeper at which clients reach nobody, also those of the daemon that only its next
/// process serves.
fn sockets(facts: &Facts) -> Vec<Finding> {
    let config = &facts.served;
    let of_clients = |config: &Config| {
        let cri = config.cri.enabled.then(|| config.cri_socket());
        let nomad = config.nomad.enabled.then(|| config.nomad_socket());
        cri.into_iter().chain(nomad)
    };
    let mut served: BTreeSet<PathBuf> = of_clients(config).collect();
    served.insert(facts.admin_socket.clone());
    let next = of_clients(&facts.config).filter(|path| !served.contains(path));
    let next: BTreeSet<PathBuf> = next.collect();
    // What a killed daemon left is replaced by the next one.
    let severity = if facts.is_up() {
        Severity::Error
    } else {
        Severity::Note
    };
    let mut found = Vec::new();
    for path in served.union(&next) {
        let is_served = served.contains(path);
        found.extend(
            unreachable_socket(facts, path, is_served, "switchyard")
                .map(|finding| finding.severity(severity)),
        );
    }
    let unit = match config.logkeeper.mode {
        ContainerdMode::External => "switchyard-logkeeper",
        ContainerdMode::Managed => "switchyard",
    };
    found.extend(unreachable_socket(
        facts,
        &config.logkeeper_socket(),
        true,
        unit,
    ));
    found
}

/// A socket at which clients reach nobody. Its file is missed if the daemon that answers serves it.
fn unreachable_socket(facts: &Facts, path: &Path, is_served: bool, unit: &str) -> Option<Finding> {
    let refuses = || {
        let connected = facts.view.connect(path);
        connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    let why = match facts.view.stat(path) {
        Ok(file) if file.kind == FileKind::Socket && refuses() => {
            "the file is there, but nobody listens"
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_served && facts.is_up() => {
            "the file is gone"
        }
        Ok(_) | Err(_) => return None,
    };
    let found = Finding::new(&STALE_SOCKET, format!("{}: {why}", path.display()));
    Some(found.command_if(facts.service_command("restart", unit)))
}

fn groups(facts: &Facts) -> Vec<Finding> {
    let groups = facts.config.socket_groups();
    let missing = groups
        .into_iter()
        .filter(|(_, group)| !facts.view.has_group(group));
    missing
        .map(|(key, group)| {
            let text = format!("{key} is {group:?}");
            Finding::new(&NO_GROUP, text).command(format!("groupadd --system {group}"))
        })
        .collect()
}

/// The faults of the daemon's next start, with a configuration that is valid.
fn start(facts: &Facts) -> Vec<Finding> {
    if facts.config_error.is_some() {
        return Vec::new();
    }
    let Some(next) = &facts.next else {
        return Vec::new();
    };
    let faults = match load_settled(&*facts.view, next, None) {
        Ok((loaded, used)) => {
            let config = loaded.effective.config;
            let mut faults = facts.view.start_faults(&config, &next.env);
            // Unless that is a finding about the sources of the process that runs.
            if let UsedDefaults::Unknown(why) = used
                && !matches!(facts.network_defaults, UsedDefaults::Unknown(_))
            {
                faults.push(why);
            }
            faults
        }
        // The unit has got a variable or an argument that the process which runs does not have.
        Err(error) => vec![report(&error)],
    };
    faults
        .into_iter()
        .map(|fault| Finding::new(&CANNOT_START, fault))
        .collect()
}

fn exposed(facts: &Facts) -> Option<Finding> {
    let listen = facts.config.admin.listen;
    (!listen.ip().to_canonical().is_loopback())
        .then(|| Finding::new(&ADMIN_EXPOSED, format!("admin.listen is {listen}")))
}

/// Other daemons of this node that share something with this one.
fn instances(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for (pid, other) in facts.other_daemons() {
        let shared = shared(&facts.config, &other);
        if !shared.is_empty() {
            let text = format!("process {pid} has the same {}", shared.join(", "));
            found.push(Finding::new(&SHARED_BY_INSTANCES, text));
        }
    }
    found
}

/// The keys of what two instances share and must not. Pure.
fn shared(one: &Config, other: &Config) -> Vec<String> {
    let mut keys = Vec::new();
    let mut note = |is_same: bool, key: &str, value: String| {
        if is_same {
            keys.push(format!("{key} ({value})"));
        }
    };
    let path = |path: &Path| path.display().to_string();
    note(
        one.paths.state == other.paths.state,
        "paths.state",
        path(&one.paths.state),
    );
    note(
        one.paths.run == other.paths.run,
        "paths.run",
        path(&one.paths.run),
    );
    let listen = one.admin.listen;
    note(
        listen == other.admin.listen && listen.port() != 0,
        "admin.listen",
        listen.to_string(),
    );
    let bridge = &one.network.bridge;
    let both_nomad = one.nomad.enabled && other.nomad.enabled;
    let is_same_bridge = bridge.name == other.network.bridge.name;
    let is_same_dir = bridge.addresses_dir == other.network.bridge.addresses_dir;
    note(
        both_nomad && is_same_bridge && !is_same_dir,
        "network.bridge.name, with another addresses_dir",
        bridge.name.clone(),
    );
    // Each would restore the tables of the bridge to what it knows itself.
    let of_both = [bridge.driver(), other.network.bridge.driver()];
    note(
        is_same_bridge && of_both.contains(&BridgeDriverChoice::Native),
        "network.bridge.name, with the driver native",
        bridge.name.clone(),
    );
    let is_same_subnet = bridge
        .subnets
        .iter()
        .any(|subnet| other.network.bridge.subnets.contains(subnet));
    note(
        both_nomad && !is_same_bridge && is_same_subnet,
        "network.bridge.subnets",
        bridge.subnets.join(", "),
    );
    let pods = one.network.pods.name.as_str();
    note(
        [one, other].into_iter().all(has_pods_on_bridge) && pods == other.network.pods.name,
        "network.pods.name",
        pods.to_owned(),
    );
    keys
}
