//! Converts the limits of a container.

use std::collections::BTreeMap;

use switchyard_core::spec::{HugepageLimit, Resources, is_number_list};
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1 as cri;

/// The CPU periods that the kernel accepts, in µs.
const PERIODS_US: std::ops::RangeInclusive<u64> = 1_000..=1_000_000;

/// The shortest CPU quota that the kernel accepts, in µs.
const SHORTEST_QUOTA_US: i64 = 1_000;

/// The CPU shares that cgroups accept; others are clamped, as by the kernel.
const SHARES: (u64, u64) = (2, 262_144);

/// The limits of a new container. Zero means not set, except for the OOM score adjustment, which a container
/// always has.
pub(super) fn limits(limits: Option<cri::LinuxContainerResources>, field: &str) -> Result<Resources> {
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
    let memory = bytes_or_unlimited(memory_limit_in_bytes, format_args!("{field}.memory_limit_in_bytes"))?;
    let swap = swap(memory_swap_limit_in_bytes, memory, field)?;
    Ok(Resources {
        cpu_shares: shares(cpu_shares, field)?,
        cpu_quota_us: quota(cpu_quota, field)?,
        cpu_period_us: period(cpu_period, field)?,
        cpuset_cpus: list(cpuset_cpus, format_args!("{field}.cpuset_cpus"))?,
        cpuset_mems: list(cpuset_mems, format_args!("{field}.cpuset_mems"))?,
        memory_limit_bytes: memory,
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

fn oom_score(score: i64, field: &str) -> Result<i32> {
    i32::try_from(score).ok().filter(|score| (-1000..=1000).contains(score)).ok_or_else(|| {
        Error::invalid(
            format_args!("{field}.oom_score_adj"),
            format!("{score} is not between -1000 and 1000"),
        )
    })
}

fn shares(shares: i64, field: &str) -> Result<Option<u64>> {
    match u64::try_from(shares) {
        Ok(0) => Ok(None),
        Ok(shares) => Ok(Some(shares.clamp(SHARES.0, SHARES.1))),
        Err(_) => Err(Error::invalid(format_args!("{field}.cpu_shares"), format!("{shares} is negative"))),
    }
}

fn period(period: i64, field: &str) -> Result<Option<u64>> {
    match u64::try_from(period) {
        Ok(0) => Ok(None),
        Ok(period) if PERIODS_US.contains(&period) => Ok(Some(period)),
        Ok(_) | Err(_) => Err(Error::invalid(
            format_args!("{field}.cpu_period"),
            format!("{period} µs is not between {} and {}", PERIODS_US.start(), PERIODS_US.end()),
        )),
    }
}

fn quota(quota: i64, field: &str) -> Result<Option<i64>> {
    match quota {
        0 => Ok(None),
        quota if quota < 0 => Ok(Some(-1)),
        quota if quota >= SHORTEST_QUOTA_US => Ok(Some(quota)),
        quota => Err(Error::invalid(
            format_args!("{field}.cpu_quota"),
            format!("{quota} µs is below {SHORTEST_QUOTA_US}, the least the kernel takes"),
        )),
    }
}

fn bytes_or_unlimited(bytes: i64, field: impl std::fmt::Display) -> Result<Option<i64>> {
    match bytes {
        0 => Ok(None),
        bytes if bytes >= -1 => Ok(Some(bytes)),
        bytes => Err(Error::invalid(field, format!("{bytes} is negative; -1 is for no limit"))),
    }
}

fn swap(bytes: i64, memory: Option<i64>, field: &str) -> Result<Option<i64>> {
    let field = format!("{field}.memory_swap_limit_in_bytes");
    let swap = bytes_or_unlimited(bytes, &field)?;
    match (swap, memory) {
        (Some(swap), Some(memory)) if swap > 0 && memory > 0 && swap < memory => Err(Error::invalid(
            field,
            format!("{swap} is less than the memory limit of {memory}: it is the sum of memory and swap"),
        )),
        (swap, _) => Ok(swap),
    }
}

/// A list of numbers and ranges, such as `0-3,8`; `None` if it is empty.
fn list(text: String, field: impl std::fmt::Display) -> Result<Option<String>> {
    if text.is_empty() {
        return Ok(None);
    }
    if is_number_list(&text) {
        Ok(Some(text))
    } else {
        Err(Error::invalid(field, format!("{text:?} is not a list such as \"0-3,8\"")))
    }
}

fn hugepages(limits: Vec<cri::HugepageLimit>, field: &str) -> Result<Vec<HugepageLimit>> {
    let mut all: Vec<HugepageLimit> = Vec::with_capacity(limits.len());
    for (index, cri::HugepageLimit { page_size, limit }) in limits.into_iter().enumerate() {
        let number = ["KB", "MB", "GB"].iter().find_map(|unit| page_size.strip_suffix(unit));
        let well_formed = number.is_some_and(|number| {
            number.bytes().all(|b| b.is_ascii_digit()) && number.parse::<u32>().is_ok_and(|n| n > 0)
        });
        if !well_formed {
            return Err(Error::invalid(
                format_args!("{field}.hugepage_limits[{index}].page_size"),
                format!("{page_size:?} is not a size such as \"2MB\""),
            ));
        }
        // The last limit for a size counts.
        all.retain(|known| known.page_size != page_size);
        all.push(HugepageLimit { page_size, limit_bytes: limit });
    }
    Ok(all)
}

fn cgroup_files(files: BTreeMap<String, String>, field: &str) -> Result<BTreeMap<String, String>> {
    for (name, value) in &files {
        let at = || format!("{field}.unified[{name:?}]");
        if !name.contains('.') || name.contains(['/', '\0']) || name.starts_with('.') {
            return Err(Error::invalid(at(), "it is not the name of a cgroup file, such as \"memory.high\""));
        }
        super::field::text(at(), value)?;
    }
    Ok(files)
}
