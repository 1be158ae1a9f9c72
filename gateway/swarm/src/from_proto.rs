//! Converts a task of a service into a plan: a pure function of the task, the node and the task's secrets and
//! configs, so that the same task gives the same plan.
//!
//! A task that is malformed is `InvalidArgument`, one that asks for what is not there `Unimplemented`; both
//! name the field of the service as SwarmKit spells it (`container.mounts[0].source`).

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use switchyard_core::id::Owner;
use switchyard_core::spec::{
    CgroupPlacement, DEFAULT_SHM_BYTES, EnvVar, IpcMode, Meta, Mount, Output, PidMode, SandboxPid,
    SandboxSpec, Security, Signal, Stdin, Stdio, TaskSpec, UserRef, UserSpec, UtsMode,
};
use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::{absolute, check_variable};
use switchyard_docker_options::names::{check_group, check_hostname, check_user, sysctls};
use switchyard_proto::docker::swarmkit::v1 as swarm;

use crate::dependencies::Dependencies;
use crate::plan::{PlanContext, STOP_GRACE, TaskPlan};

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod any_bytes;
mod devices;
mod duration;
mod file_mode;
mod files;
mod health;
mod image;
mod labels;
mod log;
mod mounts;
mod names;
mod network;
mod request;
mod resources;
mod security;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use devices::named_devices;
pub(crate) use network::{claims, mappings};
pub(crate) use request::{TaskIdentity, check_id, identity};

use request::TaskRequest;
use words::{check_length, words};

/// The plan of a task. The caller adds the time, the record and the ports that it chooses. Pure.
///
/// # Errors
/// `InvalidArgument` and `Unimplemented`, naming the field; `NotFound` for a secret or config that the node
/// does not have.
pub(crate) fn plan(
    task: &swarm::Task,
    node: &PlanContext,
    dependencies: &Dependencies,
) -> Result<TaskPlan> {
    let asked = TaskRequest::new(task, node)?;
    let container = asked.container;
    let network = network::network(&asked)?;
    let security = security::security(container)?;
    let log = log::log(&asked)?;
    let mut mounts = mounts::mounts(&asked)?;
    let files = files::files(&asked, dependencies, &mut mounts)?;
    let hostname = hostname(&asked, &network.spec)?;
    let uts = if hostname.is_own {
        UtsMode::Own
    } else {
        UtsMode::Network
    };
    let meta = meta(&asked)?;
    let image = image::image(container)?;
    let sandbox = SandboxSpec {
        meta: meta.clone(),
        handler: String::new(),
        hostname: hostname.name,
        sysctls: sysctls(
            "container.sysctls",
            &container.sysctls,
            &network.spec,
            IpcMode::Shared,
            uts,
        )?,
        network: network.spec,
        host_ports: network.host_ports,
        uts,
        ipc: IpcMode::Shared,
        pid: SandboxPid::PerTask,
        dns: names::dns(container.dns_config.as_ref())?,
        extra_hosts: names::extra_hosts(&container.hosts)?,
        shm_size_bytes: DEFAULT_SHM_BYTES,
        log_dir: log.dir,
        cgroup: CgroupPlacement::default(),
        privileged: false,
        annotations: BTreeMap::new(),
        selinux: security.selinux.clone(),
        users: None,
    };
    let task_spec = task_spec(
        &asked,
        meta,
        &image.reference,
        mounts.mounts,
        security,
        log.output,
    )?;
    Ok(TaskPlan {
        image,
        sandbox,
        task: task_spec,
        files,
        ports: network.ports,
        devices: devices::assigned(task)?,
        anonymous_volumes: mounts.anonymous,
        health: health::health(container.healthcheck.as_ref())?,
        stop_grace: duration::optional(
            "container.stop_grace_period",
            container.stop_grace_period.as_ref(),
        )?
        .unwrap_or(STOP_GRACE),
        rotation: log.rotation,
    })
}

