//! Records of the resource limits of a task.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use switchyard_core::spec::{
    CgroupFile, CpuList, CpuPeriod, CpuQuota, CpuShares, HugepageLimit, HugepageSize, InvalidLimit,
    MemoryLimit, OomScoreAdj, PidsLimit, Resources, Swappiness, Throttle, Throttled,
};

/// The limits of a task's cgroup, and its OOM score adjustment.
///
/// A value that no kernel accepts was never in force. It is read as not requested, so that a record of an
/// earlier version with such a value keeps its task usable; shares are read as the kernel would adjust them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ResourcesRecord {
    cpu_shares: Option<u64>,
    cpu_quota_us: Option<i64>,
    cpu_period_us: Option<u64>,
    cpuset_cpus: Option<String>,
    cpuset_mems: Option<String>,
    memory_limit_bytes: Option<i64>,
    memory_swap_limit_bytes: Option<i64>,
    memory_reservation_bytes: Option<i64>,
    memory_swappiness: Option<u64>,
    pids_limit: Option<i64>,
    hugepages: Vec<(String, u64)>,
    oom_score_adj: Option<i32>,
    unified: BTreeMap<String, String>,
}

/// An I/O limit on a block device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ThrottleRecord {
    device: PathBuf,
    what: ThrottledRecord,
    rate: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ThrottledRecord {
    ReadBytes,
    WriteBytes,
    Reads,
    Writes,
}

// === impl ResourcesRecord ===

impl ResourcesRecord {
    pub(crate) fn from_core(resources: &Resources) -> Self {
        let Resources {
            cpu_shares,
            cpu_quota_us,
            cpu_period_us,
            cpuset_cpus,
            cpuset_mems,
            memory_limit_bytes,
            memory_swap_limit_bytes,
            memory_reservation_bytes,
            memory_swappiness,
            pids_limit,
            hugepages,
            oom_score_adj,
            unified,
        } = resources.clone();
        let hugepages = hugepages
            .into_iter()
            .map(
                |HugepageLimit {
                     page_size,
                     limit_bytes,
                 }| (page_size.to_string(), limit_bytes),
            )
            .collect();
        let unified = unified
            .into_iter()
            .map(|(file, value)| (file.to_string(), value))
            .collect();
        let text = |list: CpuList| list.as_str().to_owned();
        Self {
            cpu_shares: cpu_shares.map(CpuShares::get),
            cpu_quota_us: cpu_quota_us.map(CpuQuota::signed),
            cpu_period_us: cpu_period_us.map(CpuPeriod::get),
            cpuset_cpus: cpuset_cpus.map(text),
            cpuset_mems: cpuset_mems.map(text),
            memory_limit_bytes: memory_limit_bytes.map(MemoryLimit::signed),
            memory_swap_limit_bytes: memory_swap_limit_bytes.map(MemoryLimit::signed),
            memory_reservation_bytes: memory_reservation_bytes.map(MemoryLimit::signed),
            memory_swappiness: memory_swappiness.map(Swappiness::get),
            pids_limit: pids_limit.map(PidsLimit::signed),
            hugepages,
            oom_score_adj: oom_score_adj.map(OomScoreAdj::get),
            unified,
        }
    }

    /// The adjustment of the out-of-memory killer's score.
    pub(crate) fn oom_score_adj(&self) -> Option<OomScoreAdj> {
        usable(self.oom_score_adj, OomScoreAdj::new)
    }

    pub(crate) fn to_core(&self) -> Resources {
        let Self {
            cpu_shares,
            cpu_quota_us,
            cpu_period_us,
            cpuset_cpus,
            cpuset_mems,
            memory_limit_bytes,
            memory_swap_limit_bytes,
            memory_reservation_bytes,
            memory_swappiness,
            pids_limit,
            hugepages,
            oom_score_adj,
            unified,
        } = self.clone();
        let hugepages = hugepages
            .into_iter()
            .filter_map(|(page_size, limit_bytes)| {
                Some(HugepageLimit {
                    page_size: HugepageSize::new(page_size).ok()?,
                    limit_bytes,
                })
            })
            .collect();
        let unified = unified
            .into_iter()
            .filter_map(|(file, value)| Some((CgroupFile::new(file).ok()?, value)))
            .collect();
        Resources {
            cpu_shares: cpu_shares.map(CpuShares::clamped),
            cpu_quota_us: usable(cpu_quota_us, CpuQuota::new),
            cpu_period_us: usable(cpu_period_us, CpuPeriod::new),
            cpuset_cpus: usable(cpuset_cpus, CpuList::new),
            cpuset_mems: usable(cpuset_mems, CpuList::new),
            memory_limit_bytes: usable(memory_limit_bytes, MemoryLimit::new),
            memory_swap_limit_bytes: usable(memory_swap_limit_bytes, MemoryLimit::new),
            memory_reservation_bytes: usable(memory_reservation_bytes, MemoryLimit::new),
            memory_swappiness: usable(memory_swappiness, Swappiness::new),
            pids_limit: usable(pids_limit, PidsLimit::new),
            hugepages,
            oom_score_adj: usable(oom_score_adj, OomScoreAdj::new),
            unified,
        }
    }
}

/// A recorded value; `None` if no kernel accepts it.
fn usable<V, L>(
    recorded: Option<V>,
    check: impl FnOnce(V) -> Result<L, InvalidLimit>,
) -> Option<L> {
    check(recorded?).ok()
}

// === impl ThrottleRecord ===

impl ThrottleRecord {
    pub(crate) fn from_core(throttle: &Throttle) -> Self {
        let Throttle { device, what, rate } = throttle;
        let what = match what {
            Throttled::ReadBytes => ThrottledRecord::ReadBytes,
            Throttled::WriteBytes => ThrottledRecord::WriteBytes,
            Throttled::Reads => ThrottledRecord::Reads,
            Throttled::Writes => ThrottledRecord::Writes,
        };
        Self {
            device: device.clone(),
            what,
            rate: *rate,
        }
    }

    pub(crate) fn to_core(&self) -> Throttle {
        let Self { device, what, rate } = self;
        let what = match what {
            ThrottledRecord::ReadBytes => Throttled::ReadBytes,
            ThrottledRecord::WriteBytes => Throttled::WriteBytes,
            ThrottledRecord::Reads => Throttled::Reads,
            ThrottledRecord::Writes => Throttled::Writes,
        };
        Throttle {
            device: device.clone(),
            what,
            rate: *rate,
        }
    }
}
