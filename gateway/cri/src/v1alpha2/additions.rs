//! What a client of v1alpha2 asks for that v1 has no word for: one function for each addition.

use std::fmt::Display;

use switchyard_core::spec::{MissingSource, MountSource, Resources, Rlimit, TaskSpec};
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1alpha2 as old;

use crate::record::{self, ContainerRecord};

/// Additions that were asked for and can be done.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Additions {
    rlimits: Vec<Rlimit>,
    memory_reservation: Option<i64>,
    /// The additions alone, as they were asked for.
    asked: Option<old::LinuxContainerResources>,
}

/// The additions of a new container.
pub(super) fn of_container(config: Option<&old::ContainerConfig>) -> Result<Additions> {
    let Some(config) = config else { return Ok(Additions::default()) };
    for (index, mount) in config.mounts.iter().enumerate() {
        named_volume(mount, index)?;
    }
    net_priority(config.net_priority)?;
    quota_id(&config.quota_id)?;
    let resources = config.linux.as_ref().and_then(|linux| linux.resources.as_ref());
    of_resources(resources, "config.linux.resources")
}

/// The additions of a change.
pub(super) fn of_update(resources: Option<&old::LinuxContainerResources>) -> Result<Additions> {
    if resources.is_some_and(|resources| !resources.ulimits.is_empty()) {
        return Err(unsupported("linux.ulimits", "limits of processes are set when a container is made"));
    }
    of_resources(resources, "linux")
}

fn of_resources(resources: Option<&old::LinuxContainerResources>, field: &str) -> Result<Additions> {
    let Some(resources) = resources else { return Ok(Additions::default()) };
    disk_quota(resources, field)?;
    block_io(resources, field)?;
    kernel_memory(resources.kernel_memory, field)?;
    if let Some(swappiness) = &resources.memory_swappiness {
        memory_swappiness(swappiness.value, field)?;
    }
    Ok(Additions {
        rlimits: ulimits(&resources.ulimits, field)?,
        memory_reservation: memory_reservation(resources.memory_reservation, field)?,
        asked: alone(resources),
    })
}

/// The additions without what v1 has as well; `None` if there are none.
fn alone(resources: &old::LinuxContainerResources) -> Option<old::LinuxContainerResources> {
    let alone = old::LinuxContainerResources {
        cpu_period: 0,
        cpu_quota: 0,
        cpu_shares: 0,
        memory_limit_in_bytes: 0,
        oom_score_adj: 0,
        cpuset_cpus: String::new(),
        cpuset_mems: String::new(),
        hugepage_limits: Vec::new(),
        unified: std::collections::BTreeMap::new(),
        memory_swap_limit_in_bytes: 0,
        ..resources.clone()
    };
    (alone != old::LinuxContainerResources::default()).then_some(alone)
}

/// The refusal of an addition that this runtime does not do.
fn unsupported(field: impl Display, why: &str) -> Error {
    Error::unimplemented(format!("{field}: is not supported: {why}"))
}

fn named_volume(mount: &old::Mount, index: usize) -> Result<()> {
    if mount.name.is_empty() {
        return Ok(());
    }
    Err(unsupported(
        format_args!("config.mounts[{index}].name"),
        "this runtime keeps no volumes: give a directory of the host as host_path",
    ))
}

fn net_priority(priority: i64) -> Result<()> {
    match priority {
        0 => Ok(()),
        _ => Err(unsupported("config.net_priority", "the network plugin shapes traffic")),
    }
}

fn quota_id(id: &str) -> Result<()> {
    match id {
        "" | "0" => Ok(()),
        _ => Err(unsupported("config.quota_id", "this runtime sets no disk quotas")),
    }
}

fn disk_quota(resources: &old::LinuxContainerResources, field: &str) -> Result<()> {
    if resources.disk_quota.is_empty() {
        return Ok(());
    }
    Err(unsupported(format_args!("{field}.disk_quota"), "this runtime sets no disk quotas"))
}

