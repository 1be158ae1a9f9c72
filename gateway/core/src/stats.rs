//! Resource usage, as read from the kernel. A value that the kernel does not provide is `None`, never 0.

use std::path::PathBuf;
use std::time::SystemTime;

/// Usage of one task or of one cgroup.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Usage {
    /// Processor time.
    pub cpu: Option<CpuUsage>,
    /// Memory.
    pub memory: Option<MemoryUsage>,
    /// Swap.
    pub swap: Option<SwapUsage>,
    /// Block I/O pressure.
    pub io: Option<IoUsage>,
    /// Number of processes and threads.
    pub pids: Option<u64>,
}

/// Processor time.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuUsage {
    /// Time of the reading.
    pub at: SystemTime,
    /// Time used since the cgroup was created, ns.
    pub total_ns: u64,
    /// Time in user mode, ns.
    pub user_ns: Option<u64>,
    /// Time in the kernel, ns.
    pub system_ns: Option<u64>,
    /// Periods in which the quota was enforced.
    pub periods: Option<u64>,
    /// Periods in which the quota was exhausted.
    pub throttled_periods: Option<u64>,
    /// Time throttled, ns.
    pub throttled_ns: Option<u64>,
    /// Pressure stall information.
    pub pressure: Option<Pressure>,
}

/// Memory in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryUsage {
    /// Time of the reading.
    pub at: SystemTime,
    /// All charged memory, including the page cache.
    pub usage_bytes: u64,
    /// Usage minus the inactive page cache.
    pub working_set_bytes: u64,
    /// Limit minus the working set; `None` without a limit.
    pub available_bytes: Option<u64>,
    /// Anonymous memory.
    pub rss_bytes: Option<u64>,
    /// Page cache.
    pub cache_bytes: Option<u64>,
    /// Mapped files.
    pub mapped_bytes: Option<u64>,
    /// Kernel memory.
    pub kernel_bytes: Option<u64>,
    /// Peak usage.
    pub peak_bytes: Option<u64>,
    /// Number of times that usage reached the limit.
    pub limit_hits: Option<u64>,
    /// Page faults, including those of child cgroups.
    pub page_faults: Option<u64>,
    /// Page faults that needed I/O, including those of child cgroups.
    pub major_page_faults: Option<u64>,
    /// Page faults without those of child cgroups, where the kernel counts them separately.
    pub own_page_faults: Option<u64>,
    /// Page faults that needed I/O, without those of child cgroups.
    pub own_major_page_faults: Option<u64>,
    /// Pressure stall information.
    pub pressure: Option<Pressure>,
}

/// Swap in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct SwapUsage {
    /// Time of the reading.
    pub at: SystemTime,
    /// Used.
    pub usage_bytes: u64,
    /// Swap that may still be used; `None` without a limit.
    pub available_bytes: Option<u64>,
}

/// Block I/O.
#[derive(Debug, Clone, PartialEq)]
pub struct IoUsage {
    /// Time of the reading.
    pub at: SystemTime,
    /// Stall time.
    pub pressure: Option<Pressure>,
}

/// Pressure stall information of one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct Pressure {
    /// Some processes stalled.
    pub some: PressureLine,
    /// All processes stalled; before Linux 5.13 the kernel does not report this for CPU.
    pub full: Option<PressureLine>,
}

/// One line of a pressure file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PressureLine {
    /// Total stall time, µs.
    pub total_us: u64,
    /// Share of the last 10 s, in percent.
    pub avg10: f64,
    /// Share of the last 60 s, in percent.
    pub avg60: f64,
    /// Share of the last 300 s, in percent.
    pub avg300: f64,
}

/// Usage of a directory tree or a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskUsage {
    /// Time of the reading.
    pub at: SystemTime,
    /// Mount point of the file system, or the measured directory.
    pub mountpoint: PathBuf,
    /// Bytes used.
    pub used_bytes: u64,
    /// Inodes used.
    pub inodes_used: Option<u64>,
}

/// Usage of one task.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskStats {
    /// Usage of its cgroup; empty while it does not run.
    pub usage: Usage,
    /// Usage of its writable layer.
    pub writable_layer: Option<DiskUsage>,
}

/// Traffic of one interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InterfaceStats {
    /// Name inside the sandbox.
    pub name: String,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Receive errors.
    pub rx_errors: u64,
    /// Received packets dropped.
    pub rx_dropped: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Send errors.
    pub tx_errors: u64,
    /// Outgoing packets dropped.
    pub tx_dropped: u64,
}

/// All metrics of one running task; more expensive to read than [`TaskStats`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskMetrics {
    /// Usage of its cgroup and its writable layer.
    pub stats: TaskStats,
    /// Further counters of its cgroup.
    pub detail: Detail,
    /// The file system of its writable layer.
    pub file_system: Option<FileSystem>,
}

/// Counters of a cgroup beyond its usage.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Detail {
    /// Processes that the kernel killed because memory ran out.
    pub oom_kills: Option<u64>,
    /// Block I/O; empty if the kernel does not count it.
    pub devices: Vec<DeviceIo>,
    /// Huge pages; empty if the kernel does not count them.
    pub hugepages: Vec<HugepageUsage>,
    /// Number of processes; [`Usage::pids`] counts their threads.
    pub processes: Option<u64>,
    /// Maximum number of threads: the lowest of its own limit, those of its parents, and that of the node.
    pub threads_limit: Option<u64>,
    /// Open files of all its processes.
    pub open_files: Option<u64>,
    /// Open sockets.
    pub sockets: Option<u64>,
    /// Limit on open files of its main process; `None` if unlimited.
    pub open_files_limit: Option<u64>,
}

/// Block I/O of one device, by kind of operation (`Read`, `Write`, …) as the kernel names it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceIo {
    /// Its path, `/dev/sda`; its device numbers if it has no path.
    pub device: String,
    /// Major number.
    pub major: u64,
    /// Minor number.
    pub minor: u64,
    /// Bytes.
    pub bytes: Vec<(String, u64)>,
    /// Operations.
    pub operations: Vec<(String, u64)>,
}

/// Huge pages of one size.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HugepageUsage {
    /// Size as the kernel names it, `2MB`.
    pub page_size: String,
    /// Current usage in bytes.
    pub usage_bytes: u64,
    /// Peak usage in bytes.
    pub peak_bytes: Option<u64>,
}

/// A file system.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileSystem {
    /// Its device, `/dev/sda1`; the device numbers if that has no path.
    pub device: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Total number of inodes; `None` if the file system allocates them dynamically.
    pub inodes: Option<u64>,
    /// Number of free inodes.
    pub inodes_free: Option<u64>,
}
