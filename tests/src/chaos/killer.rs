//! Kills processes, at moments and in an order that the seed gives.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::calls::RetryingCalls;
use super::drivers::Drivers;
use super::expected_state::Victim;
use super::random::Random;
use crate::cri::Cri;
use crate::host::processes;
use crate::node::TestNode;

/// The share of each victim, in percent.
const WEIGHTS: [(Victim, u64); 4] = [
    (Victim::Daemon, 70),
    (Victim::Logkeeper, 10),
    (Victim::Containerd, 8),
    (Victim::Shim, 12),
];
/// Within this time after a kill the daemon must answer with correct lists.
const RECOVERY_LIMIT: Duration = Duration::from_secs(60);
/// For this long after its kill containerd may still be restarting.
const CONTAINERD_RESTART_TIME: Duration = Duration::from_secs(3);
/// The pause between two attempts to reach the daemon.
const POLL: Duration = Duration::from_millis(2);

/// Kills processes, and checks that they recover.
#[derive(Debug)]
pub(super) struct Killer<'r> {
    pub(super) node: &'r TestNode,
    pub(super) cri: Cri,
    pub(super) calls: RetryingCalls<'r>,
    pub(super) random: Random,
    /// The shortest and the longest pause between two kills, in milliseconds.
    pub(super) pauses: (u64, u64),
    pub(super) drivers: Drivers,
    /// Number of starts of the daemon.
    pub(super) starts: u32,
}

impl Killer<'_> {
    pub(super) fn run(mut self, kills: u32) {
        for _ in 0..kills {
            let (least, most) = self.pauses;
            let pause = self.random.millis(least, most);
            let victim = self.choose();
            let choice = self.random.next();
            std::thread::sleep(pause);
            self.kill(victim, choice);
        }
    }

    fn choose(&mut self) -> Victim {
        let mut at = self
            .random
            .below(WEIGHTS.iter().map(|(_, weight)| weight).sum());
        for (victim, weight) in WEIGHTS {
            if at < weight {
                return victim;
            }
            at -= weight;
        }
        Victim::Daemon
    }

    fn kill(&mut self, victim: Victim, choice: u64) {
        match victim {
            Victim::Daemon => self.kill_daemon(),
            Victim::Logkeeper => self.kill_managed(victim, "logkeeper"),
            Victim::Containerd => self.kill_containerd(),
            // If no shim runs now, the daemon is killed instead.
            Victim::Shim if !self.kill_shim(choice) => return self.kill(Victim::Daemon, choice),
            Victim::Shim => {}
        }
        *self
            .calls
            .recorder
            .outcome()
            .kills
            .entry(victim)
            .or_default() += 1;
    }

    fn kill_containerd(&self) {
        let Some(mut upstream) = self.node.external_containerd() else {
            return self.kill_managed(Victim::Containerd, "containerd");
        };
        self.calls.record_kill(Victim::Containerd);
        upstream.restart_without_waiting();
    }

    fn kill_managed(&self, victim: Victim, name: &str) {
        // The process may be dead already, with the daemon about to restart it.
        let is_it = |pid: &Pid| {
            processes::find(pid.as_raw()).is_some_and(|found| found.command.contains(name))
        };
        let Some(pid) = self.node.root().managed(name).filter(is_it) else {
            return;
        };
        self.calls.record_kill(victim);
        let _ = kill(pid, Signal::SIGKILL);
    }

    /// Kills a shim of this root; `false` if there is none.
    fn kill_shim(&self, choice: u64) -> bool {
        let socket = self
            .node
            .root()
            .run()
            .join("containerd/containerd.sock")
            .display()
            .to_string();
        let mut shims: Vec<_> = processes::all()
            .into_iter()
            .filter(|process| {
                process.command.contains("containerd-shim") && process.command.contains(&socket)
            })
            .filter(|process| {
                let last = process.command.rsplit(' ').next().unwrap_or_default();
                !matches!(last, "start" | "delete")
            })
            .collect();
        shims.sort_by_key(|shim| shim.started);
        if shims.is_empty() {
            return false;
        }
        let shim = &shims[Random::new(choice, 0).index(shims.len())];
        let mut words = shim.command.split(' ').skip_while(|word| *word != "-id");
        let id = words.nth(1).unwrap_or_default();
        self.calls.record_kill(Victim::Shim);
        self.calls.expected.mark_shim_killed(id);
        let _ = kill(Pid::from_raw(shim.pid), Signal::SIGKILL);
        true
    }

    /// Checks that no element of the tables is for an address that nobody has.
    fn check_elements(&self) {
        for stray in self.node.root().bridge().stray_elements() {
            self.calls.recorder.violation(format_args!(
                "after a kill of the daemon the tables have {stray}, whose address nobody has"
            ));
        }
    }

    fn kill_daemon(&mut self) {
        let ledger = self.calls.expected;
        let mut daemon = self.node.daemon();
        let since = Instant::now();
        self.calls.record_kill(Victim::Daemon);
        daemon.kill9();
        let driver = self.drivers.at_start(self.starts);
        self.starts += 1;
        self.node.root().set_bridge_driver(driver);
        daemon.spawn();
        drop(daemon);
        let mut last = String::from("it never answered");
        while since.elapsed() < RECOVERY_LIMIT {
            let before = ledger.snapshot();
            match self
                .cri
                .pods()
                .and_then(|pods| Ok((pods, self.cri.containers()?)))
            {
                Ok((pods, containers)) => {
                    let took = since.elapsed();
                    let wrong = ledger.contradictions(&before, &pods, &containers);
                    if wrong.is_empty() {
                        let both = since
                            .checked_sub(CONTAINERD_RESTART_TIME)
                            .is_some_and(|near| {
                                ledger.was_killed_after(&[Victim::Containerd], near)
                            });
                        let mut outcome = self.calls.recorder.outcome();
                        if both {
                            outcome.serving_both.push(took)
                        } else {
                            outcome.serving.push(took)
                        }
                        drop(outcome);
                        self.check_elements();
                        return;
                    }
                    let message = wrong.join("; ");
                    if message != last {
                        self.calls.recorder.violation(format_args!(
                            "wrong lists after a kill of the daemon: {message}"
                        ));
                    }
                    last = message;
                }
                Err(status) => {
                    last = status.to_string();
                    if last.contains("recovering") {
                        self.calls.recorder.outcome().refused_starting += 1;
                    }
                }
            }
            std::thread::sleep(POLL);
        }
        let tail = self.node.daemon().tail();
        self.calls.recorder.violation(format_args!(
            "the daemon did not serve within {RECOVERY_LIMIT:?} of its kill: {last}\n{tail}"
        ));
    }
}
