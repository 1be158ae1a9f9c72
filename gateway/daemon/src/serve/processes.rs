//! The processes that the daemon needs, containerd and the logkeeper: their states, and how they are restarted.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use switchyard_config::{Config, ContainerdMode};
use switchyard_operator::control::RestartableProcess;
use tokio::sync::watch;

use super::Daemon;
use crate::managed::restart::{self, RestartRequests, Restarter};
use crate::managed::{self, Program, State};

/// The pause between two probes of an external logkeeper.
const POLL: Duration = Duration::from_secs(2);

/// Both processes, before they are started.
pub(super) struct NeededProcesses {
    /// `None` if it is external: the backend watches it.
    containerd: Option<NeededProcess>,
    logkeeper: NeededProcess,
}

struct NeededProcess {
    published: watch::Sender<State>,
    state: watch::Receiver<State>,
    restarter: Restarter,
    requests: RestartRequests,
}

/// The states of the managed containerd, and of the logkeeper.
pub(super) type ProcessStates = (Option<watch::Receiver<State>>, watch::Receiver<State>);

// === impl NeededProcesses ===

impl NeededProcesses {
    /// Creates the processes that the configuration names.
    pub(super) fn new(config: &Config) -> Self {
        let containerd = (config.containerd.mode == ContainerdMode::Managed)
            .then(|| NeededProcess::new("containerd", ContainerdMode::Managed));
        Self {
            containerd,
            logkeeper: NeededProcess::new("logkeeper", config.logkeeper.mode),
        }
    }

    /// Their states, from now on.
    pub(super) fn states(&self) -> ProcessStates {
        let containerd = self
            .containerd
            .as_ref()
            .map(|containerd| containerd.state.clone());
        (containerd, self.logkeeper.state.clone())
    }

    /// Returns the handles by which they report and are restarted.
    pub(super) fn restarters(&self) -> Vec<Arc<dyn RestartableProcess>> {
        let both = self.containerd.iter().chain([&self.logkeeper]);
        both.map(|process| Arc::new(process.restarter.clone()) as _)
            .collect()
    }
}

// === impl NeededProcess ===

impl NeededProcess {
    fn new(name: &'static str, mode: ContainerdMode) -> Self {
        let (published, state) = watch::channel(State::Starting);
        let (restarter, requests) = match mode {
            ContainerdMode::Managed => restart::supervised(name, state.clone()),
            ContainerdMode::External => (
                Restarter::service(name, state.clone()),
                RestartRequests::none(),
            ),
        };
        Self {
            published,
            state,
            restarter,
            requests,
        }
    }
}

// === impl Daemon ===

impl Daemon {
    /// Keeps both running, as far as the daemon manages them; `exe` is our own binary.
    pub(super) fn keep_running(&self, processes: NeededProcesses, exe: &Path) {
        let NeededProcesses {
            containerd,
            logkeeper,
        } = processes;
        let config = &self.config;
        if let Some(containerd) = containerd {
            self.supervise(managed::containerd::program(config, exe), containerd);
        }
        match config.logkeeper.mode {
            ContainerdMode::Managed => {
                self.supervise(managed::logkeeper::program(config, exe), logkeeper)
            }
            ContainerdMode::External => {
                let watch = watch_logkeeper(Arc::clone(config), logkeeper.published);
                self.spawn("logkeeper watch", watch);
            }
        }
    }

    fn supervise(&self, program: Program, process: NeededProcess) {
        let stop = self.shutdown.token().clone();
        let NeededProcess {
            published,
            state: _,
            restarter: _,
            requests,
        } = process;
        let restarts = self.metrics.restarts(program.name);
        self.spawn(
            program.name,
            managed::supervise(program, published, requests, restarts, stop),
        );
    }
}

/// Probes an external logkeeper periodically. Cancel-safe.
async fn watch_logkeeper(config: Arc<Config>, state: watch::Sender<State>) {
    let socket = config.logkeeper_socket();
    loop {
        let now = managed::logkeeper::probe_state(&socket).await;
        state.send_if_modified(|before| {
            let changed = *before != now;
            *before = now;
            changed
        });
        tokio::time::sleep(POLL).await;
    }
}
