//! What a gateway may take, and what it refuses.

use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::Duration;

use crate::ledger::Overcommit;
use crate::spec::Reserved;

/// How many sandboxes and tasks of one owner are started at a time for each processor, unless told otherwise.
const STARTS_PER_PROCESSOR: usize = 4;

/// How long the gateway waits for things that ought to be quick, and how much it takes on at a time.
#[derive(Debug, Clone)]
pub struct Limits {
    /// For a task to end after SIGKILL.
    pub kill: Duration,
    /// For a backend that is away to come back before the end of a killed task is given up on.
    pub outage: Duration,
    /// Between two looks at a backend that is away, at first.
    pub retry_min: Duration,
    /// The same, at most.
    pub retry_max: Duration,
    /// How much output of commands is collected at a time, of all commands together, in bytes.
    pub exec_output_bytes: usize,
    /// How many commands run in one task at a time.
    pub exec_per_task: usize,
    /// How many sandboxes and tasks of one owner are started at a time; more of them wait.
    pub starts_per_owner: usize,
    /// For a lease of devices that nothing has been made with to keep them from other owners.
    pub lease: Duration,
    /// For devices to be kept from other owners after what had them has stopped: it may be restarted.
    pub restart_grace: Duration,
    /// What becomes of a task that names a device by itself which somebody else has.
    pub named_devices: NamedDevices,
    /// All processors and memory of the node; `None` if that is not known.
    pub capacity: Option<Reserved>,
    /// What becomes of a task that reserves more than is left of them.
    pub overcommit: Overcommit,
}

/// What becomes of a task that names a device of the node by itself, by a path or a name, where somebody else has that device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NamedDevices {
    /// It is refused.
    #[default]
    Refuse,
    /// It is made, and that is told.
    Warn,
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
            starts_per_owner: STARTS_PER_PROCESSOR * available_parallelism().map_or(1, NonZero::get),
            lease: Duration::from_mins(10),
            restart_grace: Duration::from_secs(20),
            named_devices: NamedDevices::default(),
            capacity: None,
            overcommit: Overcommit::default(),
        }
    }
}
