//! The metrics of ListMetricDescriptors and ListPodSandboxMetrics, with the names and labels of cAdvisor.
//!
//! A metric for which the kernel has no source has a descriptor but no value: a zero is only reported if it
//! was measured. CRI's values are integers, so seconds are whole seconds.

use std::time::SystemTime;

use switchyard_core::spec::{CpuPeriod, CpuQuota, CpuShares, MemoryLimit, Resources};
use switchyard_core::stats::{Detail, FileSystem, InterfaceStats, TaskMetrics, Usage};
use switchyard_core::table::{Sandbox, Task};
use switchyard_proto::cri::v1 as cri;

use super::time::nanoseconds;
use super::{container, sandbox};
use crate::record::{ContainerRecord, SandboxRecord};

mod names;

use names::Name;
pub(crate) use names::descriptors;

const NS_IN_SECOND: u64 = 1_000_000_000;
const US_IN_SECOND: u64 = 1_000_000;

/// The values of the labels that all metrics of an object have.
#[derive(Debug, Clone)]
pub(crate) struct CommonLabels {
    pod: String,
    namespace: String,
    container: String,
    id: String,
    image: String,
}

/// Collects the metrics of one object, read at one time.
struct MetricsBuilder {
    subject: CommonLabels,
    timestamp: i64,
    metrics: Vec<cri::Metric>,
}

/// The metrics of a running container, read at `now`.
pub(crate) fn container_metrics(
    task: &Task,
    record: Option<&ContainerRecord>,
    pod: &CommonLabels,
    metrics: &TaskMetrics,
    now: SystemTime,
) -> cri::ContainerMetrics {
    let subject = CommonLabels {
        container: container::metadata(task, record).name,
        id: task.id.to_string(),
        image: container::image(task, record).image,
        ..pod.clone()
    };
    let mut sheet = MetricsBuilder { subject, timestamp: nanoseconds(now), metrics: Vec::with_capacity(64) };
    let TaskMetrics { stats, detail, file_system } = metrics;
    sheet.push(&names::LAST_SEEN, &[], seconds(now));
    sheet.push(&names::START_TIME, &[], task.state.started_at().and_then(seconds));
    sheet.usage(&stats.usage);
    sheet.detail(detail);
    sheet.limits(&task.details.resources);
    if let Some(FileSystem { device, size_bytes, inodes, inodes_free }) = file_system {
        let device = [device.as_str()];
        sheet.push(&names::FS_USAGE, &device, stats.writable_layer.as_ref().map(|layer| layer.used_bytes));
        sheet.push(&names::FS_LIMIT, &device, Some(*size_bytes));
        sheet.push(&names::FS_INODES, &device, *inodes);
        sheet.push(&names::FS_INODES_FREE, &device, *inodes_free);
    }
    cri::ContainerMetrics { container_id: sheet.subject.id, metrics: sheet.metrics }
}

/// The metrics of a sandbox, read at `now`: its network traffic.
pub(crate) fn sandbox_metrics(
    pod: &CommonLabels,
    interfaces: &[InterfaceStats],
    now: SystemTime,
) -> Vec<cri::Metric> {
    let mut sheet = MetricsBuilder { subject: pod.clone(), timestamp: nanoseconds(now), metrics: Vec::new() };
    for interface in interfaces.iter().filter(|interface| interface.name != "lo") {
        let InterfaceStats {
            name,
            rx_bytes,
            rx_packets,
            rx_errors,
            rx_dropped,
            tx_bytes,
            tx_packets,
            tx_errors,
            tx_dropped,
        } = interface;
        let name = [name.as_str()];
        sheet.push(&names::RX_BYTES, &name, Some(*rx_bytes));
        sheet.push(&names::RX_PACKETS, &name, Some(*rx_packets));
        sheet.push(&names::RX_ERRORS, &name, Some(*rx_errors));
        sheet.push(&names::RX_DROPPED, &name, Some(*rx_dropped));
        sheet.push(&names::TX_BYTES, &name, Some(*tx_bytes));
        sheet.push(&names::TX_PACKETS, &name, Some(*tx_packets));
        sheet.push(&names::TX_ERRORS, &name, Some(*tx_errors));
        sheet.push(&names::TX_DROPPED, &name, Some(*tx_dropped));
    }
    sheet.metrics
}

