//! Resource usage, as read from the kernel. A value that the kernel has no source for is `None`, never 0.

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
    /// Processes.
    pub pids: Option<u64>,
}

/// Processor time.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuUsage {
    /// When it was read.
    pub at: SystemTime,
    /// Time used since the cgroup was made, ns.
    pub total_ns: u64,
    /// Of that in user mode, ns.
    pub user_ns: Option<u64>,
    /// Of that in the kernel, ns.
    pub system_ns: Option<u64>,
    /// Periods in which a quota was counted.
    pub periods: Option<u64>,
    /// Of those, the ones in which it ran out.
    pub throttled_periods: Option<u64>,
    /// Time spent waiting for quota, ns.
    pub throttled_ns: Option<u64>,
    /// Stall time.
    pub pressure: Option<Pressure>,
}

/// Memory in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryUsage {
    /// When it was read.
    pub at: SystemTime,
    /// All that is charged, page cache included.
    pub usage_bytes: u64,
    /// Usage less the inactive page cache.
    pub working_set_bytes: u64,
    /// Limit less the working set; `None` without a limit.
    pub available_bytes: Option<u64>,
    /// Anonymous memory.
    pub rss_bytes: Option<u64>,
    /// Page cache.
    pub cache_bytes: Option<u64>,
    /// Files mapped into the memory of processes.
    pub mapped_bytes: Option<u64>,
    /// Memory of the kernel's own.
    pub kernel_bytes: Option<u64>,
    /// Highest usage seen.
    pub peak_bytes: Option<u64>,
    /// How often it came up against the limit.
    pub limit_hits: Option<u64>,
    /// Page faults, those of cgroups inside included.
    pub page_faults: Option<u64>,
    /// Page faults that needed I/O, those of cgroups inside included.
    pub major_page_faults: Option<u64>,
    /// Page faults without those of cgroups inside, where the kernel counts them apart.
    pub own_page_faults: Option<u64>,
    /// The same of those that needed I/O.
    pub own_major_page_faults: Option<u64>,
    /// Stall time.
    pub pressure: Option<Pressure>,
}

/// Swap in bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct SwapUsage {
    /// When it was read.
    pub at: SystemTime,
    /// Used.
    pub usage_bytes: u64,
    /// Still allowed; `None` without a limit.
    pub available_bytes: Option<u64>,
}

/// Block I/O.
#[derive(Debug, Clone, PartialEq)]
pub struct IoUsage {
    /// When it was read.
    pub at: SystemTime,
    /// Stall time.
    pub pressure: Option<Pressure>,
}

/// Pressure stall information of one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct Pressure {
    /// Some processes stalled.
    pub some: PressureLine,
    /// All processes stalled.
    pub full: PressureLine,
}

/// One line of a pressure file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PressureLine {
    /// Stall time in all, µs.
    pub total_us: u64,
    /// Share of the last 10 s, per cent.
    pub avg10: f64,
    /// Share of the last 60 s, per cent.
    pub avg60: f64,
    /// Share of the last 300 s, per cent.
    pub avg300: f64,
}

/// Usage of a directory tree or a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskUsage {
    /// When it was read.
    pub at: SystemTime,
    /// Where the file system is mounted, or the directory measured.
    pub mountpoint: PathBuf,
    /// Bytes used.
    pub used_bytes: u64,
    /// Inodes used.
    pub inodes_used: Option<u64>,
}

/// Usage of one task.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskStats {
    /// Of its cgroup; empty while it does not run.
    pub usage: Usage,
    /// Of its writable layer.
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
    /// Packets dropped as they came.
    pub rx_dropped: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Send errors.
    pub tx_errors: u64,
    /// Packets dropped on their way out.
    pub tx_dropped: u64,
}

/// All that can be told of one task that runs, for whoever keeps metrics; dearer to read than [`TaskStats`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskMetrics {
    /// Of its cgroup, and of its writable layer.
    pub stats: TaskStats,
    /// What is in its cgroup.
    pub detail: Detail,
    /// The file system that its writable layer is on.
    pub file_system: Option<FileSystem>,
}

/// What is in a cgroup, beyond its usage.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Detail {
    /// Processes that the kernel killed for want of memory.
    pub oom_kills: Option<u64>,
    /// Block I/O; empty where the kernel counts none.
    pub devices: Vec<DeviceIo>,
    /// Huge pages; empty where the kernel counts none.
    pub hugepages: Vec<HugepageUsage>,
    /// Processes; [`Usage::pids`] counts their threads.
    pub processes: Option<u64>,
    /// How many threads there may be: the least of its own limit, those above it and the node's.
    pub threads_limit: Option<u64>,
    /// Open files of all its processes.
    pub open_files: Option<u64>,
    /// Sockets among them.
    pub sockets: Option<u64>,
    /// How many files its main process may have open; `None` if as many as it likes.
    pub open_files_limit: Option<u64>,
}

/// Block I/O of one device, by what was done (`Read`, `Write`, …), as the kernel calls it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceIo {
    /// Its path, `/dev/sda`; its numbers where it has none.
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
    /// In use, in bytes.
    pub usage_bytes: u64,
    /// Most that was in use, in bytes.
    pub peak_bytes: Option<u64>,
}

/// A file system.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileSystem {
    /// What it is on, `/dev/sda1`; its numbers where that has no path.
    pub device: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// How many inodes it has; `None` if it makes them as it goes.
    pub inodes: Option<u64>,
    /// How many of them are free.
    pub inodes_free: Option<u64>,
}
