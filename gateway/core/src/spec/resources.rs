//! Cgroup placement and limits.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{
    CgroupFile, CpuList, CpuPeriod, CpuQuota, CpuShares, HugepageSize, MemoryLimit, OomScoreAdj,
    PidsLimit, Swappiness,
};
use crate::error::{Error, Result};

/// The place of an object's cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CgroupPlacement {
    /// Below this parent, in a cgroup named after the object's id. An empty path is the gateway's default
    /// parent.
    Parent(PathBuf),
    /// Exactly this cgroup, which another program creates and removes. No child cgroup is left in it.
    Leaf {
        /// Its path below the cgroup v2 root, or below the root of each v1 controller.
        path: PathBuf,
        /// With cgroup v1, the cgroup of the cpuset controller if it differs; other processes may be in it.
        cpuset: Option<PathBuf>,
    },
}

impl Default for CgroupPlacement {
    fn default() -> Self {
        Self::Parent(PathBuf::new())
    }
}

/// Cgroup limits. `None`: not requested.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resources {
    /// Relative weight.
    pub cpu_shares: Option<CpuShares>,
    /// CPU time per period.
    pub cpu_quota_us: Option<CpuQuota>,
    /// Length of the period.
    pub cpu_period_us: Option<CpuPeriod>,
    /// Processors.
    pub cpuset_cpus: Option<CpuList>,
    /// NUMA nodes.
    pub cpuset_mems: Option<CpuList>,
    /// Hard limit.
    pub memory_limit_bytes: Option<MemoryLimit>,
    /// Memory plus swap. `None` with a memory limit means no swap.
    pub memory_swap_limit_bytes: Option<MemoryLimit>,
    /// Soft memory limit.
    pub memory_reservation_bytes: Option<MemoryLimit>,
    /// Swappiness. Cgroup v1 only.
    pub memory_swappiness: Option<Swappiness>,
    /// Maximum number of processes and threads.
    pub pids_limit: Option<PidsLimit>,
    /// Huge page limits.
    pub hugepages: Vec<HugepageLimit>,
    /// OOM score adjustment of the main process.
    pub oom_score_adj: Option<OomScoreAdj>,
    /// Cgroup v2 files and their content, verbatim.
    pub unified: BTreeMap<CgroupFile, String>,
}

/// A limit on huge pages of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HugepageLimit {
    /// The size of the pages.
    pub page_size: HugepageSize,
    /// Limit in bytes.
    pub limit_bytes: u64,
}