fn block_io(resources: &old::LinuxContainerResources, field: &str) -> Result<()> {
    let asked = [
        ("blkio_weight", resources.blkio_weight != 0),
        ("blkio_weight_device", !resources.blkio_weight_device.is_empty()),
        ("blkio_device_read_bps", !resources.blkio_device_read_bps.is_empty()),
        ("blkio_device_write_bps", !resources.blkio_device_write_bps.is_empty()),
        ("blkio_device_read_IOps", !resources.blkio_device_read_i_ops.is_empty()),
        ("blkio_device_write_IOps", !resources.blkio_device_write_i_ops.is_empty()),
    ];
    match asked.iter().find(|(_, asked)| *asked) {
        None => Ok(()),
        Some((name, _)) => {
            Err(unsupported(format_args!("{field}.{name}"), "this runtime does not limit block devices"))
        }
    }
}

fn kernel_memory(bytes: i64, field: &str) -> Result<()> {
    match bytes {
        0 => Ok(()),
        _ => Err(unsupported(
            format_args!("{field}.kernel_memory"),
            "kernels count it as a part of memory_limit_in_bytes",
        )),
    }
}

fn memory_swappiness(percent: i64, field: &str) -> Result<()> {
    let field = format!("{field}.memory_swappiness");
    if !(0..=100).contains(&percent) {
        return Err(Error::invalid(field, format!("{percent} is not between 0 and 100")));
    }
    Err(unsupported(field, "only cgroup v1 has it: use memory_swap_limit_in_bytes"))
}

/// A soft limit on memory in bytes; zero is none asked for.
fn memory_reservation(bytes: i64, field: &str) -> Result<Option<i64>> {
    match bytes {
        0 => Ok(None),
        bytes if bytes > 0 => Ok(Some(bytes)),
        bytes => {
            Err(Error::invalid(format_args!("{field}.memory_reservation"), format!("{bytes} is negative")))
        }
    }
}

/// Limits of processes; -1 is for no limit.
fn ulimits(limits: &[old::Ulimit], field: &str) -> Result<Vec<Rlimit>> {
    let limit = |(index, limit): (usize, &old::Ulimit)| {
        let old::Ulimit { name, hard, soft } = limit;
        let field = format!("{field}.ulimits[{index}]");
        if name.is_empty() {
            return Err(Error::invalid(format_args!("{field}.name"), "it is empty"));
        }
        let number = |part: &str, number: i64| match number {
            -1 => Ok(u64::MAX),
            number => u64::try_from(number).map_err(|_| {
                Error::invalid(
                    format_args!("{field}.{part}"),
                    format!("{number} is negative; -1 is for no limit"),
                )
            }),
        };
        let name = format!("RLIMIT_{}", name.to_ascii_uppercase().trim_start_matches("RLIMIT_"));
        let (soft, hard) = (number("soft", *soft)?, number("hard", *hard)?);
        if soft > hard {
            return Err(Error::invalid(
                format_args!("{field}.soft"),
                format!("{soft} is over the hard limit of {hard}"),
            ));
        }
        Ok(Rlimit { name, soft, hard })
    };
    limits.iter().enumerate().map(limit).collect()
}

// === impl Additions ===

impl Additions {
    /// Asks for them, and that every host path is there. They become a part of the record, so that a retry is known by them.
    pub(super) fn apply(self, spec: &mut TaskSpec) {
        self.limit(&mut spec.resources);
        let Self { rlimits, memory_reservation: _, asked } = self;
        spec.rlimits = rlimits;
        for mount in &mut spec.mounts {
            if let MountSource::Host { missing, .. } = &mut mount.source {
                *missing = MissingSource::Fail;
            }
        }
        if asked.is_some() {
            record::append(&mut spec.meta.record, &ContainerRecord { config: None, additions: asked });
        }
    }

    /// Asks for those that are limits of the cgroup.
    pub(super) fn limit(&self, resources: &mut Resources) {
        resources.memory_reservation_bytes = self.memory_reservation;
    }
}

#[cfg(test)]
mod tests;
