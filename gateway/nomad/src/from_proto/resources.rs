//! Limits of a task, and the cgroup that its agent created for it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest as _, Sha256};
use switchyard_core::spec::{
    CgroupPlacement, ComputeClaim, CpuList, CpuPeriod, CpuQuota, CpuShares, MemoryLimit,
    OomScoreAdj, PidsLimit, Reserved, Resources, Rlimit,
};
use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::absolute;
use switchyard_docker_options::ulimits;
use switchyard_proto::nomad::drivers::proto as nomad;

use super::request::TaskRequest;
use crate::paths::named_group;
use crate::session::Processors;

const MIB: i64 = 1 << 20;

/// The mount point of the cgroup hierarchies.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The agent's name for the cpuset cgroup of the tasks without exclusive processors, with cgroup v1.
const SHARE: &str = "share";

/// The longest name of a directory, in bytes: the kernel's limit.
const DIRECTORY_NAME_MAX: usize = 255;

/// The request field with that cgroup.
const GROUP: &str = "task.resources.linux_resources.cpuset_cgroup";

/// The limits of a task.
pub(super) fn limits(request: &TaskRequest<'_>) -> Result<Resources> {
    let wire = request.task.resources.clone().unwrap_or_default();
    let linux = wire.linux_resources.unwrap_or_default();
    let allocated = wire.allocated_resources.unwrap_or_default();
    let mhz = mhz(allocated.cpu, &linux);
    let (limit, reservation) = memory(request, allocated.memory, linux.memory_limit_bytes)?;
    let (quota, period) = quota(request, mhz, linux.percent_ticks)?.unzip();
    Ok(Resources {
        cpu_shares: shares(mhz, request.session.processors.total_mhz),
        cpu_quota_us: quota,
        cpu_period_us: period,
        cpuset_cpus: processors(linux.cpuset_cpus, &linux.cpuset_cgroup)?,
        memory_limit_bytes: limit,
        memory_reservation_bytes: reservation,
        pids_limit: pids(request)?,
        oom_score_adj: oom_score(request)?,
        ..Resources::default()
    })
}

/// The agent's reservation for a task. The processors that it names are exclusive: tasks that share theirs
/// have no list.
pub(super) fn compute(request: &TaskRequest<'_>) -> ComputeClaim {
    let wire = request.task.resources.clone().unwrap_or_default();
    let linux = wire.linux_resources.unwrap_or_default();
    let allocated = wire.allocated_resources.unwrap_or_default();
    let mhz = mhz(allocated.cpu, &linux);
    let memory = memory_reservation(
        allocated.memory.unwrap_or_default(),
        linux.memory_limit_bytes,
    );
    let reserved = Reserved {
        cpu_milli: cpu_milli(mhz, request.session.processors),
        memory_bytes: memory.and_then(MemoryLimit::get).unwrap_or_default(),
    };
    ComputeClaim {
        reserved,
        exclusive_cpus: !linux.cpuset_cpus.is_empty(),
    }
}

/// The CPU of a task in MHz.
fn mhz(cpu: Option<nomad::AllocatedCpuResources>, linux: &nomad::LinuxResources) -> i64 {
    cpu.map(|cpu| cpu.cpu_shares)
        .filter(|mhz| *mhz > 0)
        .unwrap_or(linux.cpu_shares)
}

/// MHz in thousandths of a processor; 0 if the agent has not reported the speed of the node's processors.
fn cpu_milli(mhz: i64, node: Processors) -> u64 {
    let milli = u128::try_from(mhz).unwrap_or_default() * u128::from(node.cores) * 1000;
    milli
        .checked_div(u128::from(node.total_mhz))
        .and_then(|milli| u64::try_from(milli).ok())
        .unwrap_or_default()
}

/// The exclusive processors of a task; `None` if it has none.
fn processors(list: String, group: &str) -> Result<Option<CpuList>> {
    let field = "task.resources.linux_resources.cpuset_cpus";
    if list.is_empty() {
        return Ok(None);
    }
    let list = CpuList::new(list).map_err(|error| error.in_field(field))?;
    // With cgroup v1 the list would be set on the shared cgroup itself: one task would restrict all others in
    // it.
    if Path::new(group)
        .file_name()
        .is_some_and(|name| name == SHARE)
    {
        return Err(Error::invalid(
            field,
            format!("{group:?} is the group of tasks that share theirs"),
        ));
    }
    Ok(Some(list))
}

