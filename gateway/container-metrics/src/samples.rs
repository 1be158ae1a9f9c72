//! A reading for tests and benchmarks.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::ImageId;
use switchyard_core::object::{ResolvedUser, Sandbox, SandboxDetails, Task, TaskDetails};
use switchyard_core::spec::{
    ComputeClaim, CpuPeriod, CpuQuota, CpuShares, MemoryLimit, Meta, Resources, Signal,
};
use switchyard_core::state::{SandboxState, TaskState};
use switchyard_core::stats::{
    CpuUsage, Detail, DeviceIo, DiskUsage, FileSystem, HugepageUsage, InterfaceStats, IoUsage,
    MemoryUsage, Pressure, PressureLine, SwapUsage, TaskMetrics, TaskStats, Usage,
};

/// A running task with limits.
#[must_use]
pub fn task(owner: Owner, id: TaskId) -> Task {
    let resources = Resources {
        cpu_period_us: CpuPeriod::new(100_000).ok(),
        cpu_quota_us: CpuQuota::new(50_000).ok(),
        cpu_shares: Some(CpuShares::clamped(512)),
        memory_limit_bytes: MemoryLimit::new(1 << 20).ok(),
        memory_reservation_bytes: MemoryLimit::new(4096).ok(),
        ..Resources::default()
    };
    let meta = Meta {
        owner,
        name: id.to_string(),
        labels: [].into(),
        created_at: UNIX_EPOCH,
        record: Vec::new(),
    };
    Task {
        id,
        sandbox: SandboxId::from_bytes([1; 32]),
        meta: Arc::new(meta),
        details: TaskDetails {
            image_id: ImageId::new("sha256:id"),
            image_ref: "registry.example/shop/web@sha256:12".into(),
            image_volumes: Vec::new(),
            volume_images: Vec::new(),
            user: ResolvedUser::default(),
            stop_signal: Signal::TERM,
            resources,
            throttles: Vec::new(),
            log_path: None,
            project: None,
            leases: Vec::new(),
            compute: ComputeClaim::default(),
            warnings: Vec::new(),
        },
        state: TaskState::Running {
            pid: 7,
            started_at: UNIX_EPOCH + Duration::from_secs(1_600_000_000),
        },
    }
}

/// The sandbox of a task, with the same name.
#[must_use]
pub fn sandbox(task: &Task) -> Sandbox {
    Sandbox {
        id: task.sandbox,
        meta: Arc::clone(&task.meta),
        handler: String::new(),
        details: SandboxDetails::default(),
        state: SandboxState::Ready,
    }
}

/// An interface in which every value differs from every other.
#[must_use]
pub fn interface() -> InterfaceStats {
    InterfaceStats {
        name: "eth0".into(),
        rx_bytes: 1,
        rx_packets: 2,
        rx_errors: 3,
        rx_dropped: 4,
        tx_bytes: 5,
        tx_packets: 6,
        tx_errors: 7,
        tx_dropped: 8,
    }
}

/// A reading in which every value is set, and differs from every other.
#[must_use]
pub fn reading() -> TaskMetrics {
    let layer = DiskUsage {
        at: UNIX_EPOCH,
        mountpoint: "/".into(),
        used_bytes: 36,
        inodes_used: Some(37),
    };
    let file_system = FileSystem {
        device: "/dev/sda1".into(),
        size_bytes: 38,
        inodes: Some(39),
        inodes_free: Some(90),
    };
    TaskMetrics {
        stats: TaskStats {
            usage: usage(),
            writable_layer: Some(layer),
        },
        detail: detail(),
        file_system: Some(file_system),
    }
}

fn pressure(us: u64) -> Option<Pressure> {
    let line = |total_us| PressureLine {
        total_us,
        ..PressureLine::default()
    };
    Some(Pressure {
        some: line(us),
        full: Some(line(us + 1_000_000)),
    })
}

fn usage() -> Usage {
    let at = UNIX_EPOCH;
    let cpu = CpuUsage {
        at,
        // Floating-point numbers would round it up to the next second.
        total_ns: 9_007_199_254_999_999_999,
        user_ns: Some(3_999_999_999),
        system_ns: Some(999_999_999),
        periods: Some(4),
        throttled_periods: Some(5),
        throttled_ns: Some(6_000_000_000),
        pressure: pressure(7_999_999),
    };
    let memory = MemoryUsage {
        at,
        usage_bytes: u64::MAX,
        working_set_bytes: 11,
        available_bytes: Some(12),
        rss_bytes: Some(13),
        cache_bytes: Some(14),
        mapped_bytes: Some(15),
        kernel_bytes: Some(16),
        peak_bytes: Some(17),
        limit_hits: Some(18),
        page_faults: Some(19),
        major_page_faults: Some(20),
        own_page_faults: Some(21),
        own_major_page_faults: Some(22),
        pressure: pressure(23_000_000),
    };
    Usage {
        cpu: Some(cpu),
        memory: Some(memory),
        swap: Some(SwapUsage {
            at,
            usage_bytes: 25,
            available_bytes: Some(26),
        }),
        io: Some(IoUsage {
            at,
            pressure: pressure(27_000_000),
        }),
        pids: Some(29),
    }
}

fn detail() -> Detail {
    let counts = |from| {
        ["Read", "Write", "Discard"]
            .into_iter()
            .zip(from..)
            .map(|(word, n)| (word.to_owned(), n))
            .collect()
    };
    let device = |name: &str, major, from| DeviceIo {
        device: name.into(),
        major,
        minor: 1,
        bytes: counts(from),
        operations: counts(from + 10),
    };
    Detail {
        oom_kills: Some(30),
        devices: vec![device("/dev/sda", 8, 40), device("8:16", 9, 60)],
        hugepages: vec![
            HugepageUsage {
                page_size: "2MB".into(),
                usage_bytes: 80,
                peak_bytes: Some(81),
            },
            HugepageUsage {
                page_size: "1GB".into(),
                usage_bytes: 82,
                peak_bytes: Some(83),
            },
        ],
        processes: Some(31),
        threads_limit: Some(32),
        open_files: Some(33),
        sockets: Some(34),
        open_files_limit: Some(35),
    }
}
