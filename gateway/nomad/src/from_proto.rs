//! Converts a Nomad task into a plan: a pure function of the request and the session, so that the same
//! request gives the same plan.
//!
//! A request that is malformed or not allowed on this node is `InvalidArgument`, one that is not supported
//! `Unimplemented`; both name the key in the task's `config`, or the field of the request
//! (`task.mounts[0].host_path`). Where paths really lead is checked afterwards, in [`paths`](crate::paths).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use switchyard_core::id::Owner;
use switchyard_core::spec::{
    CgroupPlacement, DEFAULT_SHM_BYTES, DiskLimit, EnvVar, IpcMode, LimitedPlaces, Meta, Output,
    Project, SandboxNetwork, SandboxPid, SandboxSpec, Stdin, Stdio, TaskSpec, UserRef, UserSpec,
    UtsMode,
};
use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::{absolute, check_variable};
use switchyard_docker_options::names::{check_group, check_user, sysctls};
use switchyard_proto::nomad::drivers::proto as nomad;

use crate::plan::Plan;
use crate::session::Session;
use crate::task_config::TaskOptions;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod any_bytes;
mod devices;
mod image;
mod keys;
mod labels;
mod mounts;
mod names;
mod network;
mod processors;
mod request;
mod resources;
mod security;
mod sibling;

pub(crate) use devices::leases;
use request::TaskRequest;

/// The plan of a task in a session. The caller adds the time and the record. Pure.
///
/// # Errors
/// `InvalidArgument` and `Unimplemented`, naming the key or field.
pub(crate) fn plan(task: &nomad::TaskConfig, session: &Session) -> Result<Plan> {
    let options = TaskOptions::decode(&task.msgpack_driver_config)?;
    let request = TaskRequest::new(task, &options, session)?;
    let network = network::network(&request)?;
    let namespaces = security::namespaces(&request, &network.network)?;
    let mounts = mounts::mounts(&request)?;
    let devices = devices::devices(&request)?;
    let security = security::security(&request)?;
    let meta = meta(&request)?;
    let handler = security::handler(&request)?;
    let keys = keys::keys(&request, &mounts, &devices);
    let warnings = [options.warnings.clone(), network.warnings].concat();
    let sandbox = SandboxSpec {
        meta: meta.clone(),
        handler,
        hostname: namespaces.hostname,
        sysctls: kernel_parameters(&request, &network.network, (namespaces.ipc, namespaces.uts))?,
        extra_hosts: names::extra_hosts(&options.extra_hosts, &network.network)?,
        network: network.network,
        host_ports: network.host_ports,
        ipc: namespaces.ipc,
        uts: namespaces.uts,
        pid: namespaces.sandbox_pid,
        dns: names::dns(&request)?,
        shm_size_bytes: match options.shm_size_bytes {
            0 => DEFAULT_SHM_BYTES,
            bytes => bytes,
        },
        log_dir: PathBuf::new(),
        cgroup: CgroupPlacement::default(),
        privileged: options.privileged,
        annotations: BTreeMap::new(),
        selinux: security.selinux.clone(),
        users: None,
    };
    let image = image::image_request(&request)?;
    let (command, args) = command_line(&options);
    let task = TaskSpec {
        meta,
        image: image.reference.clone(),
        command,
        args,
        cwd: working_directory(&options)?,
        env: environment(task, &network.variables)?,
        unset_env: Vec::new(),
        user: user(&request)?,
        mounts: mounts.mounts,
        devices: devices.nodes,
        cdi_devices: devices.cdi,
        leases: leases(task)?,
        security,
        rlimits: resources::rlimits(&options.ulimit)?,
        throttles: Vec::new(),
        io_weights: Vec::new(),
        net_priority: None,
        disk_limits: disk_limits(&options),
        resources: resources::limits(&request)?,
        compute: resources::compute(&request),
        cgroup: resources::cgroup(&request)?,
        pid: namespaces.pid,
        cgroup_namespace: namespaces.cgroup,
        init: init(&options, namespaces.sandbox_pid)?,
        stdio: stdio(&request)?,
        stop_signal: None,
        annotations: BTreeMap::new(),
    };
    Ok(Plan {
        image,
        sandbox,
        task,
        ports: network.ports,
        confined: mounts.confined,
        keys,
        sibling: sibling::sibling(&request)?,
        warnings,
    })
}