/// MHz as kernel shares: Nomad counts shares in MHz. Scaled down on a node with more MHz than the kernel has
/// shares.
fn shares(mhz: i64, total_mhz: u64) -> Option<CpuShares> {
    let mhz = u64::try_from(mhz).ok().filter(|mhz| *mhz > 0)?;
    let most = CpuShares::MOST.get();
    let scaled = if total_mhz > most {
        u64::try_from(u128::from(mhz) * u128::from(most) / u128::from(total_mhz)).unwrap_or(most)
    } else {
        mhz
    };
    Some(CpuShares::clamped(scaled))
}

/// Quota and period of a task with a hard limit: its part of the node's compute, over all cores.
fn quota(
    request: &TaskRequest<'_>,
    mhz: i64,
    percent_ticks: f64,
) -> Result<Option<(CpuQuota, CpuPeriod)>> {
    if !request.options.cpu_hard_limit {
        return Ok(None);
    }
    let Processors { cores, total_mhz } = request.session.processors;
    if cores == 0 || total_mhz == 0 {
        let why = "the agent has not said how many processors the node has";
        return Err(Error::invalid("cpu_hard_limit", why));
    }
    let period = request.options.cpu_cfs_period.unwrap_or(CpuPeriod::DEFAULT);
    // The agent's own figure excludes what it reserves for the system.
    let quota = if percent_ticks.is_finite() && percent_ticks > 0.0 {
        let period_us = f64::from(u32::try_from(period.get()).unwrap_or(u32::MAX));
        let quota = percent_ticks * period_us * f64::from(cores);
        format!("{:.0}", quota.floor()).parse::<i64>().ok()
    } else {
        let mhz = u128::try_from(mhz).unwrap_or_default();
        i64::try_from(mhz * u128::from(period.get()) * u128::from(cores) / u128::from(total_mhz))
            .ok()
    };
    let Some(quota) = quota else {
        return Err(Error::invalid(
            "cpu_hard_limit",
            "the task has more than the node's compute",
        ));
    };
    Ok(Some((CpuQuota::at_least(quota), period)))
}

/// The memory reservation of a task; `None` if it has none.
fn memory_reservation(
    memory: nomad::AllocatedMemoryResources,
    limit_bytes: i64,
) -> Option<MemoryLimit> {
    memory_limit(memory.memory_mb.saturating_mul(MIB)).or_else(|| memory_limit(limit_bytes))
}

/// A number of bytes; agents write 0 or less for none.
fn memory_limit(bytes: i64) -> Option<MemoryLimit> {
    MemoryLimit::new(bytes)
        .ok()
        .filter(|limit| *limit != MemoryLimit::UNLIMITED)
}

/// Memory limit and reservation.
fn memory(
    request: &TaskRequest<'_>,
    memory: Option<nomad::AllocatedMemoryResources>,
    limit_bytes: i64,
) -> Result<(Option<MemoryLimit>, Option<MemoryLimit>)> {
    let memory = memory.unwrap_or_default();
    let soft = memory_reservation(memory, limit_bytes);
    let nomad::AllocatedMemoryResources {
        memory_mb: _,
        memory_max_mb,
    } = memory;
    if memory_max_mb < 0 {
        return Ok((None, soft));
    }
    let own = request.options.memory_hard_limit_mb;
    let wanted = i64::try_from(own).unwrap_or(i64::MAX);
    let Some(hard) = memory_limit(wanted.max(memory_max_mb).saturating_mul(MIB)) else {
        return Ok((soft, None));
    };
    match soft {
        // As docker's daemon refuses it: such a task would be killed below what its job reserves for it.
        Some(soft) if hard < soft && own > 0 => {
            let reserved = soft.signed() / MIB;
            let why = format!(
                "{own} MiB is less than the memory of the task's resources, {reserved} MiB: give it as much or more"
            );
            Err(Error::invalid("memory_hard_limit", why))
        }
        // The reservation is capped at the limit.
        soft => Ok((Some(hard), soft.map(|soft| soft.min(hard)))),
    }
}

/// As with Docker, a negative value means no limit of the task's own, and the plugin's applies.
fn pids(request: &TaskRequest<'_>) -> Result<Option<PidsLimit>> {
    match (
        request.options.pids_limit,
        request.session.config.pids_limit,
    ) {
        (Some(PidsLimit::UNLIMITED) | None, Some(most)) => Ok(Some(most)),
        (Some(own), Some(most)) if own > most => {
            let why =
                format!("pids_limit cannot be greater than nomad plugin config pids_limit: {most}");
            Err(Error::invalid("pids_limit", why))
        }
        (own, _) => Ok(own),
    }
}

