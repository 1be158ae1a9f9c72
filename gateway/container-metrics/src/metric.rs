//! The names, help texts, types and labels of all metrics.

/// Type of a metric in Prometheus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It counts from the start of the container.
    Counter,
    /// It rises and falls.
    Gauge,
}

impl Kind {
    /// The word for it in Prometheus text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// The description of a metric.
struct Description {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
}

/// Defines a variant for each metric, and the list of all.
macro_rules! metrics {
    ($($variant:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        /// A metric of containers or sandboxes, in the order in which they are described and written.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Metric {
            $(#[doc = $help] $variant,)*
        }

        impl Metric {
            /// All metrics.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            const fn description(self) -> &'static Description {
                match self {
                    $(Self::$variant => &Description {
                        name: $name,
                        help: $help,
                        kind: Kind::$kind,
                        labels: &[$($label),*],
                    },)*
                }
            }
        }
    };
}

metrics! {
    CpuUsage: Counter "container_cpu_usage_seconds_total" ["cpu"] "Processor time used, in seconds.";
    CpuUser: Counter "container_cpu_user_seconds_total" [] "Processor time used in user mode, in seconds.";
    CpuSystem: Counter "container_cpu_system_seconds_total" [] "Processor time used in the kernel, in seconds.";
    CfsPeriods: Counter "container_cpu_cfs_periods_total" [] "Periods in which a processor quota was counted.";
    CfsThrottledPeriods: Counter "container_cpu_cfs_throttled_periods_total" [] "Periods in which the processor quota ran out.";
    CfsThrottled: Counter "container_cpu_cfs_throttled_seconds_total" [] "Time spent waiting for processor quota, in seconds.";
    CpuWaiting: Counter "container_pressure_cpu_waiting_seconds_total" [] "Time in which some task waited for a processor, in seconds.";
    CpuStalled: Counter "container_pressure_cpu_stalled_seconds_total" [] "Time in which all tasks waited for a processor, in seconds.";
    MemoryUsage: Gauge "container_memory_usage_bytes" [] "Memory charged, page cache included, in bytes.";
    MemoryWorkingSet: Gauge "container_memory_working_set_bytes" [] "Memory charged less the inactive page cache, in bytes.";
    MemoryRss: Gauge "container_memory_rss" [] "Anonymous memory, in bytes.";
    MemoryCache: Gauge "container_memory_cache" [] "Page cache, in bytes.";
    MemoryMapped: Gauge "container_memory_mapped_file" [] "Files mapped into memory, in bytes.";
    MemoryKernel: Gauge "container_memory_kernel_usage" [] "Memory of the kernel's own, in bytes.";
    MemorySwap: Gauge "container_memory_swap" [] "Swap used, in bytes.";
    MemoryPeak: Gauge "container_memory_max_usage_bytes" [] "Highest memory usage seen, in bytes.";
    MemoryFailcnt: Counter "container_memory_failcnt" [] "How often the memory limit was hit.";
    MemoryFailures: Counter "container_memory_failures_total" ["failure_type", "scope"] "Page faults, by kind.";
    MemoryWaiting: Counter "container_pressure_memory_waiting_seconds_total" [] "Time in which some task waited for memory, in seconds.";
    MemoryStalled: Counter "container_pressure_memory_stalled_seconds_total" [] "Time in which all tasks waited for memory, in seconds.";
    OomEvents: Counter "container_oom_events_total" [] "Processes killed for want of memory.";
    HugetlbUsage: Gauge "container_hugetlb_usage_bytes" ["pagesize"] "Huge pages in use, in bytes.";
    HugetlbPeak: Gauge "container_hugetlb_max_usage_bytes" ["pagesize"] "Highest usage of huge pages seen, in bytes.";
    IoWaiting: Counter "container_pressure_io_waiting_seconds_total" [] "Time in which some task waited for I/O, in seconds.";
    IoStalled: Counter "container_pressure_io_stalled_seconds_total" [] "Time in which all tasks waited for I/O, in seconds.";
    Blkio: Counter "container_blkio_device_usage_total" ["device", "major", "minor", "operation"] "Block I/O by device and operation, in bytes.";
    FsReadBytes: Counter "container_fs_reads_bytes_total" ["device"] "Bytes read from a device.";
    FsWriteBytes: Counter "container_fs_writes_bytes_total" ["device"] "Bytes written to a device.";
    FsReads: Counter "container_fs_reads_total" ["device"] "Reads from a device.";
    FsWrites: Counter "container_fs_writes_total" ["device"] "Writes to a device.";
    FsUsage: Gauge "container_fs_usage_bytes" ["device"] "Size of the writable layer, in bytes.";
    FsLimit: Gauge "container_fs_limit_bytes" ["device"] "Size of the file system of the writable layer, in bytes.";
    FsInodes: Gauge "container_fs_inodes_total" ["device"] "Inodes of the file system of the writable layer.";
    FsInodesFree: Gauge "container_fs_inodes_free" ["device"] "Free inodes of the file system of the writable layer.";
    RxBytes: Counter "container_network_receive_bytes_total" ["interface"] "Bytes received.";
    RxPackets: Counter "container_network_receive_packets_total" ["interface"] "Packets received.";
    RxErrors: Counter "container_network_receive_errors_total" ["interface"] "Errors of receiving.";
    RxDropped: Counter "container_network_receive_packets_dropped_total" ["interface"] "Packets dropped as they came.";
    TxBytes: Counter "container_network_transmit_bytes_total" ["interface"] "Bytes sent.";
    TxPackets: Counter "container_network_transmit_packets_total" ["interface"] "Packets sent.";
    TxErrors: Counter "container_network_transmit_errors_total" ["interface"] "Errors of sending.";
    TxDropped: Counter "container_network_transmit_packets_dropped_total" ["interface"] "Packets dropped on their way out.";
    Processes: Gauge "container_processes" [] "Processes.";
    Threads: Gauge "container_threads" [] "Threads.";
    ThreadsMax: Gauge "container_threads_max" [] "How many threads there may be.";
    FileDescriptors: Gauge "container_file_descriptors" [] "Open files.";
    Sockets: Gauge "container_sockets" [] "Open sockets.";
    Ulimits: Gauge "container_ulimits_soft" ["ulimit"] "Soft limits of the main process.";
    LastSeen: Gauge "container_last_seen" [] "When the container was read last, in seconds since 1970.";
    StartTime: Gauge "container_start_time_seconds" [] "When the container was started, in seconds since 1970.";
    SpecCpuPeriod: Gauge "container_spec_cpu_period" [] "Period of the processor quota, in microseconds.";
    SpecCpuQuota: Gauge "container_spec_cpu_quota" [] "Processor quota for a period, in microseconds.";
    SpecCpuShares: Gauge "container_spec_cpu_shares" [] "Relative weight for processors.";
    SpecMemoryLimit: Gauge "container_spec_memory_limit_bytes" [] "Memory limit, in bytes.";
    SpecMemoryReservation: Gauge "container_spec_memory_reservation_limit_bytes" [] "Memory that is kept for it, in bytes.";
    SpecMemorySwapLimit: Gauge "container_spec_memory_swap_limit_bytes" [] "Limit on memory and swap together, in bytes.";
}

impl Metric {
    /// Its name, which is cAdvisor's.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.description().name
    }

