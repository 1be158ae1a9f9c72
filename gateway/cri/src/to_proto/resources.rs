//! Converts the effective limits of a container.

use switchyard_core::spec::Resources;
use switchyard_proto::cri::v1 as cri;

/// Limits; zero means unlimited.
pub(super) fn limits(resources: &Resources) -> cri::LinuxContainerResources {
    let Resources {
        cpu_shares,
        cpu_quota_us,
        cpu_period_us,
        cpuset_cpus,
        cpuset_mems,
        memory_limit_bytes,
        memory_swap_limit_bytes,
        // CRI v1 has no fields for these three.
        memory_reservation_bytes: _,
        memory_swappiness: _,
        pids_limit: _,
        hugepages,
        oom_score_adj,
        unified,
    } = resources;
    let signed = |number: Option<u64>| number.map_or(0, |n| i64::try_from(n).unwrap_or(i64::MAX));
    cri::LinuxContainerResources {
        cpu_period: signed(*cpu_period_us),
        cpu_quota: cpu_quota_us.unwrap_or(0),
        cpu_shares: signed(*cpu_shares),
        memory_limit_in_bytes: memory_limit_bytes.unwrap_or(0),
        oom_score_adj: i64::from(oom_score_adj.unwrap_or(0)),
        cpuset_cpus: cpuset_cpus.clone().unwrap_or_default(),
        cpuset_mems: cpuset_mems.clone().unwrap_or_default(),
        hugepage_limits: hugepages
            .iter()
            .map(|limit| cri::HugepageLimit { page_size: limit.page_size.clone(), limit: limit.limit_bytes })
            .collect(),
        unified: unified.clone(),
        memory_swap_limit_in_bytes: memory_swap_limit_bytes.unwrap_or(0),
    }
}
