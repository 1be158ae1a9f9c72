//! One reading of the running containers: the samples of their metrics, and the counters that `switchyard top` shows.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use switchyard_container_metrics::Figures;
use switchyard_core::Error;
use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::names::Names;
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::spec::MemoryLimit;
use switchyard_core::stats::{InterfaceStats, TaskMetrics};
use switchyard_operator_api::{ContainersView, SandboxTrafficView, TaskUsageView};

/// A reading of all running containers.
#[derive(Debug)]
pub struct ContainerReading {
    /// End of the reading.
    pub at: SystemTime,
    /// The samples of all metrics.
    pub figures: Arc<Figures>,
    /// The running tasks.
    pub tasks: Vec<TaskUsage>,
    /// The sandboxes with a network of their own.
    pub traffic: Vec<SandboxTraffic>,
    /// Owners whose containers could not be read, with the reasons; not all of them.
    pub failures: BTreeMap<Owner, Error>,
}

/// The counters of a running task.
#[derive(Debug)]
pub struct TaskUsage {
    /// The task.
    pub task: Arc<Task>,
    /// Its sandbox.
    pub sandbox: Arc<Sandbox>,
    /// Time at which the processor time was read, and its total since the start, in nanoseconds.
    pub cpu: Option<(SystemTime, u64)>,
    /// Working set, in bytes.
    pub memory_bytes: Option<u64>,
    /// Bytes read from and written to block devices; `None` if the kernel does not count them.
    pub io: Option<(u64, u64)>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// The traffic of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SandboxTraffic {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Bytes received by its interfaces, without loopback.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
}

// === impl ContainerReading ===

impl ContainerReading {
    /// Returns the owners of a selection, one or all, each with the reason why its containers could not be read; `None` if
    /// they were.
    pub fn results(&self, owner: Option<Owner>) -> impl Iterator<Item = (Owner, Option<&Error>)> {
        let selected = Owner::ALL
            .into_iter()
            .filter(move |of| owner.is_none_or(|owner| owner == *of));
        selected.map(move |of| (of, self.failures.get(&of)))
    }

    /// The counters for display, of one owner or of all.
    #[must_use]
    pub fn view(
        &self,
        owner: Option<Owner>,
        names: impl Fn(&Sandbox, Option<&Task>) -> Names,
    ) -> ContainersView {
        let traffic: HashMap<SandboxId, &SandboxTraffic> = self
            .traffic
            .iter()
            .map(|traffic| (traffic.sandbox, traffic))
            .collect();
        let wanted = self
            .tasks
            .iter()
            .filter(|usage| owner.is_none_or(|owner| usage.task.meta.owner == owner));
        let view = |usage: &TaskUsage| {
            let names = names(&usage.sandbox, Some(&usage.task));
            usage.view(&names, traffic.get(&usage.sandbox.id).copied())
        };
        let mut tasks: Vec<_> = wanted.map(view).collect();
        tasks.sort_by(|a, b| {
            (&a.owner, &a.display_name, &a.id).cmp(&(&b.owner, &b.display_name, &b.id))
        });
        ContainersView {
            at_unix_ns: unix_ns(self.at),
            tasks,
        }
    }
}

// === impl TaskUsage ===

impl TaskUsage {
    /// The counters that `top` shows, of all metrics of a task.
    #[must_use]
    pub fn of(task: Arc<Task>, sandbox: Arc<Sandbox>, metrics: &TaskMetrics) -> Self {
        let usage = &metrics.stats.usage;
        let sum = |operation: &str| {
            let counts = metrics
                .detail
                .devices
                .iter()
                .flat_map(|device| &device.bytes);
            counts
                .filter(|(name, _)| name == operation)
                .fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes))
        };
        Self {
            task,
            sandbox,
            cpu: usage.cpu.as_ref().map(|cpu| (cpu.at, cpu.total_ns)),
            memory_bytes: usage.memory.as_ref().map(|memory| memory.working_set_bytes),
            io: (!metrics.detail.devices.is_empty()).then(|| (sum("Read"), sum("Write"))),
            pids: usage.pids,
        }
    }

    fn view(&self, names: &Names, traffic: Option<&SandboxTraffic>) -> TaskUsageView {
        let limit = self
            .task
            .details
            .resources
            .memory_limit_bytes
            .and_then(MemoryLimit::get);
        TaskUsageView {
            id: self.task.id.to_string(),
            owner: self.task.meta.owner.to_string(),
            display_name: names.to_string(),
            cpu_at_unix_ns: self.cpu.map(|(at, _)| unix_ns(at)),
            cpu_ns: self.cpu.map(|(_, total)| total),
            memory_bytes: self.memory_bytes,
            memory_limit_bytes: limit,
            read_bytes: self.io.map(|(read, _)| read),
            written_bytes: self.io.map(|(_, written)| written),
            pids: self.pids,
            network: traffic.map(
                |SandboxTraffic {
                     sandbox,
                     received_bytes,
                     sent_bytes,
                 }| {
                    SandboxTrafficView {
                        sandbox: sandbox.to_string(),
                        received_bytes: *received_bytes,
                        sent_bytes: *sent_bytes,
                    }
                },
            ),
        }
    }
}

// === impl SandboxTraffic ===

impl SandboxTraffic {
    /// The sum over the interfaces of a sandbox.
    #[must_use]
    pub fn of(sandbox: SandboxId, interfaces: &[InterfaceStats]) -> Self {
        let mut traffic = Self {
            sandbox,
            received_bytes: 0,
            sent_bytes: 0,
        };
        // Traffic on loopback does not leave the sandbox.
        for interface in interfaces.iter().filter(|interface| interface.name != "lo") {
            traffic.received_bytes = traffic.received_bytes.saturating_add(interface.rx_bytes);
            traffic.sent_bytes = traffic.sent_bytes.saturating_add(interface.tx_bytes);
        }
        traffic
    }
}

fn unix_ns(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use switchyard_container_metrics::samples;
    use switchyard_core::id::TaskId;

    use super::*;

    #[test]
    fn counters_are_exact_and_summed_over_block_devices() {
        let task = Arc::new(samples::task(
            Owner::Kubernetes,
            TaskId::from_bytes([1; 32]),
        ));
        let sandbox = Arc::new(samples::sandbox(&task));
        let traffic = vec![SandboxTraffic::of(sandbox.id, &[samples::interface()])];
        let reading = ContainerReading {
            at: UNIX_EPOCH + Duration::from_secs(7),
            figures: Arc::default(),
            tasks: vec![TaskUsage::of(task, sandbox, &samples::reading())],
            traffic,
            failures: BTreeMap::new(),
        };
        let text = serde_json::to_string(&reading.view(None, |_, _| Names::new("web"))).unwrap();
        let view: ContainersView = serde_json::from_str(&text).unwrap();
        assert_eq!(view.at_unix_ns, 7_000_000_000);
        let usage = &view.tasks[0];
        // A floating-point number would be rounded.
        assert_eq!(usage.cpu_ns, Some(9_007_199_254_999_999_999));
        assert_eq!(
            (usage.memory_bytes, usage.memory_limit_bytes, usage.pids),
            (Some(11), Some(1 << 20), Some(29))
        );
        assert_eq!(
            (usage.read_bytes, usage.written_bytes),
            (Some(40 + 60), Some(41 + 61))
        );
        let network = usage.network.as_ref().unwrap();
        assert_eq!((network.received_bytes, network.sent_bytes), (1, 5));
    }
}
