//! Conversion of a reading to the samples of metrics.
//!
//! The samples of one object go to a sink: a function of the metric, the values of its own labels, and the
//! amount. They come in a fixed order.

use std::time::SystemTime;

use switchyard_core::object::Task;
use switchyard_core::spec::{CpuPeriod, CpuQuota, CpuShares, MemoryLimit, Resources};
use switchyard_core::stats::{
    Detail, DeviceIo, FileSystem, InterfaceStats, Pressure, TaskMetrics, Usage,
};

use crate::Metric;
use crate::amount::Amount;

/// The samples of a running task, read at `now`.
pub fn of_task(
    task: &Task,
    metrics: &TaskMetrics,
    now: SystemTime,
    sink: impl FnMut(Metric, &[&str], Amount),
) {
    let mut sheet = Sheet { sink };
    let TaskMetrics {
        stats,
        detail,
        file_system,
    } = metrics;
    sheet.count(Metric::LastSeen, &[], seconds(now));
    sheet.count(
        Metric::StartTime,
        &[],
        task.state.started_at().and_then(seconds),
    );
    sheet.usage(&stats.usage);
    sheet.detail(detail);
    sheet.limits(&task.details.resources);
    if let Some(FileSystem {
        device,
        size_bytes,
        inodes,
        inodes_free,
    }) = file_system
    {
        let device = [device.as_str()];
        sheet.count(
            Metric::FsUsage,
            &device,
            stats.writable_layer.as_ref().map(|layer| layer.used_bytes),
        );
        sheet.count(Metric::FsLimit, &device, Some(*size_bytes));
        sheet.count(Metric::FsInodes, &device, *inodes);
        sheet.count(Metric::FsInodesFree, &device, *inodes_free);
    }
}

/// The samples of a sandbox: its network traffic, without that of the loopback interface.
pub fn of_sandbox(interfaces: &[InterfaceStats], sink: impl FnMut(Metric, &[&str], Amount)) {
    let mut sheet = Sheet { sink };
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
        sheet.count(Metric::RxBytes, &name, Some(*rx_bytes));
        sheet.count(Metric::RxPackets, &name, Some(*rx_packets));
        sheet.count(Metric::RxErrors, &name, Some(*rx_errors));
        sheet.count(Metric::RxDropped, &name, Some(*rx_dropped));
        sheet.count(Metric::TxBytes, &name, Some(*tx_bytes));
        sheet.count(Metric::TxPackets, &name, Some(*tx_packets));
        sheet.count(Metric::TxErrors, &name, Some(*tx_errors));
        sheet.count(Metric::TxDropped, &name, Some(*tx_dropped));
    }
}

/// Passes on those readings of one object that were measured.
struct Sheet<S> {
    sink: S,
}

impl<S: FnMut(Metric, &[&str], Amount)> Sheet<S> {
    /// Adds a value, if there is one. `labels` are the values of the metric's own labels.
    fn add(&mut self, metric: Metric, labels: &[&str], amount: Option<Amount>) {
        debug_assert_eq!(labels.len(), metric.labels().len(), "{metric:?}");
        if let Some(amount) = amount {
            (self.sink)(metric, labels, amount);
        }
    }

    fn count(&mut self, metric: Metric, labels: &[&str], count: Option<u64>) {
        self.add(metric, labels, count.map(Amount::Count));
    }

    fn nanoseconds(&mut self, metric: Metric, labels: &[&str], ns: Option<u64>) {
        self.add(metric, labels, ns.map(Amount::Nanoseconds));
    }

    fn usage(&mut self, usage: &Usage) {
        let Usage {
            cpu,
            memory,
            swap,
            io,
            pids,
        } = usage;
        if let Some(cpu) = cpu {
            self.nanoseconds(Metric::CpuUsage, &["total"], Some(cpu.total_ns));
            self.nanoseconds(Metric::CpuUser, &[], cpu.user_ns);
            self.nanoseconds(Metric::CpuSystem, &[], cpu.system_ns);
            self.count(Metric::CfsPeriods, &[], cpu.periods);
            self.count(Metric::CfsThrottledPeriods, &[], cpu.throttled_periods);
            self.nanoseconds(Metric::CfsThrottled, &[], cpu.throttled_ns);
            self.pressure(
                [Metric::CpuWaiting, Metric::CpuStalled],
                cpu.pressure.as_ref(),
            );
        }
        if let Some(memory) = memory {
            self.count(Metric::MemoryUsage, &[], Some(memory.usage_bytes));
            self.count(
                Metric::MemoryWorkingSet,
                &[],
                Some(memory.working_set_bytes),
            );
            self.count(Metric::MemoryRss, &[], memory.rss_bytes);
            self.count(Metric::MemoryCache, &[], memory.cache_bytes);
            self.count(Metric::MemoryMapped, &[], memory.mapped_bytes);
            self.count(Metric::MemoryKernel, &[], memory.kernel_bytes);
            self.count(Metric::MemoryPeak, &[], memory.peak_bytes);
            self.count(Metric::MemoryFailcnt, &[], memory.limit_hits);
            // Where the kernel has only one counter for both, it is reported as the container's: it covers
            // all processes in its cgroup.
            let own = memory.own_page_faults.or(memory.page_faults);
            let own_major = memory.own_major_page_faults.or(memory.major_page_faults);
            self.count(Metric::MemoryFailures, &["pgfault", "container"], own);
            self.count(
                Metric::MemoryFailures,
                &["pgmajfault", "container"],
                own_major,
            );
            self.count(
                Metric::MemoryFailures,
                &["pgfault", "hierarchy"],
                memory.page_faults,
            );
            self.count(
                Metric::MemoryFailures,
                &["pgmajfault", "hierarchy"],
                memory.major_page_faults,
            );
            self.pressure(
                [Metric::MemoryWaiting, Metric::MemoryStalled],
                memory.pressure.as_ref(),
            );
        }
        self.count(
            Metric::MemorySwap,
            &[],
            swap.as_ref().map(|swap| swap.usage_bytes),
        );
        let pressure = io.as_ref().and_then(|io| io.pressure.as_ref());
        self.pressure([Metric::IoWaiting, Metric::IoStalled], pressure);
        self.count(Metric::Threads, &[], *pids);
    }

