//! The processes that the daemon needs, containerd and the logkeeper: their states, and how they are restarted.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use switchyard_config::{Config, ContainerdMode, Sources};
use switchyard_core::gateway::Gateway;
use switchyard_operator::control::RestartableProcess;
use switchyard_operator::metrics::ProcessRestarts;
use switchyard_operator_api::VERSION;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{Daemon, guarded};
use crate::daemon_record::PublishedRecord;
use crate::managed::restart::{self, KeptListeners, RestartRequests, Restarter, ServiceStart};
use crate::managed::{self, Program, State};
use crate::node_events::{self, follow_clock, follow_process, follow_runtime};

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
    /// Creates the processes that the configuration names. A logkeeper that a unit starts reads the record or the
    /// sources; `kept` is where the listeners are that it keeps.
    pub(super) fn new(
        config: &Config,
        record: PublishedRecord,
        sources: &Sources,
        kept: watch::Receiver<KeptListeners>,
    ) -> Self {
        let containerd = (config.containerd.mode == ContainerdMode::Managed)
            .then(|| NeededProcess::managed("containerd"));
        let logkeeper = match config.logkeeper.mode {
            ContainerdMode::Managed => NeededProcess::managed("logkeeper"),
            ContainerdMode::External => {
                NeededProcess::service("logkeeper", ServiceStart::new(record, sources.clone()))
            }
        };
        Self {
            containerd,
            logkeeper: NeededProcess {
                restarter: logkeeper.restarter.with_listeners(kept),
                ..logkeeper
            },
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
    /// A process that the daemon supervises.
    fn managed(name: &'static str) -> Self {
        let (published, state) = watch::channel(State::Starting);
        let (restarter, requests) = restart::supervised(name, state.clone());
        Self {
            published,
            state,
            restarter,
            requests,
        }
    }

    /// A process that the service manager starts.
    fn service(name: &'static str, start: ServiceStart) -> Self {
        let (published, state) = watch::channel(State::Starting);
        let restarter = Restarter::service(name, state.clone(), start);
        Self {
            published,
            state,
            restarter,
            requests: RestartRequests::none(),
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
                let NeededProcess {
                    published,
                    state: _,
                    restarter,
                    requests: _,
                } = logkeeper;
                let restarts = self.metrics.restarts("logkeeper");
                let watch = watch_logkeeper(Arc::clone(config), published, restarter, restarts);
                self.spawn("logkeeper watch", watch);
            }
        }
    }

    /// Records what happens to the objects of the gateway, to these processes and to the clock. What is returned records
    /// the first of these until it is dropped: while the daemon ends, operations still end and tasks exit.
    pub(super) fn record_events(
        &self,
        gateway: &Gateway,
        states: &ProcessStates,
    ) -> AbortOnDropHandle<()> {
        let events = &self.history.events;
        let booted = node_events::booted();
        let pid = std::process::id();
        events.note_start(&format!("version {VERSION}, process {pid}{booted}"));
        let record = events.clone().record(gateway.subscribe());
        let recording = tokio::spawn(guarded(self.shutdown.clone(), "events", record));
        let (containerd, logkeeper) = states;
        match containerd {
            Some(state) => self.spawn(
                "events of containerd",
                follow_process(events.clone(), "containerd", state.clone()),
            ),
            None => self.spawn(
                "events of the runtime",
                follow_runtime(events.clone(), gateway.clone()),
            ),
        }
        self.spawn(
            "events of the logkeeper",
            follow_process(events.clone(), "logkeeper", logkeeper.clone()),
        );
        self.spawn("events of the clock", follow_clock(events.clone()));
        AbortOnDropHandle::new(recording)
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

/// Probes an external logkeeper periodically, and counts its restarts. Cancel-safe.
async fn watch_logkeeper(
    config: Arc<Config>,
    state: watch::Sender<State>,
    restarter: Restarter,
    restarts: ProcessRestarts,
) {
    let socket = config.logkeeper_socket();
    let mut latest = None;
    loop {
        let now = managed::logkeeper::probe_state(&socket).await;
        if let State::Up { process, .. } = &now
            && let Some(before) = latest.replace(*process)
            && before != *process
        {
            if restarter.take_requested_end(before) {
                restarts.requests.inc();
            } else {
                restarts.by_others.inc();
            }
        }
        state.send_if_modified(|before| {
            let changed = *before != now;
            *before = now;
            changed
        });
        tokio::time::sleep(POLL).await;
    }
}
