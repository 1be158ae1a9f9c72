//! Usage numbers that grow with each reading, without some of the values that not all kernels have.

use std::time::SystemTime;

use switchyard_core::stats::{
    CpuUsage, Detail, DeviceIo, DiskUsage, FileSystem, HugepageUsage, InterfaceStats, MemoryUsage,
    TaskMetrics, TaskStats, Usage,
};

/// Numbers that grow with each reading.
pub(crate) fn usage(reads: u64) -> Usage {
    let at = SystemTime::now();
    Usage {
        cpu: Some(CpuUsage {
            at,
            total_ns: reads * 10_000_000,
            user_ns: Some(reads * 7_000_000),
            system_ns: Some(reads * 3_000_000),
            periods: Some(reads * 10),
            throttled_periods: None,
            throttled_ns: None,
            pressure: None,
        }),
        memory: Some(MemoryUsage {
            at,
            usage_bytes: (2 << 20) + reads * 4096,
            working_set_bytes: (1 << 20) + reads * 4096,
            available_bytes: None,
            rss_bytes: Some(1 << 20),
            cache_bytes: Some(1 << 20),
            mapped_bytes: Some(4096),
            kernel_bytes: Some(8192),
            peak_bytes: None,
            limit_hits: Some(reads),
            page_faults: Some(reads * 10),
            major_page_faults: Some(reads),
            own_page_faults: Some(reads * 9),
            own_major_page_faults: None,
            pressure: None,
        }),
        swap: None,
        io: None,
        pids: Some(1),
    }
}

pub(crate) fn task_stats(reads: u64, runs: bool) -> TaskStats {
    TaskStats {
        usage: if runs { usage(reads) } else { Usage::default() },
        writable_layer: Some(DiskUsage {
            at: SystemTime::now(),
            mountpoint: "/var/lib/switchyard/fake".into(),
            used_bytes: reads * 1024,
            inodes_used: Some(reads),
        }),
    }
}

/// The metrics of a running task.
pub(crate) fn task_metrics(reads: u64) -> TaskMetrics {
    TaskMetrics {
        stats: task_stats(reads, true),
        detail: Detail {
            oom_kills: Some(0),
            devices: vec![DeviceIo {
                device: "/dev/fake".into(),
                major: 254,
                minor: 1,
                bytes: vec![("Read".into(), reads * 512), ("Write".into(), reads * 1024)],
                operations: vec![("Read".into(), reads), ("Write".into(), reads * 2)],
            }],
            hugepages: vec![HugepageUsage {
                page_size: "2MB".into(),
                usage_bytes: 0,
                peak_bytes: None,
            }],
            processes: Some(1),
            threads_limit: Some(32_768),
            open_files: Some(3),
            sockets: Some(1),
            open_files_limit: Some(1024),
        },
        file_system: Some(FileSystem {
            device: "/dev/fake1".into(),
            size_bytes: 1 << 30,
            inodes: Some(1 << 16),
            inodes_free: Some(1 << 15),
        }),
    }
}

/// The traffic of a sandbox with a network.
pub(crate) fn traffic(reads: u64) -> InterfaceStats {
    InterfaceStats {
        name: "eth0".into(),
        rx_bytes: reads * 1000,
        rx_packets: reads * 10,
        tx_bytes: reads * 500,
        tx_packets: reads * 5,
        ..InterfaceStats::default()
    }
}
