//! Limits of a task, and the cgroup that its agent made for it.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use switchyard_core::spec::{CgroupPlacement, ComputeClaim, Reserved, Resources, Rlimit, is_number_list};
use switchyard_core::{Error, Result};
use switchyard_proto::nomad::drivers::proto as nomad;

use super::{TaskRequest, absolute};
use crate::session::Processors;

/// The most and the least shares of the kernel. Nomad counts shares in MHz.
const MOST_SHARES: u64 = 262_144;
const LEAST_SHARES: u64 = 2;

/// Docker's period, and the kernel's bounds of one, in µs.
const PERIOD_US: u64 = 100_000;
const PERIODS_US: std::ops::RangeInclusive<u64> = 1_000..=1_000_000;

/// The least quota of the kernel, in µs.
const LEAST_QUOTA_US: i64 = 1_000;

const MIB: i64 = 1 << 20;

/// Where hierarchies of cgroups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// How an agent calls the group of cpusets of the tasks that have no processors for themselves, with cgroup v1.
const SHARE: &str = "share";

/// The field by which an agent names it.
const GROUP: &str = "task.resources.linux_resources.cpuset_cgroup";

/// What can be limited of a process, as job files call it.
const RLIMITS: [&str; 15] = [
    "core",
    "cpu",
    "data",
    "fsize",
    "locks",
    "memlock",
    "msgqueue",
    "nice",
    "nofile",
    "nproc",
    "rss",
    "rtprio",
    "rttime",
    "sigpending",
    "stack",
];

/// The limits of a task.
pub(super) fn limits(asked: &TaskRequest<'_>) -> Result<Resources> {
    let wire = asked.task.resources.clone().unwrap_or_default();
    let linux = wire.linux_resources.unwrap_or_default();
    let allocated = wire.allocated_resources.unwrap_or_default();
    let mhz = mhz(allocated.cpu, &linux);
    let (limit, reservation) = memory(asked, allocated.memory, linux.memory_limit_bytes);
    let (quota, period) = quota(asked, mhz, linux.percent_ticks)?;
    Ok(Resources {
        cpu_shares: shares(mhz, asked.session.processors.total_mhz),
        cpu_quota_us: quota,
        cpu_period_us: period,
        cpuset_cpus: processors(linux.cpuset_cpus, &linux.cpuset_cgroup)?,
        memory_limit_bytes: limit,
        memory_reservation_bytes: reservation,
        pids_limit: pids(asked)?,
        oom_score_adj: oom_score(asked)?,
        ..Resources::default()
    })
}

/// What an agent keeps for a task. The processors that it names are the task's own: tasks that share theirs have no list.
pub(super) fn compute(asked: &TaskRequest<'_>) -> ComputeClaim {
    let wire = asked.task.resources.clone().unwrap_or_default();
    let linux = wire.linux_resources.unwrap_or_default();
    let allocated = wire.allocated_resources.unwrap_or_default();
    let mhz = mhz(allocated.cpu, &linux);
    let memory = memory_reservation(allocated.memory.unwrap_or_default(), linux.memory_limit_bytes);
    let reserved = Reserved {
        cpu_milli: cpu_milli(mhz, asked.session.processors),
        memory_bytes: memory.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default(),
    };
    ComputeClaim { reserved, exclusive_cpus: !linux.cpuset_cpus.is_empty() }
}

/// The MHz of a task.
fn mhz(cpu: Option<nomad::AllocatedCpuResources>, linux: &nomad::LinuxResources) -> i64 {
    cpu.map(|cpu| cpu.cpu_shares).filter(|mhz| *mhz > 0).unwrap_or(linux.cpu_shares)
}

/// Thousandths of a processor for MHz; 0 if the agent has not said how fast the node's processors are.
fn cpu_milli(mhz: i64, node: Processors) -> u64 {
    let milli = u128::try_from(mhz).unwrap_or_default() * u128::from(node.cores) * 1000;
    milli
        .checked_div(u128::from(node.total_mhz))
        .and_then(|milli| u64::try_from(milli).ok())
        .unwrap_or_default()
}

