//! The additions of v1alpha2, which v1 has no fields for: one function for each.

use std::collections::BTreeMap;
use std::fmt::Display;

use switchyard_core::spec::{
    DiskLimit, IoWeight, MemoryLimit, MissingSource, MountSource, Resources, Rlimit, Swappiness,
    TaskSpec, TaskUpdate, Throttle, Throttled, is_volume_name,
};
use switchyard_core::{Error, Result};
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1alpha2 as old;

use super::quota::disk_limits;
use crate::from_proto::absolute;
use crate::record::{self, ContainerRecord};

/// The block I/O weights that every kernel with weights accepts.
const WEIGHTS: std::ops::RangeInclusive<u16> = 10..=1000;

/// Additions that were requested and are supported.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Additions {
    rlimits: Vec<Rlimit>,
    throttles: Vec<Throttle>,
    io_weights: Vec<IoWeight>,
    memory_reservation: Option<MemoryLimit>,
    memory_swappiness: Option<Swappiness>,
    net_priority: Option<u32>,
    /// Names of volumes, by the index of their mount.
    volumes: BTreeMap<u32, String>,
    /// Names of mounts, by their index: those of volumes, and those that clients give to host paths.
    names: BTreeMap<u32, String>,
    disk_limits: Vec<DiskLimit>,
    /// As requested.
    quota_id: String,
    /// The additions alone, as requested.
    asked: Option<old::LinuxContainerResources>,
}

/// The additions of a new container.
pub(super) fn of_container(config: Option<&old::ContainerConfig>) -> Result<Additions> {
    let Some(config) = config else {
        return Ok(Additions::default());
    };
    let net_priority = net_priority(config.net_priority)?;
    let resources = config
        .linux
        .as_ref()
        .and_then(|linux| linux.resources.as_ref());
    let volumes = named_volumes(&config.mounts)?;
    let names = names(&config.mounts);
    let field = "config.linux.resources";
    let quota_id = config.quota_id.clone();
    let quotas = resources
        .map(|resources| resources.disk_quota.clone())
        .unwrap_or_default();
    let disk_limits = disk_limits(&quotas, field, &quota_id)?;
    // Empty and "0" both mean none.
    let quota_id = if quota_id == "0" {
        String::new()
    } else {
        quota_id
    };
    let rest = of_resources(resources, field)?;
    Ok(Additions {
        net_priority,
        volumes,
        names,
        disk_limits,
        quota_id,
        ..rest
    })
}

/// The additions of an update.
pub(super) fn of_update(resources: Option<&old::LinuxContainerResources>) -> Result<Additions> {
    let additions = of_resources(resources, "linux")?;
    let Additions {
        rlimits,
        io_weights,
        memory_swappiness,
        ..
    } = &additions;
    let fixed = [
        (
            "disk_quota",
            resources.is_some_and(|resources| !resources.disk_quota.is_empty()),
        ),
        ("ulimits", !rlimits.is_empty()),
        ("blkio_weight*", !io_weights.is_empty()),
        ("memory_swappiness", memory_swappiness.is_some()),
    ];
    match fixed.iter().find(|(_, asked)| *asked) {
        None => Ok(additions),
        Some((name, _)) => Err(unsupported(
            format_args!("linux.{name}"),
            "it is set when a container is made, and stays",
        )),
    }
}

/// Refuses additions for a pod as a whole: v1's limits of a pod are stored, not applied.
pub(super) fn of_sandbox(config: Option<&old::PodSandboxConfig>, field: &str) -> Result<()> {
    let Some(linux) = config.and_then(|config| config.linux.as_ref()) else {
        return Ok(());
    };
    for (part, resources) in [
        ("overhead", &linux.overhead),
        ("resources", &linux.resources),
    ] {
        if let Some(name) = resources.as_ref().and_then(first_addition) {
            let field = format!("{field}.linux.{part}.{name}");
            return Err(unsupported(
                field,
                "a pod has no such limit: ask for it in the containers",
            ));
        }
    }
    Ok(())
}

/// The name of the first addition that is requested.
fn first_addition(resources: &old::LinuxContainerResources) -> Option<&'static str> {
    let alone = alone(resources)?;
    let asked = [
        ("disk_quota", !alone.disk_quota.is_empty()),
        ("blkio_weight", alone.blkio_weight != 0),
        ("blkio_weight_device", !alone.blkio_weight_device.is_empty()),
        (
            "blkio_device_read_bps",
            !alone.blkio_device_read_bps.is_empty(),
        ),
        (
            "blkio_device_write_bps",
            !alone.blkio_device_write_bps.is_empty(),
        ),
        (
            "blkio_device_read_IOps",
            !alone.blkio_device_read_i_ops.is_empty(),
        ),
        (
            "blkio_device_write_IOps",
            !alone.blkio_device_write_i_ops.is_empty(),
        ),
        ("kernel_memory", alone.kernel_memory != 0),
        ("memory_reservation", alone.memory_reservation != 0),
        ("memory_swappiness", alone.memory_swappiness.is_some()),
    ];
    Some(
        asked
            .into_iter()
            .find(|(_, asked)| *asked)
            .map_or("ulimits", |(name, _)| name),
    )
}