fn task_spec(
    asked: &TaskRequest<'_>,
    meta: Meta,
    image: &str,
    mounts: Vec<Mount>,
    security: Security,
    output: Output,
) -> Result<TaskSpec> {
    let container = asked.container;
    let stdin = if container.open_stdin {
        Stdin::Open
    } else {
        Stdin::Closed
    };
    let environment = environment(asked)?;
    Ok(TaskSpec {
        meta,
        image: image.to_owned(),
        command: words("container.command", &container.command)?,
        args: words("container.args", &container.args)?,
        cwd: working_directory(&container.dir)?,
        env: environment.set,
        unset_env: environment.unset,
        user: user(container)?,
        mounts,
        devices: Vec::new(),
        cdi_devices: devices::by_label(asked)?,
        leases: Vec::new(),
        security,
        rlimits: resources::rlimits(&container.ulimits)?,
        throttles: Vec::new(),
        io_weights: Vec::new(),
        net_priority: None,
        disk_limits: Vec::new(),
        resources: resources::limits(asked)?,
        compute: resources::compute(asked)?,
        cgroup: None,
        pid: PidMode::Private,
        cgroup_namespace: None,
        init: container.init.unwrap_or_default(),
        stdio: Stdio {
            stdin,
            tty: container.tty,
            output,
        },
        stop_signal: stop_signal(&container.stop_signal)?,
        annotations: BTreeMap::new(),
    })
}

fn meta(asked: &TaskRequest<'_>) -> Result<Meta> {
    Ok(Meta {
        owner: Owner::Swarm,
        name: asked.identity.task_id.clone(),
        labels: labels::labels(asked)?,
        created_at: UNIX_EPOCH,
        record: Vec::new(),
    })
}

struct Hostname {
    name: String,
    /// True if the name differs from that of the task's network namespace.
    is_own: bool,
}

/// The host name: the service's, or one made of the id of the task as docker makes it of the container's.
fn hostname(
    asked: &TaskRequest<'_>,
    network: &switchyard_core::spec::SandboxNetwork,
) -> Result<Hostname> {
    let field = "container.hostname";
    let own = asked.expand(field, &asked.container.hostname)?;
    check_hostname(field, &own)?;
    let is_host = *network == switchyard_core::spec::SandboxNetwork::Host;
    Ok(match (own.is_empty(), is_host) {
        (true, true) => Hostname {
            name: String::new(),
            is_own: false,
        },
        (true, false) => Hostname {
            name: asked.identity.task_id.chars().take(12).collect(),
            is_own: false,
        },
        (false, is_own) => Hostname { name: own, is_own },
    })
}

fn working_directory(dir: &str) -> Result<Option<PathBuf>> {
    match dir {
        "" => Ok(None),
        path => absolute("container.dir", path).map(Some),
    }
}

/// The environment variables that a service sets and removes.
struct Environment {
    set: Vec<EnvVar>,
    unset: Vec<String>,
}

/// The environment of the task. As with docker, the last entry of a name holds, and a name without a value removes the
/// image's variable: a stack has such a name for each variable that the client's own environment was to give and did
/// not. Errors never contain a value.
fn environment(asked: &TaskRequest<'_>) -> Result<Environment> {
    let field = "container.env";
    check_length(field, asked.container.env.len())?;
    let mut environment = Environment {
        set: Vec::new(),
        unset: Vec::new(),
    };
    let mut seen = HashSet::new();
    for (index, variable) in asked.container.env.iter().enumerate().rev() {
        let (name, value) = match variable.split_once('=') {
            Some((name, value)) => (
                name,
                Some(asked.expand(&format!("{field}[{index}]"), value)?),
            ),
            None => (variable.as_str(), None),
        };
        check_variable(field, name, value.as_deref().unwrap_or_default())?;
        match value {
            _ if !seen.insert(name) => {}
            Some(value) => environment.set.push(EnvVar {
                name: name.to_owned(),
                value: value.into_bytes(),
            }),
            None => environment.unset.push(name.to_owned()),
        }
    }
    environment.set.reverse();
    environment.set.extend(resources::generic_variables(
        &asked.task.assigned_generic_resources,
    )?);
    Ok(environment)
}

fn user(container: &swarm::ContainerSpec) -> Result<UserSpec> {
    let user = match container.user.as_str() {
        "" => None,
        name => {
            check_user("container.user", name)?;
            Some(UserRef::Name(name.to_owned()))
        }
    };
    check_length("container.groups", container.groups.len())?;
    for (index, group) in container.groups.iter().enumerate() {
        check_group(format_args!("container.groups[{index}]"), group)?;
    }
    Ok(UserSpec {
        user,
        named: container.groups.clone(),
        ..UserSpec::default()
    })
}

fn stop_signal(name: &str) -> Result<Option<Signal>> {
    if name.is_empty() {
        return Ok(None);
    }
    match Signal::parse(name) {
        Some(signal) => Ok(Some(signal)),
        None => Err(Error::invalid(
            "container.stop_signal",
            format!("{name:?} is no signal"),
        )),
    }
}