impl Resources {
    /// These limits, changed by `update`: limits that `update` does not name stay. Exception: a
    /// memory-plus-swap limit that is below the new memory limit, or that allowed no swap, becomes the new
    /// memory limit.
    #[must_use]
    pub fn merged(&self, update: &Self) -> Self {
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
        } = update.clone();
        let mut merged_unified = self.unified.clone();
        merged_unified.extend(unified);
        let mut merged_hugepages = self.hugepages.clone();
        for limit in hugepages {
            merged_hugepages.retain(|old| old.page_size != limit.page_size);
            merged_hugepages.push(limit);
        }
        Self {
            cpu_shares: cpu_shares.or(self.cpu_shares),
            cpu_quota_us: cpu_quota_us.or(self.cpu_quota_us),
            cpu_period_us: cpu_period_us.or(self.cpu_period_us),
            cpuset_cpus: cpuset_cpus.or_else(|| self.cpuset_cpus.clone()),
            cpuset_mems: cpuset_mems.or_else(|| self.cpuset_mems.clone()),
            memory_limit_bytes: memory_limit_bytes.or(self.memory_limit_bytes),
            memory_swap_limit_bytes: memory_swap_limit_bytes
                .or_else(|| self.swap_beside(memory_limit_bytes)),
            memory_reservation_bytes: memory_reservation_bytes.or(self.memory_reservation_bytes),
            memory_swappiness: memory_swappiness.or(self.memory_swappiness),
            pids_limit: pids_limit.or(self.pids_limit),
            hugepages: merged_hugepages,
            oom_score_adj: oom_score_adj.or(self.oom_score_adj),
            unified: merged_unified,
        }
    }
    /// The memory-plus-swap limit for a new memory limit.
    fn swap_beside(&self, memory: Option<MemoryLimit>) -> Option<MemoryLimit> {
        let (sum, Some(memory)) = (self.memory_swap_limit_bytes?, memory) else {
            return self.memory_swap_limit_bytes;
        };
        Some(if Some(sum) == self.memory_limit_bytes || sum < memory {
            memory
        } else {
            sum
        })
    }

    /// Refuses limits of memory that contradict each other: a reservation above the limit, and a limit of
    /// memory plus swap that is below the limit of memory or has none beside it.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the field below `resources`.
    pub fn check_memory(&self) -> Result<()> {
        let limit = self.memory_limit_bytes;
        if let (Some(limit), Some(reservation)) = (limit, self.memory_reservation_bytes)
            && reservation > limit
        {
            let why = format!("{reservation} is over the limit of {limit}");
            return Err(Error::invalid("resources.memory_reservation_bytes", why));
        }
        let Some(swap) = self.memory_swap_limit_bytes else {
            return Ok(());
        };
        let field = "resources.memory_swap_limit_bytes";
        match limit {
            Some(limit) => swap
                .check_includes(limit)
                .map_err(|error| error.in_field(field)),
            None if swap == MemoryLimit::UNLIMITED => Ok(()),
            None => Err(Error::invalid(
                field,
                format!("{swap} needs memory_limit_bytes beside it"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(limit: Option<i64>, sum: Option<i64>) -> Resources {
        let limit_of = |bytes: i64| MemoryLimit::new(bytes).unwrap();
        Resources {
            memory_limit_bytes: limit.map(limit_of),
            memory_swap_limit_bytes: sum.map(limit_of),
            ..Resources::default()
        }
    }

    /// The memory-plus-swap limit after an update of the memory limit alone.
    #[track_caller]
    fn check(limit: i64, sum: Option<i64>, update: i64, expected: Option<i64>) {
        let merged = memory(Some(limit), sum).merged(&memory(Some(update), None));
        assert_eq!(merged, memory(Some(update), expected));
    }

    #[test]
    fn memory_update_keeps_swap_disabled() {
        check(64, Some(64), 96, Some(96));
        check(64, Some(64), 32, Some(32));
        check(64, None, 96, None);
        check(-1, Some(-1), 64, Some(64));
    }

    #[test]
    fn memory_swap_sum_is_kept_while_the_memory_limit_fits() {
        check(64, Some(128), 96, Some(128));
        check(64, Some(128), 128, Some(128));
        check(64, Some(128), 32, Some(128));
        check(64, Some(-1), 96, Some(-1));
        check(64, Some(128), 256, Some(256));
        check(64, Some(128), -1, Some(-1));
    }

    #[test]
    fn unrelated_update_keeps_the_memory_swap_sum() {
        let before = memory(Some(64), Some(128));
        let shares = Resources {
            cpu_shares: Some(CpuShares::clamped(100)),
            ..Resources::default()
        };
        assert_eq!(
            before.merged(&shares),
            Resources {
                cpu_shares: shares.cpu_shares,
                ..before.clone()
            }
        );
        assert_eq!(
            before.merged(&memory(None, Some(96))),
            memory(Some(64), Some(96))
        );
    }

    #[test]
    fn memory_plus_swap_needs_a_memory_limit_and_includes_it() {
        for (limit, sum) in [
            (Some(100), 100),
            (Some(100), 200),
            (Some(100), -1),
            (Some(-1), -1),
            (None, -1),
        ] {
            memory(limit, Some(sum)).check_memory().unwrap();
        }
        for (limit, sum, why) in [
            (
                Some(200),
                100,
                "100 is less than the memory limit of 200: it is the sum of memory and swap",
            ),
            (
                Some(-1),
                100,
                "100 is less than the memory limit of -1: it is the sum of memory and swap",
            ),
            (None, 100, "100 needs memory_limit_bytes beside it"),
        ] {
            let error = memory(limit, Some(sum)).check_memory().unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("resources.memory_swap_limit_bytes: {why}")
            );
        }
    }

    #[test]
    fn reservation_is_at_most_the_memory_limit() {
        let reserved = |limit, reservation| Resources {
            memory_reservation_bytes: Some(MemoryLimit::new(reservation).unwrap()),
            ..memory(limit, None)
        };
        for (limit, reservation) in [
            (Some(10), 10),
            (Some(-1), 11),
            (Some(-1), -1),
            (None, 11),
            (None, -1),
        ] {
            reserved(limit, reservation).check_memory().unwrap();
        }
        for reservation in [11, -1] {
            let error = reserved(Some(10), reservation)
                .check_memory()
                .unwrap_err()
                .to_string();
            let why = format!("{reservation} is over the limit of 10");
            assert_eq!(error, format!("resources.memory_reservation_bytes: {why}"));
        }
    }
}