fn of_resources(
    resources: Option<&old::LinuxContainerResources>,
    field: &str,
) -> Result<Additions> {
    let Some(resources) = resources else {
        return Ok(Additions::default());
    };
    kernel_memory(resources.kernel_memory, field)?;
    Ok(Additions {
        rlimits: ulimits(&resources.ulimits, field)?,
        throttles: throttles(resources, field)?,
        io_weights: weights(resources, field)?,
        memory_swappiness: memory_swappiness(resources.memory_swappiness, field)?,
        memory_reservation: memory_reservation(resources.memory_reservation, field)?,
        net_priority: None,
        volumes: BTreeMap::new(),
        names: BTreeMap::new(),
        disk_limits: Vec::new(),
        quota_id: String::new(),
        asked: alone(resources),
    })
}

/// The additions without the fields of v1; `None` if there are none.
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
        unified: BTreeMap::new(),
        memory_swap_limit_in_bytes: 0,
        ..resources.clone()
    };
    (alone != old::LinuxContainerResources::default()).then_some(alone)
}

/// The error for an unsupported addition.
fn unsupported(field: impl Display, why: &str) -> Error {
    Error::unimplemented(format!("{field}: is not supported: {why}"))
}

/// The names of mounts, by their index.
fn names(mounts: &[old::Mount]) -> BTreeMap<u32, String> {
    let named = (0..)
        .zip(mounts)
        .filter(|(_, mount)| !mount.name.is_empty());
    named
        .map(|(index, mount)| (index, mount.name.clone()))
        .collect()
}

/// The names of volumes, by the index of their mount. A mount with a host path is that of the path, also if
/// it has a name: Pouch returns both for its volumes, and clients send both back.
fn named_volumes(mounts: &[old::Mount]) -> Result<BTreeMap<u32, String>> {
    let mut volumes = BTreeMap::new();
    let named = |mount: &old::Mount| !mount.name.is_empty() && mount.host_path.is_empty();
    for (index, mount) in (0..).zip(mounts).filter(|(_, mount)| named(mount)) {
        let field = format!("config.mounts[{index}]");
        check_volume(&mount.name, format_args!("{field}.name"))?;
        if mount.propagation() != cri::MountPropagation::PropagationPrivate {
            let field = format_args!("{field}.propagation");
            return Err(Error::invalid(field, "a volume is PROPAGATION_PRIVATE"));
        }
        volumes.insert(index, mount.name.clone());
    }
    Ok(volumes)
}

/// Refuses an invalid name of a volume.
pub(super) fn check_volume(name: &str, field: impl Display) -> Result<()> {
    if is_volume_name(name) {
        return Ok(());
    }
    let why = "is not made of letters, digits, \"_\", \".\" and \"-\", beginning with a letter or a digit, at most 128";
    Err(Error::invalid(field, format!("{name:?} {why}")))
}

/// The priority of network traffic; the backend refuses it in pods with their own network, and where the
/// kernel has no support.
fn net_priority(priority: i64) -> Result<Option<u32>> {
    match u32::try_from(priority) {
        Ok(0) => Ok(None),
        Ok(priority) => Ok(Some(priority)),
        Err(_) => Err(Error::invalid(
            "config.net_priority",
            format!("{priority} is not between 0 and {}", u32::MAX),
        )),
    }
}

/// Block I/O weights; the backend refuses them where the kernel has no support.
fn weights(resources: &old::LinuxContainerResources, field: &str) -> Result<Vec<IoWeight>> {
    let share = |at: &str, weight: u32| {
        u16::try_from(weight)
            .ok()
            .filter(|weight| WEIGHTS.contains(weight))
            .ok_or_else(|| {
                let field = format_args!("{field}.{at}");
                Error::invalid(
                    field,
                    format!(
                        "{weight} is not between {} and {}",
                        WEIGHTS.start(),
                        WEIGHTS.end()
                    ),
                )
            })
    };
    let mut weights = Vec::new();
    if resources.blkio_weight != 0 {
        weights.push(IoWeight {
            device: None,
            weight: share("blkio_weight", resources.blkio_weight)?,
        });
    }
    for (index, old::WeightDevice { path, weight }) in
        resources.blkio_weight_device.iter().enumerate()
    {
        let at = format!("blkio_weight_device[{index}]");
        let device = Some(absolute(format_args!("{field}.{at}.path"), path)?);
        weights.push(IoWeight {
            device,
            weight: share(&format!("{at}.Weight"), *weight)?,
        });
    }
    Ok(weights)
}