fn oom_score(request: &TaskRequest<'_>) -> Result<Option<OomScoreAdj>> {
    let config = &request.session.config;
    match request.options.oom_score_adj {
        Some(score) if score < OomScoreAdj::default() && !config.allow_privileged => {
            Err(Error::invalid(
                "oom_score_adj",
                "a negative one needs allow_privileged in the plugin's configuration",
            ))
        }
        Some(score) => Ok(Some(score)),
        // Also set if it is 0: a task without a value inherits that of its shim, which the kernel should
        // spare.
        None => Ok(Some(config.oom_score_adj)),
    }
}

/// Rlimits of the main process: `nofile = "1024:2048"`.
pub(super) fn rlimits(ulimits: &BTreeMap<String, String>) -> Result<Vec<Rlimit>> {
    ulimits.iter().map(rlimit).collect()
}

fn rlimit((name, text): (&String, &String)) -> Result<Rlimit> {
    let field = format!("ulimit.{name}");
    ulimits::check_name(&field, name)?;
    let number = |text: &str| match text.trim() {
        "-1" => Ok(u64::MAX),
        number => number.parse::<u64>().map_err(|_| {
            Error::invalid(
                &field,
                format!("{text:?} is neither a number nor -1 for no limit"),
            )
        }),
    };
    let (soft, hard) = text.split_once(':').unwrap_or((text, text));
    let soft = number(soft)?;
    let hard = number(hard)?;
    ulimits::rlimit(field, name, soft, hard)
}

/// The cgroup that the agent created; `None` if it created none.
pub(super) fn cgroup(request: &TaskRequest<'_>) -> Result<Option<CgroupPlacement>> {
    let path = named_group(request.task);
    if path.is_empty() {
        return Ok(None);
    }
    let leaf = format!("{}.{}", request.task.alloc_id, request.task.name);
    let placement = leaf_of(&absolute(GROUP, path)?, &leaf).ok_or_else(|| {
        Error::invalid(GROUP, format!("{path:?} is no group that an agent makes"))
    })?;
    Ok(Some(placement))
}

/// The cgroup placement for a task whose agent names this cgroup; its own cgroup would be named `<leaf>`.
///
/// With cgroup v2 the cgroup belongs to the task alone, a scope. With v1 it is a cpuset cgroup,
/// `<parent>/share` or `<parent>/reserve/<leaf>`, and the task's own cgroup is `<parent>/<leaf>` in the other
/// hierarchies.
fn leaf_of(path: &Path, leaf: &str) -> Option<CgroupPlacement> {
    let below = path.strip_prefix(CGROUPS).ok()?;
    if path.extension().is_some_and(|end| end == "scope") {
        return Some(CgroupPlacement::Leaf {
            path: Path::new("/").join(below),
            cpuset: None,
        });
    }
    let mut parts: Vec<Component<'_>> = below.components().collect();
    if parts.first()?.as_os_str() != "cpuset" {
        return None;
    }
    let cpuset: PathBuf = Path::new("/").join(parts[1..].iter().collect::<PathBuf>());
    let last = parts.pop()?.as_os_str();
    if last != SHARE && (last != leaf || parts.pop()?.as_os_str() != "reserve") {
        return None;
    }
    let parent = Path::new("/").join(parts.get(1..)?.iter().collect::<PathBuf>());
    Some(CgroupPlacement::Leaf {
        path: parent.join(directory_name(leaf).as_ref()),
        cpuset: Some(cpuset),
    })
}

/// The name of a task's own cgroup: the leaf, or its beginning and a digest of it where no directory can have that name.
/// An agent takes names of tasks of 255 bytes.
fn directory_name(leaf: &str) -> Cow<'_, str> {
    if leaf.len() <= DIRECTORY_NAME_MAX {
        return Cow::Borrowed(leaf);
    }
    let digest = Sha256::digest(leaf);
    let digits: String = digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let end = leaf.floor_char_boundary(DIRECTORY_NAME_MAX - digits.len() - 1);
    Cow::Owned(format!("{}-{digits}", &leaf[..end]))
}

#[cfg(test)]
mod tests;
