//! Reads the usage of a cgroup from its files.

use std::path::Path;
use std::time::SystemTime;

use switchyard_core::stats::{CpuUsage, IoUsage, MemoryUsage, SwapUsage, Usage};

use crate::error::Result;
use crate::files::{read_if_there, read_parsed};
use crate::parse::{flat_keyed, limit_v1, limit_v2, number, pressure};

/// The length of a tick of `cpuacct.stat`, in nanoseconds: the kernel always reports 100 ticks per second to
/// user space.
const TICK_NS: u64 = 10_000_000;

const US: u64 = 1_000;

/// The directories of one cgroup in the v1 hierarchies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct V1Dirs<'a> {
    pub(crate) cpuacct: Option<&'a Path>,
    pub(crate) cpu: Option<&'a Path>,
    pub(crate) memory: Option<&'a Path>,
    pub(crate) pids: Option<&'a Path>,
    /// The directory in the v2 tree of the hybrid layout, which has pressure files although it has no
    /// controllers.
    pub(crate) unified: Option<&'a Path>,
}

/// Usage from the v1 hierarchies.
pub(crate) fn v1(dirs: V1Dirs<'_>, at: SystemTime) -> Result<Usage> {
    let (mut memory, swap) = match dirs.memory {
        Some(dir) => v1_memory(dir, at)?,
        None => (None, None),
    };
    let mut cpu = v1_cpu(dirs.cpuacct, dirs.cpu, at)?;
    let mut io = None;
    if let Some(dir) = dirs.unified {
        if let Some(cpu) = &mut cpu {
            cpu.pressure = read_parsed(&dir.join("cpu.pressure"), pressure)?;
        }
        if let Some(memory) = &mut memory {
            memory.pressure = read_parsed(&dir.join("memory.pressure"), pressure)?;
        }
        io = v2_io(dir, at)?;
    }
    let pids = match dirs.pids {
        Some(dir) => read_parsed(&dir.join("pids.current"), number)?,
        None => None,
    };
    Ok(Usage {
        cpu,
        memory,
        swap,
        io,
        pids,
    })
}

fn v1_cpu(cpuacct: Option<&Path>, cpu: Option<&Path>, at: SystemTime) -> Result<Option<CpuUsage>> {
    let Some(dir) = cpuacct else { return Ok(None) };
    let Some(total_ns) = read_parsed(&dir.join("cpuacct.usage"), number)? else {
        return Ok(None);
    };
    let stat = read_if_there(&dir.join("cpuacct.stat"))?.unwrap_or_default();
    let stat = flat_keyed(&stat);
    let throttled = match cpu {
        Some(dir) => read_if_there(&dir.join("cpu.stat"))?.unwrap_or_default(),
        None => String::new(),
    };
    let throttled = flat_keyed(&throttled);
    let ticks = |key: &str| stat.get(key).map(|ticks| ticks.saturating_mul(TICK_NS));
    Ok(Some(CpuUsage {
        at,
        total_ns,
        user_ns: ticks("user"),
        system_ns: ticks("system"),
        periods: throttled.get("nr_periods").copied(),
        throttled_periods: throttled.get("nr_throttled").copied(),
        throttled_ns: throttled.get("throttled_time").copied(),
        pressure: None,
    }))
}

fn v1_memory(dir: &Path, at: SystemTime) -> Result<(Option<MemoryUsage>, Option<SwapUsage>)> {
    let Some(usage_bytes) = read_parsed(&dir.join("memory.usage_in_bytes"), number)? else {
        return Ok((None, None));
    };
    let text = read_if_there(&dir.join("memory.stat"))?.unwrap_or_default();
    let stat = flat_keyed(&text);
    // The `total_` values include descendants, as the usage does; they are missing if the hierarchy mode is
    // off.
    let value = |key: &str| {
        stat.get(format!("total_{key}").as_str())
            .or_else(|| stat.get(key))
            .copied()
    };
    let own_limit = read_parsed(&dir.join("memory.limit_in_bytes"), limit_v1)?;
    let limit = least(
        own_limit,
        stat.get("hierarchical_memory_limit")
            .and_then(|limit| limit_v1(&limit.to_string())),
    );
    // Missing if the group was removed after its usage was read: the working set is unknown then.
    let Some(inactive_bytes) = value("inactive_file") else {
        return Ok((None, None));
    };
    let working_set_bytes = usage_bytes.saturating_sub(inactive_bytes);
    let memory = MemoryUsage {
        at,
        usage_bytes,
        working_set_bytes,
        available_bytes: limit.map(|limit| limit.saturating_sub(working_set_bytes)),
        rss_bytes: value("rss"),
        cache_bytes: value("cache"),
        mapped_bytes: value("mapped_file"),
        kernel_bytes: read_parsed(&dir.join("memory.kmem.usage_in_bytes"), number)?,
        peak_bytes: read_parsed(&dir.join("memory.max_usage_in_bytes"), number)?,
        limit_hits: read_parsed(&dir.join("memory.failcnt"), number)?,
        page_faults: value("pgfault"),
        major_page_faults: value("pgmajfault"),
        own_page_faults: stat.get("pgfault").copied(),
        own_major_page_faults: stat.get("pgmajfault").copied(),
        pressure: None,
    };
    let sum_limit = read_parsed(&dir.join("memory.memsw.limit_in_bytes"), limit_v1)?;
    let sum_usage = read_parsed(&dir.join("memory.memsw.usage_in_bytes"), number)?;
    let swap = sum_usage.map(|sum_usage| {
        let used = value("swap").unwrap_or_else(|| sum_usage.saturating_sub(usage_bytes));
        SwapUsage {
            at,
            usage_bytes: used,
            // The limit is on memory and swap together: what exceeds the memory limit is available to swap.
            available_bytes: sum_limit.map(|sum| match limit {
                Some(limit) => sum.saturating_sub(limit).saturating_sub(used),
                None => sum.saturating_sub(sum_usage),
            }),
        }
    });
    Ok((Some(memory), swap))
}