/// Throttles of block devices.
fn throttles(resources: &old::LinuxContainerResources, field: &str) -> Result<Vec<Throttle>> {
    let lists = [
        (
            "blkio_device_read_bps",
            Throttled::ReadBytes,
            &resources.blkio_device_read_bps,
        ),
        (
            "blkio_device_write_bps",
            Throttled::WriteBytes,
            &resources.blkio_device_write_bps,
        ),
        (
            "blkio_device_read_IOps",
            Throttled::Reads,
            &resources.blkio_device_read_i_ops,
        ),
        (
            "blkio_device_write_IOps",
            Throttled::Writes,
            &resources.blkio_device_write_i_ops,
        ),
    ];
    let mut all = Vec::new();
    for (name, what, list) in lists {
        for (index, old::ThrottleDevice { path, rate }) in list.iter().enumerate() {
            let field = format!("{field}.{name}[{index}]");
            let device = absolute(format_args!("{field}.path"), path)?;
            if *rate == 0 {
                return Err(Error::invalid(format_args!("{field}.rate"), "it is 0"));
            }
            all.push(Throttle {
                device,
                what,
                rate: *rate,
            });
        }
    }
    Ok(all)
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

/// The swappiness; the backend refuses it on nodes with only cgroup v2.
fn memory_swappiness(percent: Option<cri::Int64Value>, field: &str) -> Result<Option<Swappiness>> {
    let Some(cri::Int64Value { value }) = percent else {
        return Ok(None);
    };
    let field = format_args!("{field}.memory_swappiness");
    Swappiness::new(value)
        .map(Some)
        .map_err(|error| error.in_field(field))
}

/// A soft memory limit in bytes; zero is not set, and there is no number for no limit.
fn memory_reservation(bytes: i64, field: &str) -> Result<Option<MemoryLimit>> {
    let field = format_args!("{field}.memory_reservation");
    match bytes {
        0 => Ok(None),
        ..0 => Err(Error::invalid(field, format!("{bytes} is negative"))),
        1.. => MemoryLimit::new(bytes)
            .map(Some)
            .map_err(|error| error.in_field(field)),
    }
}

/// Resource limits of processes; -1 is unlimited.
fn ulimits(limits: &[old::Ulimit], field: &str) -> Result<Vec<Rlimit>> {
    limits
        .iter()
        .enumerate()
        .map(|(index, limit)| ulimit(limit, &format!("{field}.ulimits[{index}]")))
        .collect()
}

fn ulimit(limit: &old::Ulimit, field: &str) -> Result<Rlimit> {
    let old::Ulimit { name, hard, soft } = limit;
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
    let name = format!(
        "RLIMIT_{}",
        name.to_ascii_uppercase().trim_start_matches("RLIMIT_")
    );
    let soft = number("soft", *soft)?;
    let hard = number("hard", *hard)?;
    if soft > hard {
        return Err(Error::invalid(
            format_args!("{field}.soft"),
            format!("{soft} is over the hard limit of {hard}"),
        ));
    }
    Ok(Rlimit { name, soft, hard })
}

// === impl Additions ===

impl Additions {
    /// Adds them to the spec, and that every host path must exist. They become a part of the record, so that
    /// a retry is recognized by them.
    pub(super) fn apply(self, spec: &mut TaskSpec) {
        self.limit(&mut spec.resources);
        let Self {
            rlimits,
            throttles,
            io_weights,
            memory_reservation: _,
            memory_swappiness: _,
            net_priority,
            volumes: _,
            names,
            disk_limits,
            quota_id,
            asked,
        } = self;
        spec.rlimits = rlimits;
        spec.throttles = throttles;
        spec.io_weights = io_weights;
        spec.net_priority = net_priority;
        spec.disk_limits = disk_limits;
        for mount in &mut spec.mounts {
            if let MountSource::Host { missing, .. } = &mut mount.source {
                *missing = MissingSource::Fail;
            }
        }
        if asked.is_some() || !names.is_empty() || net_priority.is_some() {
            let net_priority = net_priority.unwrap_or(0);
            let more = ContainerRecord {
                config: None,
                additions: asked,
                names,
                net_priority,
                quota_id,
            };
            record::append(&mut spec.meta.record, &more);
        }
    }

    /// Names of volumes, by the index of their mount.
    pub(super) const fn volumes(&self) -> &BTreeMap<u32, String> {
        &self.volumes
    }

    /// Adds those that can be changed to an update.
    pub(super) fn change(self, update: &mut TaskUpdate) {
        self.limit(&mut update.resources);
        update.throttles = self.throttles;
    }

    /// Adds those that are limits of the cgroup.
    fn limit(&self, resources: &mut Resources) {
        resources.memory_reservation_bytes = self.memory_reservation;
        resources.memory_swappiness = self.memory_swappiness;
    }
}

#[cfg(test)]
mod tests;
