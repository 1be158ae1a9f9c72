//! Limits of a cgroup, reduced to what the node can give and converted to the OCI runtime spec.

use std::collections::BTreeSet;

use switchyard_core::spec::{
    CpuList, CpuPeriod, CpuQuota, CpuShares, HugepageLimit, MemoryLimit, Resources, Swappiness,
};
use switchyard_core::text::first_names;
use switchyard_core::{Error, Result};

use crate::input::{CgroupDriver, CgroupVersion, Host};
use crate::limits::oom_score_adj;
use crate::oci::{LinuxCpu, LinuxHugepageLimit, LinuxMemory, LinuxPids, LinuxResources};

/// The limits of a new task, or of an update of a running one; limits that were not requested are absent.
///
/// A limit for which this node has no controller is left out with a warning, as by containerd. Device rules
/// and limits on block devices are not part of this: an update must not change them.
///
/// # Errors
/// `InvalidArgument`, naming the field below `resources`; `Unimplemented` for swappiness on cgroup v2.
pub fn linux_resources(
    asked: &Resources,
    host: &Host,
    warnings: &mut Vec<String>,
) -> Result<LinuxResources> {
    let memory = memory(asked, host, warnings)?;
    let mut unified = unified(asked, host)?;
    if let Some((file, value)) = no_swap_for_systemd(memory.as_ref(), host) {
        unified.entry(file).or_insert(value);
    }
    Ok(LinuxResources {
        devices: Vec::new(),
        memory,
        cpu: cpu(asked),
        pids: asked.pids_limit.map(|limit| LinuxPids {
            limit: limit.signed(),
        }),
        block_io: None,
        network: None,
        hugepage_limits: hugepages(&asked.hugepages, host, warnings)
            .into_iter()
            .map(spec_limit)
            .collect(),
        unified,
    })
}

/// The `unified` entry for a swap limit of 0 with the systemd driver. runc writes such a limit to the cgroup
/// without setting the unit's property, so systemd resets it to no limit when units are reloaded; entries of
/// `unified` runc does pass to systemd.
fn no_swap_for_systemd(memory: Option<&LinuxMemory>, host: &Host) -> Option<(String, String)> {
    let none = memory.is_some_and(|memory| {
        memory.swap.is_some_and(|swap| swap > 0) && memory.swap == memory.limit
    });
    let unit = host.cgroup == CgroupVersion::V2 && host.cgroup_driver == CgroupDriver::Systemd;
    (none && unit).then(|| ("memory.swap.max".to_owned(), "0".to_owned()))
}

/// The limits that this node will enforce: those of [`linux_resources`], and the OOM score adjustment that
/// can be set.
///
/// What is left out or reduced is reported by a warning and is not in the result, so that a request for the
/// result gives the same without warnings.
///
/// # Errors
/// Those of [`linux_resources`].
pub fn granted(asked: &Resources, host: &Host, warnings: &mut Vec<String>) -> Result<Resources> {
    asked.check_memory()?;
    swappiness(asked, host)?;
    unified(asked, host)?;
    let swap = swap(asked, host, warnings);
    Ok(Resources {
        memory_swap_limit_bytes: swap,
        hugepages: hugepages(&asked.hugepages, host, warnings),
        oom_score_adj: asked
            .oom_score_adj
            .map(|score| oom_score_adj(score, host, warnings)),
        ..asked.clone()
    })
}

fn invalid(field: &str, why: impl std::fmt::Display) -> Error {
    Error::invalid(format_args!("resources.{field}"), why)
}

fn cpu(asked: &Resources) -> Option<LinuxCpu> {
    // Blanks around a list, which clients may send, stay out of the spec.
    let list = |list: &Option<CpuList>| list.as_ref().map(|list| list.as_str().trim().to_owned());
    let cpu = LinuxCpu {
        shares: asked.cpu_shares.map(CpuShares::get),
        quota: asked.cpu_quota_us.map(CpuQuota::signed),
        period: asked.cpu_period_us.map(CpuPeriod::get),
        cpus: list(&asked.cpuset_cpus),
        mems: list(&asked.cpuset_mems),
    };
    (cpu != LinuxCpu::default()).then_some(cpu)
}

fn memory(
    asked: &Resources,
    host: &Host,
    warnings: &mut Vec<String>,
) -> Result<Option<LinuxMemory>> {
    asked.check_memory()?;
    let memory = LinuxMemory {
        limit: asked.memory_limit_bytes.map(MemoryLimit::signed),
        reservation: asked.memory_reservation_bytes.map(MemoryLimit::signed),
        swap: swap(asked, host, warnings).map(MemoryLimit::signed),
        swappiness: swappiness(asked, host)?.map(Swappiness::get),
    };
    Ok((memory != LinuxMemory::default()).then_some(memory))
}

/// The limit of memory plus swap.
fn swap(asked: &Resources, host: &Host, warnings: &mut Vec<String>) -> Option<MemoryLimit> {
    if host.swap_accounting {
        // A memory limit without a swap limit means no swap: the sum equals the memory limit.
        return asked.memory_swap_limit_bytes.or(asked.memory_limit_bytes);
    }
    if let Some(swap) = asked.memory_swap_limit_bytes {
        warnings.push(format!(
            "the swap limit of {swap} bytes is left out: this node does not account swap"
        ));
    }
    None
}

fn swappiness(asked: &Resources, host: &Host) -> Result<Option<Swappiness>> {
    match (asked.memory_swappiness, host.cgroup) {
        (Some(_), CgroupVersion::V2) => Err(Error::unimplemented(
            "resources.memory_swappiness: is not supported: this node runs cgroup v2, which has no such limit",
        )),
        (percent, CgroupVersion::V1 | CgroupVersion::V2) => Ok(percent),
    }
}

/// The limits on pages of sizes that this node can limit; of several for one size, the last.
fn hugepages(
    asked: &[HugepageLimit],
    host: &Host,
    warnings: &mut Vec<String>,
) -> Vec<HugepageLimit> {
    let mut limits: Vec<HugepageLimit> = Vec::new();
    let mut left_out = BTreeSet::new();
    for limit in asked {
        let size = limit.page_size.as_str();
        if host.hugepage_sizes.iter().any(|known| known == size) {
            limits.retain(|other| other.page_size != limit.page_size);
            limits.push(limit.clone());
        } else if limit.limit_bytes > 0 {
            left_out.insert(size);
        }
    }
    if !left_out.is_empty() {
        let count = left_out.len();
        let sizes = first_names(left_out.iter().copied());
        warnings.push(format!(
            "limits on huge pages are left out ({count}), because this node cannot limit pages of these sizes: {sizes}"
        ));
    }
    limits
}

fn spec_limit(limit: HugepageLimit) -> LinuxHugepageLimit {
    let HugepageLimit {
        page_size,
        limit_bytes,
    } = limit;
    LinuxHugepageLimit {
        page_size: page_size.to_string(),
        limit: limit_bytes,
    }
}

fn unified(asked: &Resources, host: &Host) -> Result<std::collections::BTreeMap<String, String>> {
    for (file, value) in &asked.unified {
        if value.contains('\0') {
            return Err(invalid(
                "unified",
                format!("the value of {file} has a NUL byte"),
            ));
        }
        if host.cgroup == CgroupVersion::V1 {
            return Err(invalid(
                "unified",
                format!("{file} needs cgroup v2, and this node runs cgroup v1"),
            ));
        }
    }
    Ok(asked
        .unified
        .iter()
        .map(|(file, value)| (file.to_string(), value.clone()))
        .collect())
}

#[cfg(test)]
mod tests;
