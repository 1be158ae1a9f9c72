//! The names, help texts and labels of all metrics.

use switchyard_proto::cri::v1 as cri;

/// The labels that all metrics have, before their own.
pub(super) const COMMON: [&str; 5] = ["pod", "namespace", "container", "id", "image"];

/// A metric's name and description.
#[derive(Debug, PartialEq)]
pub(super) struct Name {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: cri::MetricType,
    /// The labels beyond [`COMMON`].
    pub(super) labels: &'static [&'static str],
}

/// Defines a constant for each metric, and the list of all.
macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            pub(super) static $constant: Name = Name {
                name: $name,
                help: $help,
                kind: cri::MetricType::$kind,
                labels: &[$($label),*],
            };
        )*
        /// All metrics.
        pub(super) static ALL: &[&Name] = &[$(&$constant),*];
    };
}

metrics! {
    CPU_USAGE: Counter "container_cpu_usage_seconds_total" ["cpu"] "Processor time used, in seconds.";
    CPU_USER: Counter "container_cpu_user_seconds_total" [] "Processor time used in user mode, in seconds.";
    CPU_SYSTEM: Counter "container_cpu_system_seconds_total" [] "Processor time used in the kernel, in seconds.";
    CFS_PERIODS: Counter "container_cpu_cfs_periods_total" [] "Periods in which a processor quota was counted.";
    CFS_THROTTLED_PERIODS: Counter "container_cpu_cfs_throttled_periods_total" [] "Periods in which the processor quota ran out.";
    CFS_THROTTLED: Counter "container_cpu_cfs_throttled_seconds_total" [] "Time spent waiting for processor quota, in seconds.";
    CPU_WAITING: Counter "container_pressure_cpu_waiting_seconds_total" [] "Time in which some task waited for a processor, in seconds.";
    CPU_STALLED: Counter "container_pressure_cpu_stalled_seconds_total" [] "Time in which all tasks waited for a processor, in seconds.";
    MEMORY_USAGE: Gauge "container_memory_usage_bytes" [] "Memory charged, page cache included, in bytes.";
    MEMORY_WORKING_SET: Gauge "container_memory_working_set_bytes" [] "Memory charged less the inactive page cache, in bytes.";
    MEMORY_RSS: Gauge "container_memory_rss" [] "Anonymous memory, in bytes.";
    MEMORY_CACHE: Gauge "container_memory_cache" [] "Page cache, in bytes.";
    MEMORY_MAPPED: Gauge "container_memory_mapped_file" [] "Files mapped into memory, in bytes.";
    MEMORY_KERNEL: Gauge "container_memory_kernel_usage" [] "Memory of the kernel's own, in bytes.";
    MEMORY_SWAP: Gauge "container_memory_swap" [] "Swap used, in bytes.";
    MEMORY_PEAK: Gauge "container_memory_max_usage_bytes" [] "Highest memory usage seen, in bytes.";
    MEMORY_FAILCNT: Counter "container_memory_failcnt" [] "How often the memory limit was hit.";
    MEMORY_FAILURES: Counter "container_memory_failures_total" ["failure_type", "scope"] "Page faults, by kind.";
    MEMORY_WAITING: Counter "container_pressure_memory_waiting_seconds_total" [] "Time in which some task waited for memory, in seconds.";
    MEMORY_STALLED: Counter "container_pressure_memory_stalled_seconds_total" [] "Time in which all tasks waited for memory, in seconds.";
    OOM_EVENTS: Counter "container_oom_events_total" [] "Processes killed for want of memory.";
    HUGETLB_USAGE: Gauge "container_hugetlb_usage_bytes" ["pagesize"] "Huge pages in use, in bytes.";
    HUGETLB_PEAK: Gauge "container_hugetlb_max_usage_bytes" ["pagesize"] "Highest usage of huge pages seen, in bytes.";
    IO_WAITING: Counter "container_pressure_io_waiting_seconds_total" [] "Time in which some task waited for I/O, in seconds.";
    IO_STALLED: Counter "container_pressure_io_stalled_seconds_total" [] "Time in which all tasks waited for I/O, in seconds.";
    BLKIO: Counter "container_blkio_device_usage_total" ["device", "major", "minor", "operation"] "Block I/O by device and operation, in bytes.";
    FS_READ_BYTES: Counter "container_fs_reads_bytes_total" ["device"] "Bytes read from a device.";
    FS_WRITE_BYTES: Counter "container_fs_writes_bytes_total" ["device"] "Bytes written to a device.";
    FS_READS: Counter "container_fs_reads_total" ["device"] "Reads from a device.";
    FS_WRITES: Counter "container_fs_writes_total" ["device"] "Writes to a device.";
    FS_USAGE: Gauge "container_fs_usage_bytes" ["device"] "Size of the writable layer, in bytes.";
    FS_LIMIT: Gauge "container_fs_limit_bytes" ["device"] "Size of the file system of the writable layer, in bytes.";
    FS_INODES: Gauge "container_fs_inodes_total" ["device"] "Inodes of the file system of the writable layer.";
    FS_INODES_FREE: Gauge "container_fs_inodes_free" ["device"] "Free inodes of the file system of the writable layer.";
    RX_BYTES: Counter "container_network_receive_bytes_total" ["interface"] "Bytes received.";
    RX_PACKETS: Counter "container_network_receive_packets_total" ["interface"] "Packets received.";
    RX_ERRORS: Counter "container_network_receive_errors_total" ["interface"] "Errors of receiving.";
    RX_DROPPED: Counter "container_network_receive_packets_dropped_total" ["interface"] "Packets dropped as they came.";
    TX_BYTES: Counter "container_network_transmit_bytes_total" ["interface"] "Bytes sent.";
    TX_PACKETS: Counter "container_network_transmit_packets_total" ["interface"] "Packets sent.";
    TX_ERRORS: Counter "container_network_transmit_errors_total" ["interface"] "Errors of sending.";
    TX_DROPPED: Counter "container_network_transmit_packets_dropped_total" ["interface"] "Packets dropped on their way out.";
    PROCESSES: Gauge "container_processes" [] "Processes.";
    THREADS: Gauge "container_threads" [] "Threads.";
    THREADS_MAX: Gauge "container_threads_max" [] "How many threads there may be.";
    FILE_DESCRIPTORS: Gauge "container_file_descriptors" [] "Open files.";
    SOCKETS: Gauge "container_sockets" [] "Open sockets.";
    ULIMITS: Gauge "container_ulimits_soft" ["ulimit"] "Soft limits of the main process.";
    LAST_SEEN: Gauge "container_last_seen" [] "When the container was read last, in seconds since 1970.";
    START_TIME: Gauge "container_start_time_seconds" [] "When the container was started, in seconds since 1970.";
    SPEC_CPU_PERIOD: Gauge "container_spec_cpu_period" [] "Period of the processor quota, in microseconds.";
    SPEC_CPU_QUOTA: Gauge "container_spec_cpu_quota" [] "Processor quota for a period, in microseconds.";
    SPEC_CPU_SHARES: Gauge "container_spec_cpu_shares" [] "Relative weight for processors.";
    SPEC_MEMORY_LIMIT: Gauge "container_spec_memory_limit_bytes" [] "Memory limit, in bytes.";
    SPEC_MEMORY_RESERVATION: Gauge "container_spec_memory_reservation_limit_bytes" [] "Memory that is kept for it, in bytes.";
    SPEC_MEMORY_SWAP_LIMIT: Gauge "container_spec_memory_swap_limit_bytes" [] "Limit on memory and swap together, in bytes.";
}

/// The descriptors of all metrics.
pub(crate) fn descriptors() -> Vec<cri::MetricDescriptor> {
    ALL.iter()
        .map(|name| cri::MetricDescriptor {
            name: name.name.to_owned(),
            help: name.help.to_owned(),
            label_keys: COMMON.iter().chain(name.labels).map(|label| (*label).to_owned()).collect(),
        })
        .collect()
}
