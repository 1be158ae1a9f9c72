//! Converts the usage of containers and sandboxes.

use std::time::SystemTime;

use switchyard_core::backend::SandboxStats;
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::stats::{
    CpuUsage, DiskUsage, InterfaceStats, IoUsage, MemoryUsage, Pressure, PressureLine, SwapUsage,
    TaskStats, Usage,
};
use switchyard_proto::cri::v1 as cri;

use super::time::nanoseconds;
use super::{container, sandbox};
use crate::record::{ContainerRecord, SandboxRecord};

/// The interface that CNI plugins create for the pod.
pub(super) const DEFAULT_INTERFACE: &str = "eth0";

/// The usage of a container; `rate` is the increase of its CPU time per second. Without `stats` only the
/// attributes are set.
pub(crate) fn container_stats(
    task: &Task,
    record: Option<&ContainerRecord>,
    stats: Option<&TaskStats>,
    rate: Option<u64>,
) -> cri::ContainerStats {
    let usage = stats.map(|stats| &stats.usage);
    cri::ContainerStats {
        attributes: Some(cri::ContainerAttributes {
            id: task.id.to_string(),
            metadata: Some(container::metadata(task, record)),
            labels: task.meta.labels.clone(),
            annotations: container::annotations(record),
        }),
        cpu: usage
            .and_then(|usage| usage.cpu.as_ref())
            .map(|usage| cpu(usage, rate)),
        memory: usage.and_then(|usage| usage.memory.as_ref()).map(memory),
        writable_layer: stats
            .and_then(|stats| stats.writable_layer.as_ref())
            .map(disk_usage),
        swap: usage.and_then(|usage| usage.swap.as_ref()).map(swap),
        io: usage.and_then(|usage| usage.io.as_ref()).map(io),
    }
}

/// The usage of a sandbox and of its containers, read at `now`.
pub(crate) fn sandbox_stats(
    sandbox: &Sandbox,
    record: Option<&SandboxRecord>,
    stats: &SandboxStats,
    rate: Option<u64>,
    containers: Vec<cri::ContainerStats>,
    now: SystemTime,
) -> cri::PodSandboxStats {
    let SandboxStats {
        usage,
        processes,
        interfaces,
    } = stats;
    let Usage {
        cpu: cpu_usage,
        memory: memory_usage,
        swap: _,
        io: io_usage,
        pids: _,
    } = usage;
    cri::PodSandboxStats {
        attributes: Some(cri::PodSandboxAttributes {
            id: sandbox.id.to_string(),
            metadata: Some(sandbox::metadata(sandbox, record)),
            labels: sandbox.meta.labels.clone(),
            annotations: sandbox::annotations(record),
        }),
        linux: Some(cri::LinuxPodSandboxStats {
            cpu: cpu_usage.as_ref().map(|usage| cpu(usage, rate)),
            memory: memory_usage.as_ref().map(memory),
            network: network(interfaces, now),
            process: processes.map(|processes| cri::ProcessUsage {
                timestamp: nanoseconds(now),
                process_count: Some(cri::UInt64Value { value: processes }),
            }),
            containers,
            io: io_usage.as_ref().map(io),
        }),
        windows: None,
    }
}

/// Usage of a file system or a directory tree.
pub(super) fn disk_usage(usage: &DiskUsage) -> cri::FilesystemUsage {
    let DiskUsage {
        at,
        mountpoint,
        used_bytes,
        inodes_used,
    } = usage;
    cri::FilesystemUsage {
        timestamp: nanoseconds(*at),
        fs_id: Some(cri::FilesystemIdentifier {
            mountpoint: mountpoint.to_string_lossy().into_owned(),
        }),
        used_bytes: value(Some(*used_bytes)),
        inodes_used: value(*inodes_used),
    }
}

fn value(number: Option<u64>) -> Option<cri::UInt64Value> {
    number.map(|value| cri::UInt64Value { value })
}

fn cpu(usage: &CpuUsage, rate: Option<u64>) -> cri::CpuUsage {
    cri::CpuUsage {
        timestamp: nanoseconds(usage.at),
        usage_core_nano_seconds: value(Some(usage.total_ns)),
        usage_nano_cores: value(rate),
        psi: usage.pressure.as_ref().map(pressure),
    }
}

fn memory(usage: &MemoryUsage) -> cri::MemoryUsage {
    cri::MemoryUsage {
        timestamp: nanoseconds(usage.at),
        working_set_bytes: value(Some(usage.working_set_bytes)),
        available_bytes: value(usage.available_bytes),
        usage_bytes: value(Some(usage.usage_bytes)),
        rss_bytes: value(usage.rss_bytes),
        page_faults: value(usage.page_faults),
        major_page_faults: value(usage.major_page_faults),
        psi: usage.pressure.as_ref().map(pressure),
    }
}

fn swap(usage: &SwapUsage) -> cri::SwapUsage {
    cri::SwapUsage {
        timestamp: nanoseconds(usage.at),
        swap_available_bytes: value(usage.available_bytes),
        swap_usage_bytes: value(Some(usage.usage_bytes)),
    }
}

fn io(usage: &IoUsage) -> cri::IoUsage {
    cri::IoUsage {
        timestamp: nanoseconds(usage.at),
        psi: usage.pressure.as_ref().map(pressure),
    }
}

fn pressure(pressure: &Pressure) -> cri::PsiStats {
    let line = |line: &PressureLine| cri::PsiData {
        // The kernel counts microseconds, CRI nanoseconds.
        total: line.total_us.saturating_mul(1000),
        avg10: line.avg10,
        avg60: line.avg60,
        avg300: line.avg300,
    };
    cri::PsiStats {
        full: pressure.full.as_ref().map(line),
        some: Some(line(&pressure.some)),
    }
}

fn network(interfaces: &[InterfaceStats], now: SystemTime) -> Option<cri::NetworkUsage> {
    let default = interfaces
        .iter()
        .find(|interface| interface.name == DEFAULT_INTERFACE)
        .or_else(|| interfaces.iter().find(|interface| interface.name != "lo"))?;
    let usage = |interface: &InterfaceStats| {
        let InterfaceStats {
            name,
            rx_bytes,
            rx_errors,
            tx_bytes,
            tx_errors,
            // CRI has these only as metrics.
            rx_packets: _,
            rx_dropped: _,
            tx_packets: _,
            tx_dropped: _,
        } = interface;
        cri::NetworkInterfaceUsage {
            name: name.clone(),
            rx_bytes: value(Some(*rx_bytes)),
            rx_errors: value(Some(*rx_errors)),
            tx_bytes: value(Some(*tx_bytes)),
            tx_errors: value(Some(*tx_errors)),
        }
    };
    // With the default one, as containerd has it: kubelets make the summary of a pod's network from this list.
    let all = interfaces.iter().filter(|interface| interface.name != "lo");
    Some(cri::NetworkUsage {
        timestamp: nanoseconds(now),
        default_interface: Some(usage(default)),
        interfaces: all.map(usage).collect(),
    })
}