/// The processors that a task has for itself; `None` if it has none.
fn processors(list: String, group: &str) -> Result<Option<String>> {
    let field = "task.resources.linux_resources.cpuset_cpus";
    if list.is_empty() {
        return Ok(None);
    }
    if !is_number_list(&list) {
        return Err(Error::invalid(field, format!("{list:?} is not a list such as \"0-3,8\"")));
    }
    // With cgroup v1 the group itself is given them: one of many tasks would take from the others what is theirs.
    if Path::new(group).file_name().is_some_and(|name| name == SHARE) {
        return Err(Error::invalid(field, format!("{group:?} is the group of tasks that share theirs")));
    }
    Ok(Some(list))
}

/// Shares of the kernel for MHz. On a node with more of them than the kernel has shares, they are made fewer in proportion.
fn shares(mhz: i64, total_mhz: u64) -> Option<u64> {
    let mhz = u64::try_from(mhz).ok().filter(|mhz| *mhz > 0)?;
    let scaled = if total_mhz > MOST_SHARES {
        u64::try_from(u128::from(mhz) * u128::from(MOST_SHARES) / u128::from(total_mhz))
            .unwrap_or(MOST_SHARES)
    } else {
        mhz
    };
    Some(scaled.clamp(LEAST_SHARES, MOST_SHARES))
}

/// Quota and period of a task with a hard limit: its part of the node's compute, over all cores.
fn quota(asked: &TaskRequest<'_>, mhz: i64, percent_ticks: f64) -> Result<(Option<i64>, Option<u64>)> {
    let period = asked.options.cpu_cfs_period_us.unwrap_or(PERIOD_US);
    if !PERIODS_US.contains(&period) {
        return Err(Error::invalid("cpu_cfs_period", format!("{period} is not between 1000 and 1000000")));
    }
    if !asked.options.cpu_hard_limit {
        return Ok((None, None));
    }
    let Processors { cores, total_mhz } = asked.session.processors;
    if cores == 0 || total_mhz == 0 {
        let why = "the agent has not said how many processors the node has";
        return Err(Error::invalid("cpu_hard_limit", why));
    }
    // The agent's own figure leaves out what it withholds.
    let quota = if percent_ticks.is_finite() && percent_ticks > 0.0 {
        let quota = percent_ticks * f64::from(u32::try_from(period).unwrap_or(u32::MAX)) * f64::from(cores);
        format!("{:.0}", quota.floor()).parse::<i64>().ok()
    } else {
        let mhz = u128::try_from(mhz).unwrap_or_default();
        i64::try_from(mhz * u128::from(period) * u128::from(cores) / u128::from(total_mhz)).ok()
    };
    let wrong = || Error::invalid("cpu_hard_limit", "the task has more than the node's compute");
    Ok((Some(quota.ok_or_else(wrong)?.max(LEAST_QUOTA_US)), Some(period)))
}

/// The memory that a task is promised, in bytes; `None` if nothing is said of it.
fn memory_reservation(memory: nomad::AllocatedMemoryResources, limit_bytes: i64) -> Option<i64> {
    bytes(memory.memory_mb).or(Some(limit_bytes).filter(|bytes| *bytes > 0))
}

fn bytes(mb: i64) -> Option<i64> {
    Some(mb.saturating_mul(MIB)).filter(|bytes| *bytes > 0)
}

/// Limit and reservation of memory, in bytes.
fn memory(
    asked: &TaskRequest<'_>,
    memory: Option<nomad::AllocatedMemoryResources>,
    limit_bytes: i64,
) -> (Option<i64>, Option<i64>) {
    let memory = memory.unwrap_or_default();
    let soft = memory_reservation(memory, limit_bytes);
    let nomad::AllocatedMemoryResources { memory_mb: _, memory_max_mb } = memory;
    if memory_max_mb < 0 {
        return (None, soft);
    }
    let wanted = i64::try_from(asked.options.memory_hard_limit_mb).unwrap_or(i64::MAX);
    match bytes(wanted.max(memory_max_mb)) {
        None => (soft, None),
        // A reservation over the limit is none.
        Some(hard) => (Some(hard), soft.map(|soft| soft.min(hard))),
    }
}

