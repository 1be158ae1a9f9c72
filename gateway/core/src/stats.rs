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
    /// Periods in which the quota ran out.
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
    /// Highest usage seen.
    pub peak_bytes: Option<u64>,
    /// Page faults.
    pub page_faults: Option<u64>,
    /// Page faults that needed I/O.
    pub major_page_faults: Option<u64>,
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
    /// Receive errors.
    pub rx_errors: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Send errors.
    pub tx_errors: u64,
}