    fn pressure(&mut self, [waiting, stalled]: [Metric; 2], pressure: Option<&Pressure>) {
        let Some(Pressure { some, full }) = pressure else {
            return;
        };
        self.add(waiting, &[], Some(Amount::Microseconds(some.total_us)));
        let full = full.as_ref();
        self.add(
            stalled,
            &[],
            full.map(|full| Amount::Microseconds(full.total_us)),
        );
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
        self.count(Metric::OomEvents, &[], *oom_kills);
        self.count(Metric::Processes, &[], *processes);
        self.count(Metric::ThreadsMax, &[], *threads_limit);
        self.count(Metric::FileDescriptors, &[], *open_files);
        self.count(Metric::Sockets, &[], *sockets);
        self.count(Metric::Ulimits, &["max_open_files"], *open_files_limit);
        for device in devices {
            self.device(device);
        }
        for pages in hugepages {
            let size = [pages.page_size.as_str()];
            self.count(Metric::HugetlbUsage, &size, Some(pages.usage_bytes));
            self.count(Metric::HugetlbPeak, &size, pages.peak_bytes);
        }
    }

    fn device(&mut self, io: &DeviceIo) {
        let DeviceIo {
            device,
            major,
            minor,
            bytes,
            operations,
        } = io;
        let major = major.to_string();
        let minor = minor.to_string();
        for (operation, bytes) in bytes {
            self.count(
                Metric::Blkio,
                &[device, &major, &minor, operation],
                Some(*bytes),
            );
        }
        let of = |counts: &[(String, u64)], wanted: &str| {
            counts
                .iter()
                .find(|(operation, _)| operation == wanted)
                .map(|(_, count)| *count)
        };
        self.count(Metric::FsReadBytes, &[device], of(bytes, "Read"));
        self.count(Metric::FsWriteBytes, &[device], of(bytes, "Write"));
        self.count(Metric::FsReads, &[device], of(operations, "Read"));
        self.count(Metric::FsWrites, &[device], of(operations, "Write"));
    }

    /// The requested limits; unlimited resources have no value.
    fn limits(&mut self, resources: &Resources) {
        let memory = resources.memory_limit_bytes.and_then(MemoryLimit::get);
        // With a memory limit and no limit on the sum of memory and swap, there is no swap.
        let sum = resources
            .memory_swap_limit_bytes
            .or(resources.memory_limit_bytes);
        let file = |name: &str| {
            resources
                .unified
                .get(name)
                .and_then(|text| text.trim().parse().ok())
        };
        let reserved = resources
            .memory_reservation_bytes
            .and_then(MemoryLimit::get);
        self.count(
            Metric::SpecCpuPeriod,
            &[],
            resources.cpu_period_us.map(CpuPeriod::get),
        );
        self.count(
            Metric::SpecCpuQuota,
            &[],
            resources.cpu_quota_us.and_then(CpuQuota::get),
        );
        self.count(
            Metric::SpecCpuShares,
            &[],
            resources.cpu_shares.map(CpuShares::get),
        );
        self.count(Metric::SpecMemoryLimit, &[], memory);
        self.count(
            Metric::SpecMemorySwapLimit,
            &[],
            sum.and_then(MemoryLimit::get),
        );
        let reserved = reserved
            .or_else(|| file("memory.low"))
            .or_else(|| file("memory.min"));
        self.count(Metric::SpecMemoryReservation, &[], reserved);
    }
}

fn seconds(time: SystemTime) -> Option<u64> {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .ok()
        .map(|since| since.as_secs())
}

#[cfg(test)]
mod tests;