/// The smaller of two limits, each of which may be absent.
pub(crate) fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The group that crun creates inside the scope that systemd created for it. The limits are set on this
/// group, since systemd would reset limits of the scope that were not set through systemd; the scope's own
/// files count the usage and show no limit.
const CRUNS_GROUP: &str = "container";

/// Usage from the unified hierarchy.
pub(crate) fn v2(dir: &Path, at: SystemTime) -> Result<Usage> {
    Ok(Usage {
        cpu: v2_cpu(dir, at)?,
        memory: v2_memory(dir, at)?,
        swap: v2_swap(dir, at)?,
        io: v2_io(dir, at)?,
        pids: read_parsed(&dir.join("pids.current"), number)?,
    })
}

fn v2_io(dir: &Path, at: SystemTime) -> Result<Option<IoUsage>> {
    let read = read_parsed(&dir.join("io.pressure"), pressure)?;
    Ok(read.map(|pressure| IoUsage {
        at,
        pressure: Some(pressure),
    }))
}

fn v2_cpu(dir: &Path, at: SystemTime) -> Result<Option<CpuUsage>> {
    let Some(text) = read_if_there(&dir.join("cpu.stat"))? else {
        return Ok(None);
    };
    let stat = flat_keyed(&text);
    let ns = |key: &str| stat.get(key).map(|us| us.saturating_mul(US));
    let Some(total_ns) = ns("usage_usec") else {
        return Ok(None);
    };
    // Unlike CPU time, throttling is counted only in the group that has the limit.
    let below = read_if_there(&dir.join(CRUNS_GROUP).join("cpu.stat"))?;
    let throttled = below.as_deref().map_or_else(|| stat.clone(), flat_keyed);
    Ok(Some(CpuUsage {
        at,
        total_ns,
        user_ns: ns("user_usec"),
        system_ns: ns("system_usec"),
        periods: throttled.get("nr_periods").copied(),
        throttled_periods: throttled.get("nr_throttled").copied(),
        throttled_ns: throttled
            .get("throttled_usec")
            .map(|us| us.saturating_mul(US)),
        pressure: read_parsed(&dir.join("cpu.pressure"), pressure)?,
    }))
}

/// A limit of a group, or of the group that crun created inside it.
fn v2_limit(dir: &Path, file: &str) -> Result<Option<u64>> {
    let own = read_parsed(&dir.join(file), limit_v2)?;
    Ok(least(
        own,
        read_parsed(&dir.join(CRUNS_GROUP).join(file), limit_v2)?,
    ))
}

fn v2_memory(dir: &Path, at: SystemTime) -> Result<Option<MemoryUsage>> {
    let Some(usage_bytes) = read_parsed(&dir.join("memory.current"), number)? else {
        return Ok(None);
    };
    let text = read_if_there(&dir.join("memory.stat"))?.unwrap_or_default();
    let stat = flat_keyed(&text);
    // As in v1: missing if the group was removed after its usage was read.
    let Some(inactive_bytes) = stat.get("inactive_file") else {
        return Ok(None);
    };
    let working_set_bytes = usage_bytes.saturating_sub(*inactive_bytes);
    let limit = v2_limit(dir, "memory.max")?;
    Ok(Some(MemoryUsage {
        at,
        usage_bytes,
        working_set_bytes,
        available_bytes: limit.map(|limit| limit.saturating_sub(working_set_bytes)),
        rss_bytes: stat.get("anon").copied(),
        cache_bytes: stat.get("file").copied(),
        mapped_bytes: stat.get("file_mapped").copied(),
        kernel_bytes: stat.get("kernel").copied(),
        peak_bytes: read_parsed(&dir.join("memory.peak"), number)?,
        limit_hits: read_parsed(&dir.join("memory.events"), |text| {
            flat_keyed(text).get("max").copied()
        })?,
        page_faults: stat.get("pgfault").copied(),
        major_page_faults: stat.get("pgmajfault").copied(),
        // The unified hierarchy does not count the faults of a group apart from those of its descendants.
        own_page_faults: None,
        own_major_page_faults: None,
        pressure: read_parsed(&dir.join("memory.pressure"), pressure)?,
    }))
}

fn v2_swap(dir: &Path, at: SystemTime) -> Result<Option<SwapUsage>> {
    let Some(usage_bytes) = read_parsed(&dir.join("memory.swap.current"), number)? else {
        return Ok(None);
    };
    let limit = v2_limit(dir, "memory.swap.max")?;
    Ok(Some(SwapUsage {
        at,
        usage_bytes,
        available_bytes: limit.map(|limit| limit.saturating_sub(usage_bytes)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_without_inactive_file_has_no_working_set_and_is_absent() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("memory.current", "4096\n");
        write("memory.usage_in_bytes", "4096\n");
        let at = SystemTime::UNIX_EPOCH;
        assert_eq!(v2_memory(dir.path(), at).unwrap(), None);
        assert_eq!(v1_memory(dir.path(), at).unwrap(), (None, None));
        write("memory.stat", "inactive_file 96\n");
        assert_eq!(
            v2_memory(dir.path(), at)
                .unwrap()
                .unwrap()
                .working_set_bytes,
            4000
        );
        let (memory, _) = v1_memory(dir.path(), at).unwrap();
        assert_eq!(memory.unwrap().working_set_bytes, 4000);
    }
}