// === impl CommonLabels ===

impl CommonLabels {
    /// The labels of a sandbox itself; those of its containers differ in the container name.
    pub(crate) fn of(sandbox: &Sandbox, record: Option<&SandboxRecord>) -> Self {
        let metadata = sandbox::metadata(sandbox, record);
        Self {
            pod: metadata.name,
            namespace: metadata.namespace,
            container: String::new(),
            id: sandbox.id.to_string(),
            image: String::new(),
        }
    }
}

// === impl MetricsBuilder ===

impl MetricsBuilder {
    /// Adds a value, if there is one. `labels` are those of the metric beyond [`names::COMMON`].
    fn push(&mut self, name: &'static Name, labels: &[&str], value: Option<u64>) {
        debug_assert_eq!(labels.len(), name.labels.len(), "{}", name.name);
        let Some(value) = value else { return };
        let CommonLabels { pod, namespace, container, id, image } = &self.subject;
        let mut label_values = Vec::with_capacity(names::COMMON.len() + labels.len());
        label_values.extend([pod, namespace, container, id, image].map(String::clone));
        label_values.extend(labels.iter().map(|label| (*label).to_owned()));
        self.metrics.push(cri::Metric {
            name: name.name.to_owned(),
            timestamp: self.timestamp,
            metric_type: name.kind.into(),
            label_values,
            value: Some(cri::UInt64Value { value }),
        });
    }

    fn usage(&mut self, usage: &Usage) {
        let Usage { cpu, memory, swap, io, pids } = usage;
        if let Some(cpu) = cpu {
            let whole = |ns: Option<u64>| ns.map(|ns| ns / NS_IN_SECOND);
            self.push(&names::CPU_USAGE, &["total"], Some(cpu.total_ns / NS_IN_SECOND));
            self.push(&names::CPU_USER, &[], whole(cpu.user_ns));
            self.push(&names::CPU_SYSTEM, &[], whole(cpu.system_ns));
            self.push(&names::CFS_PERIODS, &[], cpu.periods);
            self.push(&names::CFS_THROTTLED_PERIODS, &[], cpu.throttled_periods);
            self.push(&names::CFS_THROTTLED, &[], whole(cpu.throttled_ns));
            self.pressure([&names::CPU_WAITING, &names::CPU_STALLED], cpu.pressure.as_ref());
        }
        if let Some(memory) = memory {
            self.push(&names::MEMORY_USAGE, &[], Some(memory.usage_bytes));
            self.push(&names::MEMORY_WORKING_SET, &[], Some(memory.working_set_bytes));
            self.push(&names::MEMORY_RSS, &[], memory.rss_bytes);
            self.push(&names::MEMORY_CACHE, &[], memory.cache_bytes);
            self.push(&names::MEMORY_MAPPED, &[], memory.mapped_bytes);
            self.push(&names::MEMORY_KERNEL, &[], memory.kernel_bytes);
            self.push(&names::MEMORY_PEAK, &[], memory.peak_bytes);
            self.push(&names::MEMORY_FAILCNT, &[], memory.limit_hits);
            // Where the kernel has only one counter for both, it is reported as the container's: it covers
            // all processes in its cgroup.
            let own = (
                memory.own_page_faults.or(memory.page_faults),
                memory.own_major_page_faults.or(memory.major_page_faults),
            );
            self.push(&names::MEMORY_FAILURES, &["pgfault", "container"], own.0);
            self.push(&names::MEMORY_FAILURES, &["pgmajfault", "container"], own.1);
            self.push(&names::MEMORY_FAILURES, &["pgfault", "hierarchy"], memory.page_faults);
            self.push(&names::MEMORY_FAILURES, &["pgmajfault", "hierarchy"], memory.major_page_faults);
            self.pressure([&names::MEMORY_WAITING, &names::MEMORY_STALLED], memory.pressure.as_ref());
        }
        self.push(&names::MEMORY_SWAP, &[], swap.as_ref().map(|swap| swap.usage_bytes));
        let pressure = io.as_ref().and_then(|io| io.pressure.as_ref());
        self.pressure([&names::IO_WAITING, &names::IO_STALLED], pressure);
        self.push(&names::THREADS, &[], *pids);
    }

