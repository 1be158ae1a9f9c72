//! Kills processes at random moments while clients check every answer against the answers they got before: no
//! acknowledged change may be lost or done twice, and nothing may be left behind. A seed repeats the order of
//! the kills and the choices of each client, but not the timing of the machine.
//!
//! The pods are on a bridge of the gateway, each with a published port, and are attached by the daemon, by CNI plugins, or by both in turn: no
//! address, port, element of a table or interface may be left, held twice or missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cri::Cri;
use crate::host::eventually;
use crate::node::TestNode;
use crate::root::{PrivateRoot, overlaid};

mod calls;
mod client;
mod drivers;
mod evidence;
mod expected_state;
mod killer;
mod left_bundles;
mod log;
mod outcome;
mod random;

pub use drivers::Drivers;
pub use expected_state::Victim;
pub use outcome::{Excuse, Outcome};

use calls::RetryingCalls;
use client::ChaosClient;
use expected_state::ExpectedState;
use killer::Killer;
use left_bundles::take_left_bundles;
use outcome::RunRecorder;
use random::Random;

/// Within this time after the last removal everything must be gone.
const CLEAN_LIMIT: Duration = Duration::from_secs(60);

/// The settings of a run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The number of kills.
    pub kills: u32,
    /// True if containerd is external; then the run restarts it after a kill, as a service manager would.
    pub external: bool,
    /// The seed of all random choices.
    pub seed: u64,
    /// The number of concurrent clients.
    pub clients: u32,
    /// Drivers that attach the pods.
    pub drivers: Drivers,
    /// The shortest and the longest pause between two kills, in milliseconds.
    pub pauses_ms: (u64, u64),
    /// Additional configuration of the daemon, as TOML.
    pub config: String,
    /// Destination of the copied logs of the daemon, containerd and the logkeeper, if any.
    pub logs: Option<PathBuf>,
}

/// Runs the clients and the kills, and removes everything that the run created. Violations are in the
/// outcome.
///
/// # Panics
/// When a prerequisite is missing or the first start fails.
#[must_use]
pub fn run(settings: Settings) -> Outcome {
    let node = if settings.external {
        let root = PrivateRoot::new();
        let config = configuration(&root, &settings);
        TestNode::beside_external(root, &config)
    } else {
        TestNode::start_configured(|root| configuration(root, &settings))
    };
    let ledger = ExpectedState::default();
    let notes = RunRecorder::new(settings.clone());
    let calls = RetryingCalls {
        expected: &ledger,
        recorder: &notes,
    };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..settings.clients {
            let mut client = ChaosClient::new(
                number,
                &node,
                calls,
                Random::new(settings.seed, u64::from(number) + 1),
            );
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Acquire) {
                    client.act();
                }
                client.finish();
            });
        }
        let killer = Killer {
            node: &node,
            cri: Cri::new(&node.root().cri_socket()),
            calls,
            random: Random::new(settings.seed, 0),
            pauses: settings.pauses_ms,
            drivers: settings.drivers,
            starts: 1,
        };
        killer.run(settings.kills);
        over.store(true, Ordering::Release);
    });
    let since = Instant::now();
    let mut findings = Vec::new();
    let clean = eventually(CLEAN_LIMIT, || {
        findings = node.leak_scan().findings;
        findings.is_empty()
    });
    if clean {
        notes.outcome().clean_after = Some(since.elapsed());
    }
    if notes.outcome().may_leave_bundles() {
        notes.outcome().left_bundles = take_left_bundles(&mut findings);
    }
    for finding in findings {
        notes.violation(format_args!("left behind: {finding}"));
    }
    let outcome = notes.finish();
    if !outcome.violations.is_empty() || !outcome.left_bundles.is_empty() {
        // What is left is in the outcome already; dropping the node would report it a second time.
        node.skip_leak_check();
    }
    if let Some(logs) = &settings.logs {
        copy_logs(&node, logs);
    }
    outcome
}

/// The configuration of a node whose pods are on a bridge of the gateway.
fn configuration(root: &PrivateRoot, settings: &Settings) -> String {
    let pods = root.network();
    let config = format!(
        "[cri]\nnetwork = \"bridge\"\n\
         [network.bridge]\ndriver = {:?}\nipv6 = false\n\
         [network.pods]\nname = {:?}\nsubnets = [{:?}]\n",
        settings.drivers.at_start(0),
        pods.bridge(),
        pods.subnet()
    );
    overlaid(&config, &settings.config).to_string()
}

/// Copies the logs of the processes of a node.
fn copy_logs(node: &TestNode, to: &Path) {
    fs::create_dir_all(to).expect("the directory for logs can be made");
    let state = node.root().state();
    for log in [
        node.root().daemon_log(),
        state.join("containerd/containerd.log"),
        state.join("logkeeper.log"),
    ] {
        let name = log.file_name().expect("a log has a name");
        // A log that was never written does not exist.
        let _ = fs::copy(&log, to.join(name));
    }
}
