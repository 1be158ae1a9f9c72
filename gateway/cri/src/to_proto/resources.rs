//! Converts the effective limits of a container.

use switchyard_core::spec::{
    CpuList, CpuPeriod, CpuQuota, CpuShares, MemoryLimit, OomScoreAdj, Resources,
};
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
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let text = |list: &Option<CpuList>| list.as_ref().map(CpuList::to_string).unwrap_or_default();
    cri::LinuxContainerResources {
        cpu_period: cpu_period_us.map(CpuPeriod::get).map_or(0, signed),
        cpu_quota: cpu_quota_us.map_or(0, CpuQuota::signed),
        cpu_shares: cpu_shares.map(CpuShares::get).map_or(0, signed),
        memory_limit_in_bytes: memory_limit_bytes.map_or(0, MemoryLimit::signed),
        oom_score_adj: oom_score_adj.map_or(0, OomScoreAdj::get).into(),
        cpuset_cpus: text(cpuset_cpus),
        cpuset_mems: text(cpuset_mems),
        hugepage_limits: hugepages
            .iter()
            .map(|limit| cri::HugepageLimit {
                page_size: limit.page_size.to_string(),
                limit: limit.limit_bytes,
            })
            .collect(),
        unified: unified
            .iter()
            .map(|(file, value)| (file.to_string(), value.clone()))
            .collect(),
        memory_swap_limit_in_bytes: memory_swap_limit_bytes.map_or(0, MemoryLimit::signed),
    }
}
