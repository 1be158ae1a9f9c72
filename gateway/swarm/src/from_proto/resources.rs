//! Limits and reservations of a task.

use std::collections::BTreeMap;

use swarm::generic_resource::Resource;
use switchyard_core::spec::{
    ComputeClaim, CpuPeriod, CpuQuota, EnvVar, MemoryLimit, OomScoreAdj, PidsLimit, Reserved,
    Resources, Rlimit, Swappiness,
};
use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::{check_count, check_variable};
use switchyard_docker_options::ulimits::rlimit;
use switchyard_proto::docker::swarmkit::v1 as swarm;

use super::request::TaskRequest;

/// Thousand-millionths of a processor in one.
const NANO: i128 = 1_000_000_000;

/// Amounts of processors and memory; 0 for none.
struct Amounts {
    nano_cpus: u64,
    memory_bytes: i64,
}

/// The limits of a task.
pub(super) fn limits(asked: &TaskRequest<'_>) -> Result<Resources> {
    let container = asked.container;
    let empty = swarm::ResourceRequirements::default();
    let swarm::ResourceRequirements {
        limits,
        reservations,
        swap_bytes,
        memory_swappiness,
    } = asked.resources.unwrap_or(&empty);
    let limits = amounts("resources.limits", limits.as_ref())?;
    let reserved = amounts("resources.reservations", reservations.as_ref())?;
    let memory = memory(&limits);
    let resources = Resources {
        cpu_quota_us: quota(limits.nano_cpus),
        cpu_period_us: (limits.nano_cpus > 0).then_some(CpuPeriod::DEFAULT),
        memory_limit_bytes: memory,
        memory_swap_limit_bytes: swap(memory, *swap_bytes)?,
        // Docker keeps the reservation of a service from its containers; as a soft limit it is of use.
        memory_reservation_bytes: match (self::memory(&reserved), memory) {
            (Some(reserved), Some(limit)) => Some(reserved.min(limit)),
            (reserved, _) => reserved,
        },
        memory_swappiness: match memory_swappiness {
            None | Some(-1) => None,
            Some(percent) => {
                let swappiness = Swappiness::new(*percent);
                Some(swappiness.map_err(|error| error.in_field("resources.memory_swappiness"))?)
            }
        },
        pids_limit: match container.pids_limit {
            0 => None,
            limit => {
                Some(PidsLimit::new(limit).map_err(|error| error.in_field("container.pidsLimit"))?)
            }
        },
        // Also set if it is 0: a task without a value inherits that of its shim, which the kernel should
        // spare.
        oom_score_adj: Some(
            OomScoreAdj::new(container.oom_score_adj)
                .map_err(|error| error.in_field("container.oom_score_adj"))?,
        ),
        ..Resources::default()
    };
    Ok(resources)
}

/// Returns the compute that the scheduler has reserved for a task.
pub(super) fn compute(asked: &TaskRequest<'_>) -> Result<ComputeClaim> {
    let reservations = asked
        .resources
        .and_then(|resources| resources.reservations.as_ref());
    let Amounts {
        nano_cpus,
        memory_bytes,
    } = amounts("resources.reservations", reservations)?;
    let reserved = Reserved {
        // As much as is offered for the task, so that its reservation always fits.
        cpu_milli: nano_cpus.div_ceil(1_000_000),
        memory_bytes: u64::try_from(memory_bytes).unwrap_or_default(),
    };
    Ok(ComputeClaim {
        reserved,
        exclusive_cpus: false,
    })
}

fn amounts(field: &str, wire: Option<&swarm::Resources>) -> Result<Amounts> {
    // What the scheduler has chosen of the generic ones is in the task.
    let (nano_cpus, memory_bytes) = match wire {
        Some(swarm::Resources {
            nano_cpus,
            memory_bytes,
            generic: _,
        }) => (*nano_cpus, *memory_bytes),
        None => (0, 0),
    };
    let negative = |part: &str, amount: i64| {
        Error::invalid(
            format_args!("{field}.{part}"),
            format!("{amount} is negative"),
        )
    };
    if memory_bytes < 0 {
        return Err(negative("memory_bytes", memory_bytes));
    }
    let nano_cpus = u64::try_from(nano_cpus).map_err(|_| negative("nano_cpus", nano_cpus))?;
    Ok(Amounts {
        nano_cpus,
        memory_bytes,
    })
}

