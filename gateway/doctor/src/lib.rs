//! Looks at a node and says what is wrong or will be: `switchyard doctor`.
//!
//! ```text
//! run ──► facts           configuration (with network_defaults), daemon's answers, processes: once
//!   ├──► kernel, features, cgroups (with selinux), storage, systemd   1xx
//!   ├──► containerd                          2xx
//!   ├──► network, native (with accepted and firewalld), families, name_servers, addresses, address_use (with pod_bridge)   3xx
//!   ├──► kubelet                             4xx
//!   ├──► nomad (with hcl)                    5xx
//!   ├──► swarm                               6xx
//!   ├──► devices (with node_devices)         7xx
//!   └──► daemon, configuration               8xx
//! all of them ──► view ──► local, command: the real node
//! outside ────────┘        a process that does not answer: `switchyard debug`
//! ```
//!
//! # Invariants
//! - Checks look at the node through [`NodeView`] alone, and change nothing on it: no module is loaded, no
//!   file written, no process signalled but the commands that were started here. [`outside`] is no check: a debugger stops the
//!   process for a moment.
//! - Everything is bounded: files, directories, outputs, and the time of each family of checks.
//! - Every finding has a code of [`codes`], and `docs/doctor.md` has a section for each code.
//! - No finding holds a secret: of files with credentials only the daemon's own check reads those that it needs to start,
//!   and texts pass [`redact()`].

mod accepted;
mod address_use;
mod addresses;
pub mod bundle;
mod cgroups;
pub mod codes;
mod command;
mod configuration;
mod containerd;
mod daemon;
mod devices;
mod facts;
mod families;
mod features;
mod finding;
mod firewalld;
mod hcl;
mod kernel;
mod kubelet;
mod local;
mod name_servers;
mod native;
mod network;
mod network_defaults;
mod node_devices;
mod nomad;
pub mod outside;
mod own_ipv6;
mod pod_bridge;
mod redact;
mod selinux;
mod storage;
mod swarm;
mod systemd;
mod text;
mod unit;
mod view;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use switchyard_config::{Config, Sources};

use codes::node::{UNFINISHED, UNSEEN};
use facts::Facts;

pub(crate) use command::run as run_command;
pub use facts::{DoctorRequest, UNIT};
pub use finding::{Finding, FindingCode, Severity};
pub use local::{LocalNode, StartCheck};
pub(crate) use local::{PROGRAM_DIRS, search_path};
pub use nomad::PluginDirs;
pub use redact::redact;
pub use unit::LoadedUnit;
pub use view::{
    CommandError, CommandOutput, DiskSpace, FileFacts, FileKind, NetworkTable, NodeView,
    ProcessFacts,
};

/// The sources of the configuration of the daemon that answers at this socket: its environment, and its file and flags unless
/// others are given. While none answers, what is given.
///
/// # Errors
/// `InvalidArgument` if the daemon has another file than the one that is given.
pub fn sources_of_running(
    given: &Sources,
    admin_socket: &Path,
) -> switchyard_core::Result<Sources> {
    facts::FoundDaemon::sources_of_running(&LocalNode::default(), given, admin_socket)
}

/// The configuration in force in the daemon that answers at this socket; `None` while none does.
#[must_use]
pub fn config_in_force(admin_socket: &Path) -> Option<Config> {
    facts::config_in_force(&LocalNode::default(), admin_socket)
}

/// The directories in which the Nomad agents of this node look for plugins, as far as a process or the configuration of
/// packages names them.
#[must_use]
pub fn nomad_plugin_dirs() -> PluginDirs {
    let search = || nomad::plugin_dirs(&LocalNode::default());
    within("the search for Nomad agents", LIMIT, search).unwrap_or_else(|finding| PluginDirs {
        unknown: BTreeSet::from([finding.found]),
        ..PluginDirs::default()
    })
}

/// Time for the facts, and then for all checks together.
const LIMIT: Duration = Duration::from_secs(45);

