//! Cgroup placement and limits.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::CpuSet;

/// Where the cgroup of an object is placed.
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
    /// Relative weight, 2 to 262144.
    pub cpu_shares: Option<u64>,
    /// CPU time per period in µs; negative for no limit.
    pub cpu_quota_us: Option<i64>,
    /// Length of the period in µs.
    pub cpu_period_us: Option<u64>,
    /// Processors, for example `0-2,7`.
    pub cpuset_cpus: Option<String>,
    /// NUMA nodes, for example `0`.
    pub cpuset_mems: Option<String>,
    /// Hard limit in bytes; -1 for none.
    pub memory_limit_bytes: Option<i64>,
    /// Memory plus swap in bytes; -1 for none. `None` with a memory limit means no swap.
    pub memory_swap_limit_bytes: Option<i64>,
    /// Soft memory limit in bytes.
    pub memory_reservation_bytes: Option<i64>,
    /// Swappiness, 0 to 100. Cgroup v1 only.
    pub memory_swappiness: Option<u64>,
    /// Maximum number of processes and threads; -1 for no limit.
    pub pids_limit: Option<i64>,
    /// Huge page limits.
    pub hugepages: Vec<HugepageLimit>,
    /// OOM score adjustment of the main process, -1000 to 1000.
    pub oom_score_adj: Option<i32>,
    /// Cgroup v2 files and their content, verbatim.
    pub unified: BTreeMap<String, String>,
}

/// A limit on huge pages of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HugepageLimit {
    /// Size as the kernel names it: `2MB`, `1GB`.
    pub page_size: String,
    /// Limit in bytes.
    pub limit_bytes: u64,
}

/// Whether a text is a list of processors or NUMA nodes as the kernel accepts it: `0-2,7`.
#[must_use]
pub fn is_number_list(text: &str) -> bool {
    text.parse::<CpuSet>().is_ok_and(|set| !set.is_empty())
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
            memory_swap_limit_bytes: memory_swap_limit_bytes.or_else(|| self.swap_beside(memory_limit_bytes)),
            memory_reservation_bytes: memory_reservation_bytes.or(self.memory_reservation_bytes),
            memory_swappiness: memory_swappiness.or(self.memory_swappiness),
            pids_limit: pids_limit.or(self.pids_limit),
            hugepages: merged_hugepages,
            oom_score_adj: oom_score_adj.or(self.oom_score_adj),
            unified: merged_unified,
        }
    }
    /// The memory-plus-swap limit for a new memory limit.
    fn swap_beside(&self, memory: Option<i64>) -> Option<i64> {
        let (sum, Some(memory)) = (self.memory_swap_limit_bytes?, memory) else {
            return self.memory_swap_limit_bytes;
        };
        let fits = sum == -1 || (memory != -1 && sum >= memory);
        Some(if Some(sum) == self.memory_limit_bytes || !fits { memory } else { sum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory-plus-swap limit after an update of the memory limit alone.
    #[track_caller]
    fn check(memory: i64, sum: Option<i64>, update: i64, expected: Option<i64>) {
        let with = |memory, sum| Resources {
            memory_limit_bytes: memory,
            memory_swap_limit_bytes: sum,
            ..Resources::default()
        };
        let merged = with(Some(memory), sum).merged(&with(Some(update), None));
        assert_eq!(merged, with(Some(update), expected));
    }

    #[test]
    fn cpu_list_has_numbers_and_ranges() {
        for list in ["0", "0-2,7", "3 , 5-5"] {
            assert!(is_number_list(list), "{list}");
        }
        for other in ["", ",", "one", "2-1", "-1", "+1", "0-", "0-1-2", "4294967296", "0\0", "0\n1"] {
            assert!(!is_number_list(other), "{other:?}");
        }
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
        let before = Resources {
            memory_limit_bytes: Some(64),
            memory_swap_limit_bytes: Some(128),
            ..Resources::default()
        };
        let shares = Resources { cpu_shares: Some(100), ..Resources::default() };
        assert_eq!(before.merged(&shares).memory_swap_limit_bytes, Some(128));
        let swap = Resources { memory_swap_limit_bytes: Some(96), ..Resources::default() };
        assert_eq!(before.merged(&swap).memory_swap_limit_bytes, Some(96));
    }
}
