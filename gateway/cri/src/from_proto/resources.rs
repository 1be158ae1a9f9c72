//! Converts the limits of a container.

use std::collections::BTreeMap;
use std::fmt::Display;

use switchyard_core::spec::{
    CgroupFile, CpuList, CpuPeriod, CpuQuota, CpuShares, HugepageLimit, HugepageSize, MemoryLimit,
    OomScoreAdj, Resources,
};
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1 as cri;

/// The most sizes of huge pages that a container has limits for: a kubelet sends one limit for each size of the node,
/// and sizes are powers of two.
const PAGE_SIZES_MAX: usize = 64;

/// The limits of a new container. Zero means not set, except for the OOM score adjustment, which a container
/// always has.
pub(super) fn limits(
    limits: Option<cri::LinuxContainerResources>,
    field: &str,
) -> Result<Resources> {
    let limits = limits.unwrap_or_default();
    let score = limits.oom_score_adj;
    let mut limits = convert(limits, field)?;
    limits.oom_score_adj = Some(oom_score(score, field)?);
    Ok(limits)
}

/// Changes to the limits of a container; fields that are zero stay unchanged.
pub(crate) fn update(limits: cri::LinuxContainerResources) -> Result<Resources> {
    convert(limits, "linux")
}

/// Refuses invalid limits.
pub(crate) fn check(limits: Option<&cri::LinuxContainerResources>, field: &str) -> Result<()> {
    limits.map_or(Ok(()), |limits| convert(limits.clone(), field).map(drop))
}

fn convert(limits: cri::LinuxContainerResources, field: &str) -> Result<Resources> {
    let cri::LinuxContainerResources {
        cpu_period,
        cpu_quota,
        cpu_shares,
        memory_limit_in_bytes,
        oom_score_adj,
        cpuset_cpus,
        cpuset_mems,
        hugepage_limits,
        unified,
        memory_swap_limit_in_bytes,
    } = limits;
    let limit = memory(
        memory_limit_in_bytes,
        format_args!("{field}.memory_limit_in_bytes"),
    )?;
    let swap = swap(memory_swap_limit_in_bytes, limit, field)?;
    Ok(Resources {
        cpu_shares: shares(cpu_shares, field)?,
        cpu_quota_us: quota(cpu_quota, field)?,
        cpu_period_us: period(cpu_period, field)?,
        cpuset_cpus: list(cpuset_cpus, format_args!("{field}.cpuset_cpus"))?,
        cpuset_mems: list(cpuset_mems, format_args!("{field}.cpuset_mems"))?,
        memory_limit_bytes: limit,
        memory_swap_limit_bytes: swap,
        memory_reservation_bytes: None,
        memory_swappiness: None,
        pids_limit: None,
        hugepages: hugepages(hugepage_limits, field)?,
        oom_score_adj: match oom_score_adj {
            0 => None,
            score => Some(oom_score(score, field)?),
        },
        unified: cgroup_files(unified, field)?,
    })
}

fn oom_score(score: i64, field: &str) -> Result<OomScoreAdj> {
    OomScoreAdj::new(score).map_err(|error| error.in_field(format_args!("{field}.oom_score_adj")))
}

/// Shares that cgroups do not accept are clamped, as by the kernel.
fn shares(shares: i64, field: &str) -> Result<Option<CpuShares>> {
    match u64::try_from(shares) {
        Ok(0) => Ok(None),
        Ok(shares) => Ok(Some(CpuShares::clamped(shares))),
        Err(_) => Err(Error::invalid(
            format_args!("{field}.cpu_shares"),
            format!("{shares} is negative"),
        )),
    }
}

fn period(period: i64, field: &str) -> Result<Option<CpuPeriod>> {
    if period == 0 {
        return Ok(None);
    }
    CpuPeriod::new(period)
        .map(Some)
        .map_err(|error| error.in_field(format_args!("{field}.cpu_period")))
}

fn quota(quota: i64, field: &str) -> Result<Option<CpuQuota>> {
    if quota == 0 {
        return Ok(None);
    }
    CpuQuota::new(quota)
        .map(Some)
        .map_err(|error| error.in_field(format_args!("{field}.cpu_quota")))
}

fn memory(bytes: i64, field: impl Display) -> Result<Option<MemoryLimit>> {
    if bytes == 0 {
        return Ok(None);
    }
    MemoryLimit::new(bytes)
        .map(Some)
        .map_err(|error| error.in_field(field))
}

fn swap(bytes: i64, limit: Option<MemoryLimit>, field: &str) -> Result<Option<MemoryLimit>> {
    let field = format!("{field}.memory_swap_limit_in_bytes");
    let swap = memory(bytes, &field)?;
    if let (Some(swap), Some(limit)) = (swap, limit) {
        swap.check_includes(limit)
            .map_err(|error| error.in_field(field))?;
    }
    Ok(swap)
}

/// A list of numbers and ranges, such as `0-3,8`; `None` if it is empty.
fn list(text: String, field: impl Display) -> Result<Option<CpuList>> {
    if text.is_empty() {
        return Ok(None);
    }
    CpuList::new(text)
        .map(Some)
        .map_err(|error| error.in_field(field))
}

fn hugepages(limits: Vec<cri::HugepageLimit>, field: &str) -> Result<Vec<HugepageLimit>> {
    let mut all = BTreeMap::new();
    for (index, cri::HugepageLimit { page_size, limit }) in limits.into_iter().enumerate() {
        let page_size = HugepageSize::new(page_size).map_err(|error| {
            error.in_field(format_args!("{field}.hugepage_limits[{index}].page_size"))
        })?;
        // The last limit for a size counts.
        all.insert(page_size, limit);
        if all.len() > PAGE_SIZES_MAX {
            return Err(Error::invalid(
                format_args!("{field}.hugepage_limits[{index}]"),
                format!(
                    "the container has limits for {PAGE_SIZES_MAX} page sizes without it, and may have no more"
                ),
            ));
        }
    }
    Ok(all
        .into_iter()
        .map(|(page_size, limit_bytes)| HugepageLimit {
            page_size,
            limit_bytes,
        })
        .collect())
}

fn cgroup_files(
    files: BTreeMap<String, String>,
    field: &str,
) -> Result<BTreeMap<CgroupFile, String>> {
    let checked = files.into_iter().map(|(name, value)| {
        let at = format!("{field}.unified[{name:?}]");
        let file = CgroupFile::new(name).map_err(|error| error.in_field(&at))?;
        super::field::text(at, &value)?;
        Ok((file, value))
    });
    checked.collect()
}