/// A family of checks.
type Check = fn(&Facts) -> Vec<Finding>;

/// The families, with their names for people.
const CHECKS: [(&str, Check); 17] = [
    ("kernel", kernel::check),
    ("features of the kernel", features::check),
    ("cgroups", cgroups::check),
    ("disks", storage::check),
    ("units", systemd::check),
    ("containerd and runtimes", containerd::check),
    ("networks", network::check),
    ("the network without plugins", native::check),
    ("IPv6", families::check),
    ("DNS servers", name_servers::check),
    ("addresses and ports", addresses::check),
    ("addresses in use", address_use::check),
    ("kubelet", kubelet::check),
    ("Nomad", nomad::check),
    ("Swarm", swarm::check),
    ("devices", devices::check),
    ("daemon", daemon::check),
];

/// Result of an examination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// True if nothing is worse than a note.
    pub healthy: bool,
    /// True if the daemon answered.
    pub daemon: bool,
    /// The findings, the worst first.
    pub findings: Vec<Finding>,
}

/// Looks at a node.
#[must_use]
pub fn run(view: Arc<dyn NodeView>, request: DoctorRequest) -> DoctorReport {
    let mut findings = Vec::new();
    let mut daemon = false;
    let of_view = Arc::clone(&view);
    match within("the facts", LIMIT, move || Facts::gather(of_view, &request)) {
        Ok(facts) => {
            daemon = facts.is_up();
            findings.extend(configuration::check(&facts));
            findings.extend(checked(&Arc::new(facts)));
        }
        Err(finding) => findings.push(*finding),
    }
    let denied: Vec<String> = view
        .denied()
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    if !denied.is_empty() {
        findings.push(Finding::new(
            &UNSEEN,
            format!("permission denied: {}", denied.join(", ")),
        ));
    }
    findings.sort_by(|a, b| {
        b.severity
            .cmp(&a.severity)
            .then_with(|| is_acute(b).cmp(&is_acute(a)))
            .then_with(|| a.code.cmp(&b.code))
    });
    findings.dedup();
    let healthy = !findings
        .iter()
        .any(|finding| finding.severity > Severity::Note);
    DoctorReport {
        healthy,
        daemon,
        findings,
    }
}

/// Returns whether a finding is about something that holds up work now.
fn is_acute(finding: &Finding) -> bool {
    codes::daemon::ACUTE
        .iter()
        .any(|acute| acute.code == finding.code)
}

/// The findings of all families, which run at the same time; one that does not end holds up no other.
fn checked(facts: &Arc<Facts>) -> Vec<Finding> {
    let deadline = Instant::now() + LIMIT;
    let running: Vec<_> = CHECKS
        .iter()
        .map(|(name, check)| {
            let facts = Arc::clone(facts);
            let (sender, receiver) = channel();
            std::thread::spawn(move || {
                // If nobody waits any more, the findings came too late.
                let _ = sender.send(check(&facts));
            });
            (name, receiver)
        })
        .collect();
    let mut findings = Vec::new();
    for (name, receiver) in running {
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(found) => findings.extend(found),
            Err(error) => findings.push(unfinished(name, LIMIT, error)),
        }
    }
    findings
}

/// The result of a function that may hang.
pub(crate) fn within<T: Send + 'static>(
    name: &str,
    limit: Duration,
    function: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Box<Finding>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let _ = sender.send(function());
    });
    receiver
        .recv_timeout(limit)
        .map_err(|error| Box::new(unfinished(name, limit, error)))
}

fn unfinished(name: &str, limit: Duration, error: RecvTimeoutError) -> Finding {
    let why = match error {
        RecvTimeoutError::Timeout => format!("{name}: not done within {} s", limit.as_secs()),
        RecvTimeoutError::Disconnected => format!("{name}: the check itself failed"),
    };
    Finding::new(&UNFINISHED, why)
}