    /// Its help text, one sentence.
    #[must_use]
    pub const fn help(self) -> &'static str {
        self.description().help
    }

    /// Its type: counter or gauge.
    #[must_use]
    pub const fn kind(self) -> Kind {
        self.description().kind
    }

    /// Its own labels, beyond those that all metrics of an object have.
    #[must_use]
    pub const fn labels(self) -> &'static [&'static str] {
        self.description().labels
    }

    /// Its place in [`Metric::ALL`].
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_names_of_cadvisor_are_there_once() {
        let names: BTreeSet<_> = Metric::ALL.iter().map(|metric| metric.name()).collect();
        assert_eq!((names.len(), Metric::ALL.len()), (56, 56));
        for (place, metric) in Metric::ALL.iter().enumerate() {
            assert_eq!(metric.index(), place);
            assert!(
                metric.name().starts_with("container_") && metric.help().ends_with('.'),
                "{metric:?}"
            );
            let distinct: BTreeSet<_> = metric.labels().iter().collect();
            assert_eq!(distinct.len(), metric.labels().len(), "{metric:?}");
        }
    }

    #[test]
    fn counter_names_have_counter_suffixes_except_two_of_cadvisor() {
        let misnamed: Vec<_> = Metric::ALL
            .iter()
            .filter(|metric| metric.name().ends_with("_total") != (metric.kind() == Kind::Counter))
            .collect();
        assert_eq!(misnamed, [&Metric::MemoryFailcnt, &Metric::FsInodes]);
    }
}