fn meta(request: &TaskRequest<'_>) -> Result<Meta> {
    Ok(Meta {
        owner: Owner::Nomad,
        name: request.task.id.clone(),
        labels: labels::labels(request)?,
        created_at: UNIX_EPOCH,
        record: Vec::new(),
    })
}

/// The kernel parameters of the task's sandbox. Of a network that it joins, those that it does not ask for stay as its
/// sibling has them.
fn kernel_parameters(
    request: &TaskRequest<'_>,
    network: &SandboxNetwork,
    (ipc, uts): (IpcMode, UtsMode),
) -> Result<BTreeMap<String, String>> {
    let asked = &request.options.sysctl;
    let mut parameters = sysctls("sysctl", asked, network, ipc, uts)?;
    if sibling::is_network_of_sibling(&request.options.network_mode) {
        parameters.retain(|name, _| asked.contains_key(name));
    }
    Ok(parameters)
}

/// The command line: an entrypoint replaces the image's entrypoint, a command and its arguments replace the
/// image's command.
fn command_line(options: &TaskOptions) -> (Vec<String>, Vec<String>) {
    let command = Some(&options.command).filter(|command| !command.is_empty());
    (
        options.entrypoint.clone(),
        command.into_iter().chain(&options.args).cloned().collect(),
    )
}

fn working_directory(options: &TaskOptions) -> Result<Option<PathBuf>> {
    match options.work_dir.as_str() {
        "" => Ok(None),
        path => absolute("work_dir", path).map(Some),
    }
}

/// The environment of the task: what the agent gives, and the variables of its ports, which replace the agent's.
/// Errors never contain a value.
fn environment(task: &nomad::TaskConfig, ports: &BTreeMap<String, String>) -> Result<Vec<EnvVar>> {
    task.env
        .iter()
        .filter(|(name, _)| !devices::is_lease(task, name) && !ports.contains_key(*name))
        .chain(ports)
        .map(variable)
        .collect()
}

fn variable((name, value): (&String, &String)) -> Result<EnvVar> {
    check_variable("task.env", name, value)?;
    Ok(EnvVar {
        name: name.clone(),
        value: value.clone().into_bytes(),
    })
}

fn user(request: &TaskRequest<'_>) -> Result<UserSpec> {
    let user = match request.task.user.as_str() {
        "" => None,
        name => {
            check_user("task.user", name)?;
            Some(UserRef::Name(name.to_owned()))
        }
    };
    for (index, group) in request.options.group_add.iter().enumerate() {
        check_group(format_args!("group_add[{index}]"), group)?;
    }
    Ok(UserSpec {
        user,
        named: request.options.group_add.clone(),
        ..UserSpec::default()
    })
}

/// The standard streams. The FIFOs belong to the agent: the runtime gets them as they are.
fn stdio(request: &TaskRequest<'_>) -> Result<Stdio> {
    let options = request.options;
    let task = request.task;
    let nowhere = |path: &str| matches!(path, "" | "/dev/null");
    let unwanted = options.discards_output || request.session.config.disable_log_collection;
    let output = if unwanted || (nowhere(&task.stdout_path) && nowhere(&task.stderr_path)) {
        Output::Discard
    } else {
        Output::Fifos {
            stdout: absolute("task.stdout_path", &task.stdout_path)?,
            stderr: absolute("task.stderr_path", &task.stderr_path)?,
        }
    };
    let stdin = if options.interactive {
        Stdin::Open
    } else {
        Stdin::Closed
    };
    Ok(Stdio {
        stdin,
        tty: options.tty,
        output,
    })
}

fn init(options: &TaskOptions, pid: SandboxPid) -> Result<bool> {
    if options.init && pid == SandboxPid::Host {
        return Err(Error::invalid(
            "init",
            "it is the first of a process namespace; pid_mode is \"host\"",
        ));
    }
    Ok(options.init)
}

fn disk_limits(options: &TaskOptions) -> Vec<DiskLimit> {
    let limit = |bytes| DiskLimit {
        places: LimitedPlaces::These(vec![PathBuf::from("/")]),
        bytes,
        project: Project::New,
        field: "storage_opt.size".to_owned(),
    };
    options.storage_bytes.map(limit).into_iter().collect()
}

#[cfg(test)]
mod tests;