fn quota(nano_cpus: u64) -> Option<CpuQuota> {
    if nano_cpus == 0 {
        return None;
    }
    let us = i128::from(nano_cpus) * i128::from(CpuPeriod::DEFAULT.get()) / NANO;
    Some(CpuQuota::at_least(i64::try_from(us).unwrap_or(i64::MAX)))
}

fn memory(amounts: &Amounts) -> Option<MemoryLimit> {
    MemoryLimit::new(amounts.memory_bytes).ok()
}

/// The limit of memory and swap together. Without one, a task with a memory limit may use as much swap again,
/// as docker has it.
fn swap(memory: Option<MemoryLimit>, swap_bytes: Option<i64>) -> Result<Option<MemoryLimit>> {
    let field = "resources.swap_bytes";
    let limit = memory
        .and_then(MemoryLimit::get)
        .and_then(|bytes| i64::try_from(bytes).ok());
    let sum = |swap: i64| {
        let limit =
            limit.ok_or_else(|| Error::invalid(field, "it needs a limit of memory beside it"))?;
        let sum =
            MemoryLimit::new(limit.saturating_add(swap)).map_err(|error| error.in_field(field))?;
        Ok(Some(sum))
    };
    match swap_bytes {
        None => limit.map_or(Ok(None), sum),
        Some(-1) => Ok(Some(MemoryLimit::UNLIMITED)),
        Some(swap) if swap >= 0 => sum(swap),
        Some(swap) => Err(Error::invalid(
            field,
            format!("{swap} is negative; -1 is for no limit"),
        )),
    }
}

/// Limits of the main process.
pub(super) fn rlimits(wire: &[swarm::container_spec::Ulimit]) -> Result<Vec<Rlimit>> {
    let mut rlimits: Vec<Rlimit> = Vec::new();
    for swarm::container_spec::Ulimit { name, soft, hard } in wire {
        let field = format!("container.ulimits.{name}");
        let number = |limit: i64| match limit {
            -1 => Ok(u64::MAX),
            limit => u64::try_from(limit).map_err(|_| {
                Error::invalid(
                    &field,
                    format!("{limit} is neither a number nor -1 for no limit"),
                )
            }),
        };
        let limit = rlimit(&field, name, number(*soft)?, number(*hard)?)?;
        if rlimits.iter().any(|known| known.name == limit.name) {
            return Err(Error::invalid(field, "it is there twice"));
        }
        rlimits.push(limit);
    }
    Ok(rlimits)
}

/// Makes docker's variables for the generic resources of a task: `DOCKER_RESOURCE_<KIND>=v1,v2`.
pub(super) fn generic_variables(assigned: &[swarm::GenericResource]) -> Result<Vec<EnvVar>> {
    let field = "assigned_generic_resources";
    let mut by_kind: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (index, swarm::GenericResource { resource }) in assigned.iter().enumerate() {
        check_count(field, "resources", index)?;
        let (kind, value) = match resource {
            Some(Resource::NamedResourceSpec(swarm::NamedGenericResource { kind, value })) => {
                (kind, value.clone())
            }
            Some(Resource::DiscreteResourceSpec(swarm::DiscreteGenericResource {
                kind,
                value,
            })) => (kind, value.to_string()),
            None => {
                return Err(Error::invalid(
                    format_args!("{field}[{index}]"),
                    "it is empty",
                ));
            }
        };
        by_kind
            .entry(kind.to_ascii_uppercase())
            .or_default()
            .push(value);
    }
    let variable = |(kind, values): (String, Vec<String>)| {
        let name = format!("DOCKER_RESOURCE_{kind}");
        let value = values.join(",");
        check_variable(field, &name, &value)?;
        Ok(EnvVar {
            name,
            value: value.into_bytes(),
        })
    };
    by_kind.into_iter().map(variable).collect()
}