    fn pressure(
        &mut self,
        [waiting, stalled]: [&'static Name; 2],
        pressure: Option<&switchyard_core::stats::Pressure>,
    ) {
        self.push(waiting, &[], pressure.map(|pressure| pressure.some.total_us / US_IN_SECOND));
        self.push(stalled, &[], pressure.map(|pressure| pressure.full.total_us / US_IN_SECOND));
    }

    fn detail(&mut self, detail: &Detail) {
        let Detail {
            oom_kills,
            devices,
            hugepages,
            processes,
            threads_limit,
            open_files,
            sockets,
            open_files_limit,
        } = detail;
        self.push(&names::OOM_EVENTS, &[], *oom_kills);
        self.push(&names::PROCESSES, &[], *processes);
        self.push(&names::THREADS_MAX, &[], *threads_limit);
        self.push(&names::FILE_DESCRIPTORS, &[], *open_files);
        self.push(&names::SOCKETS, &[], *sockets);
        self.push(&names::ULIMITS, &["max_open_files"], *open_files_limit);
        for device in devices {
            let name = device.device.as_str();
            let major = device.major.to_string();
            let minor = device.minor.to_string();
            for (operation, bytes) in &device.bytes {
                self.push(&names::BLKIO, &[name, &major, &minor, operation], Some(*bytes));
            }
            let of = |counts: &[(String, u64)], wanted: &str| {
                counts.iter().find(|(operation, _)| operation == wanted).map(|(_, count)| *count)
            };
            self.push(&names::FS_READ_BYTES, &[name], of(&device.bytes, "Read"));
            self.push(&names::FS_WRITE_BYTES, &[name], of(&device.bytes, "Write"));
            self.push(&names::FS_READS, &[name], of(&device.operations, "Read"));
            self.push(&names::FS_WRITES, &[name], of(&device.operations, "Write"));
        }
        for pages in hugepages {
            let size = [pages.page_size.as_str()];
            self.push(&names::HUGETLB_USAGE, &size, Some(pages.usage_bytes));
            self.push(&names::HUGETLB_PEAK, &size, pages.peak_bytes);
        }
    }

    /// The requested limits; unlimited resources have no value.
    fn limits(&mut self, resources: &Resources) {
        let memory = resources.memory_limit_bytes.and_then(MemoryLimit::get);
        // With a memory limit and no limit on the sum of memory and swap, there is no swap.
        let sum = resources.memory_swap_limit_bytes.or(resources.memory_limit_bytes);
        let file = |name: &str| resources.unified.get(name).and_then(|text| text.trim().parse().ok());
        let reserved = resources.memory_reservation_bytes.and_then(MemoryLimit::get);
        self.push(&names::SPEC_CPU_PERIOD, &[], resources.cpu_period_us.map(CpuPeriod::get));
        self.push(&names::SPEC_CPU_QUOTA, &[], resources.cpu_quota_us.and_then(CpuQuota::get));
        self.push(&names::SPEC_CPU_SHARES, &[], resources.cpu_shares.map(CpuShares::get));
        self.push(&names::SPEC_MEMORY_LIMIT, &[], memory);
        self.push(&names::SPEC_MEMORY_SWAP_LIMIT, &[], sum.and_then(MemoryLimit::get));
        let reserved = reserved.or_else(|| file("memory.low")).or_else(|| file("memory.min"));
        self.push(&names::SPEC_MEMORY_RESERVATION, &[], reserved);
    }
}

fn seconds(time: SystemTime) -> Option<u64> {
    time.duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_secs())
}

#[cfg(test)]
mod tests;
