//! Limits and policies of a gateway.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::ledger::Overcommit;
use crate::spec::Reserved;
use crate::threads;

/// Concurrent starts of sandboxes and tasks of one owner for each processor, by default.
const STARTS_PER_PROCESSOR: usize = 4;

/// The most concurrent starts of one owner by default, however many processors there are: further ones would wait for
/// containerd's database and for threads, which they would take from other owners (ADR 102).
const STARTS_MAX: usize = 64;

/// Timeouts for operations that should be quick, and limits on concurrent work.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Limit for a task to exit after SIGKILL.
    pub kill: Duration,
    /// Time for which an unavailable backend is waited for before waiting for the exit of a killed task is
    /// abandoned.
    pub outage: Duration,
    /// First interval between retries while the backend is unavailable.
    pub retry_min: Duration,
    /// Longest interval between such retries.
    pub retry_max: Duration,
    /// Bytes of output that are collected at a time, of all commands together: at most a quarter of it of one
    /// task, and an eighth belongs to each owner alone.
    pub exec_output_bytes: usize,
    /// Maximum number of concurrent commands in one task.
    pub exec_per_task: usize,
    /// Maximum number of sandboxes and tasks of one owner that are started at a time; further starts wait.
    pub starts_per_owner: usize,
    /// Time for which an unused device lease is protected from other owners.
    pub lease: Duration,
    /// Time for which devices are reserved for their owner after the sandbox that had them has stopped: it
    /// may be restarted.
    pub restart_grace: Duration,
    /// Treatment of a task that directly names a device that another holder has.
    pub named_devices: NamedDevices,
    /// Treatment of a pod that wants a port on which a program of the node listens.
    pub port_conflict: PortConflict,
    /// All processors and memory of the node; `None` if not known.
    pub capacity: Option<Reserved>,
    /// Treatment of a task that reserves more than is left of that.
    pub overcommit: Overcommit,
}

/// Treatment of a task that names a device of the node directly, by a path or a CDI name, while another
/// holder has that device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NamedDevices {
    /// It is refused.
    #[default]
    Refuse,
    /// It is created, and a warning is logged.
    Warn,
}

/// Treatment of a pod that wants a port of the node to be forwarded on which a program of the node listens. Those of other
/// owners are refused: so does Docker, which their orchestrators know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PortConflict {
    /// It is created, and takes the port's connections; a warning is logged, and an event tells it.
    #[default]
    Warn,
    /// It is refused.
    Refuse,
}

impl Limits {
    /// The pauses between the tries of background work on the backend.
    pub(super) const fn backoff(&self) -> Backoff {
        Backoff::new(self.retry_min, self.retry_max)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            kill: Duration::from_secs(60),
            outage: Duration::from_secs(1),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(5),
            exec_output_bytes: 256 << 20,
            exec_per_task: 1024,
            starts_per_owner: starts_per_owner(threads::processors()),
            lease: Duration::from_mins(10),
            restart_grace: Duration::from_secs(20),
            named_devices: NamedDevices::default(),
            port_conflict: PortConflict::default(),
            capacity: None,
            overcommit: Overcommit::default(),
        }
    }
}

/// The concurrent starts of one owner on a node with this many processors. Pure.
fn starts_per_owner(processors: usize) -> usize {
    processors
        .saturating_mul(STARTS_PER_PROCESSOR)
        .min(STARTS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_grow_with_the_processors_up_to_a_limit() {
        for (processors, starts) in [
            (1, 4),
            (2, 8),
            (15, 60),
            (16, 64),
            (17, 64),
            (512, 64),
            (usize::MAX, 64),
        ] {
            assert_eq!(starts_per_owner(processors), starts, "{processors}");
        }
    }
}