fn pids(asked: &TaskRequest<'_>) -> Result<Option<i64>> {
    let own = asked.options.pids_limit;
    let most = asked.session.config.pids_limit;
    match (own.filter(|own| *own > 0), most) {
        (Some(own), Some(most)) if own > most => {
            let why = format!("pids_limit cannot be greater than nomad plugin config pids_limit: {most}");
            Err(Error::invalid("pids_limit", why))
        }
        (Some(own), _) => Ok(Some(own)),
        // As with Docker, one below 0 is none of the task's own, and the plugin's counts.
        (None, most) => Ok(most.or(own.map(|_| -1))),
    }
}

fn oom_score(asked: &TaskRequest<'_>) -> Result<Option<i32>> {
    let config = &asked.session.config;
    match asked.options.oom_score_adj {
        Some(score) if score < 0 && !config.allow_privileged => Err(Error::invalid(
            "oom_score_adj",
            "a negative one needs allow_privileged in the plugin's configuration",
        )),
        Some(score) => Ok(Some(score)),
        // Also one of 0 is said: a task that is told none has that of its shim, which the kernel is to spare.
        None => Ok(Some(config.oom_score_adj)),
    }
}

/// Limits of the main process: `nofile = "1024:2048"`.
pub(super) fn rlimits(asked: &BTreeMap<String, String>) -> Result<Vec<Rlimit>> {
    let rlimit = |(name, text): (&String, &String)| {
        let field = format!("ulimit.{name}");
        if !RLIMITS.contains(&name.as_str()) {
            return Err(Error::invalid(
                field,
                format!("there is no such limit; there are {}", RLIMITS.join(", ")),
            ));
        }
        let number = |text: &str| match text.trim() {
            "-1" => Ok(u64::MAX),
            number => number.parse::<u64>().map_err(|_| {
                Error::invalid(&field, format!("{text:?} is neither a number nor -1 for no limit"))
            }),
        };
        let (soft, hard) = text.split_once(':').unwrap_or((text, text));
        let soft = number(soft)?;
        let hard = number(hard)?;
        if soft > hard {
            return Err(Error::invalid(field, format!("the soft limit of {text:?} is over the hard one")));
        }
        Ok(Rlimit { name: format!("RLIMIT_{}", name.to_ascii_uppercase()), soft, hard })
    };
    asked.iter().map(rlimit).collect()
}

/// The cgroup that the agent made; `None` if it made none.
pub(super) fn cgroup(asked: &TaskRequest<'_>) -> Result<Option<CgroupPlacement>> {
    let path = named_group(asked.task);
    if path.is_empty() {
        return Ok(None);
    }
    let wrong = || Error::invalid(GROUP, format!("{path:?} is no group that an agent makes"));
    let leaf = format!("{}.{}", asked.task.alloc_id, asked.task.name);
    let placement = leaf_of(&absolute(GROUP, path)?, &leaf).ok_or_else(wrong)?;
    Ok(Some(placement))
}

/// The path of the cgroup that an agent names as the one it made; empty if it made none.
pub(crate) fn named_group(task: &nomad::TaskConfig) -> &str {
    let linux = task.resources.as_ref().and_then(|resources| resources.linux_resources.as_ref());
    linux.map(|linux| linux.cpuset_cgroup.as_str()).unwrap_or_default()
}

/// Where a task goes whose agent names this group, and would call one of the task's own `<leaf>`.
///
/// With cgroup v2 the group is the task's own, a scope. With v1 it is one of cpusets, `<parent>/share` or `<parent>/reserve/<leaf>`, and
/// the task's own group is `<parent>/<leaf>` in the other hierarchies.
fn leaf_of(path: &Path, leaf: &str) -> Option<CgroupPlacement> {
    let below = path.strip_prefix(CGROUPS).ok()?;
    if path.extension().is_some_and(|end| end == "scope") {
        return Some(CgroupPlacement::Leaf { path: Path::new("/").join(below), cpuset: None });
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
    Some(CgroupPlacement::Leaf { path: parent.join(leaf), cpuset: Some(cpuset) })
}

#[cfg(test)]
mod tests;
