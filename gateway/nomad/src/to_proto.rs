//! Conversion of the gateway's types to Nomad's. Every message is complete: agents panic if a field is
//! missing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::SystemTime;

use prost::Message;
use prost_types::Timestamp;
use switchyard_core::backend::Unreadable;
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::state::{Exit, ExitCause, TaskState};
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_proto::nomad::drivers::proto::network_isolation_spec::NetworkIsolationMode;

use crate::identity::{Record, task_name};

mod stats;

pub(crate) use stats::{Sample, stats};

/// The version of the state in handles.
const HANDLE_VERSION: i32 = 1;

/// Go's zero time: agents recognise it, and panic if the field is missing.
const NO_TIME: Timestamp = Timestamp {
    seconds: -62_135_596_800,
    nanos: 0,
};

/// The driver state in a handle; only for people, as a task is found by its id.
#[derive(Clone, PartialEq, Message)]
struct DriverState {
    #[prost(string, tag = "1")]
    container: String,
    #[prost(string, tag = "2")]
    sandbox: String,
}

/// The answer to a start.
pub(crate) fn started(
    config: nomad::TaskConfig,
    sandbox: Option<&Sandbox>,
    task: &Task,
) -> nomad::StartTaskResponse {
    let state = DriverState {
        container: task.id.to_string(),
        sandbox: task.sandbox.to_string(),
    };
    nomad::StartTaskResponse {
        result: nomad::start_task_response::Result::Success.into(),
        driver_error_msg: String::new(),
        handle: Some(nomad::TaskHandle {
            version: HANDLE_VERSION,
            config: Some(config),
            state: nomad::TaskState::Running.into(),
            driver_state: state.encode_to_vec(),
        }),
        network_override: network(&Record::of(&task.meta), sandbox),
    }
}

/// The answer to an inspection.
pub(crate) fn inspected(sandbox: Option<&Sandbox>, task: &Task) -> nomad::InspectTaskResponse {
    let record = Record::of(&task.meta);
    let exit = match &task.state {
        TaskState::Exited { exit, .. }
        | TaskState::Removing {
            exit: Some(exit), ..
        } => Some(exit),
        TaskState::Created
        | TaskState::Starting
        | TaskState::Unattended
        | TaskState::Running { .. }
        | TaskState::Stopping { .. }
        | TaskState::Removing { exit: None, .. } => None,
    };
    let time = |time: Option<SystemTime>| Some(time.map_or(NO_TIME, Timestamp::from));
    nomad::InspectTaskResponse {
        network_override: network(&record, sandbox),
        task: Some(nomad::TaskStatus {
            id: task.meta.name.clone(),
            name: record.task_name,
            state: state(&task.state).into(),
            started_at: time(task.state.started_at()),
            completed_at: time(exit.map(|exit| exit.finished_at)),
            result: Some(exit.map(result).unwrap_or_default()),
        }),
        driver: Some(nomad::TaskDriverStatus {
            attributes: attributes(task),
        }),
    }
}

/// The answer to an inspection of a task that cannot be read: it runs, with what is known of it.
pub(crate) fn inspected_unreadable(held: &Unreadable) -> nomad::InspectTaskResponse {
    let mut attributes = BTreeMap::from([
        ("container_id".to_owned(), held.id.clone()),
        ("state".to_owned(), "unreadable".to_owned()),
    ]);
    if let Some(sandbox) = held.sandbox {
        attributes.insert("sandbox_id".to_owned(), sandbox.to_string());
    }
    nomad::InspectTaskResponse {
        network_override: None,
        task: Some(nomad::TaskStatus {
            id: held.name.clone(),
            name: task_name(&held.name).to_owned(),
            state: nomad::TaskState::Running.into(),
            started_at: Some(NO_TIME),
            completed_at: Some(NO_TIME),
            result: Some(nomad::ExitResult::default()),
        }),
        driver: Some(nomad::TaskDriverStatus { attributes }),
    }
}

fn attributes(task: &Task) -> BTreeMap<String, String> {
    let mut attributes = BTreeMap::from([
        ("container_id".to_owned(), task.id.to_string()),
        ("sandbox_id".to_owned(), task.sandbox.to_string()),
        ("image".to_owned(), task.details.image_ref.clone()),
        ("state".to_owned(), task.state.as_str().to_owned()),
    ]);
    if let Some(pid) = task.state.pid() {
        attributes.insert("pid".to_owned(), pid.to_string());
    }
    attributes
}

/// The state of a task as one of Nomad's three states.
const fn state(state: &TaskState) -> nomad::TaskState {
    match state {
        TaskState::Running { .. } | TaskState::Stopping { .. } => nomad::TaskState::Running,
        TaskState::Exited { .. } | TaskState::Removing { .. } => nomad::TaskState::Exited,
        TaskState::Created | TaskState::Starting | TaskState::Unattended => {
            nomad::TaskState::Unknown
        }
    }
}

/// The exit of a task. A death by a signal is reported as an exit code, as by Docker.
pub(crate) fn ended(exit: &Exit) -> nomad::WaitTaskResponse {
    let err = match &exit.cause {
        ExitCause::Exited => String::new(),
        ExitCause::OomKilled => "OOM Killed".to_owned(),
        ExitCause::StartFailed(why) => why.clone(),
        ExitCause::Lost => {
            "the exit of the task was not observed: its exit code is not known".to_owned()
        }
    };
    nomad::WaitTaskResponse {
        result: Some(result(exit)),
        err,
    }
}

fn result(exit: &Exit) -> nomad::ExitResult {
    nomad::ExitResult {
        exit_code: exit.code,
        signal: 0,
        oom_killed: exit.cause == ExitCause::OomKilled,
    }
}

/// The exit code of a command.
pub(crate) const fn exit_code(code: i32) -> nomad::ExitResult {
    nomad::ExitResult {
        exit_code: code,
        signal: 0,
        oom_killed: false,
    }
}

/// The network information for an agent: only for a network that belongs to the task alone, not for one that
/// the agent made, nor the host's. The contract has one address, so it is the one of the bridge's first range.
fn network(record: &Record, sandbox: Option<&Sandbox>) -> Option<nomad::NetworkOverride> {
    let addresses = &sandbox.filter(|_| record.own_network)?.details.ips;
    let address = addresses.first().map(IpAddr::to_string)?;
    // Services of a task use the node's address, on which its ports are published.
    Some(nomad::NetworkOverride {
        port_map: record.ports.clone(),
        addr: address,
        auto_advertise: false,
    })
}

/// The network of an allocation. The label makes the agent set the host name for its tasks.
pub(crate) fn isolation(sandbox: &Sandbox) -> nomad::NetworkIsolationSpec {
    let hostname = Record::of(&sandbox.meta).hostname;
    let mut labels = BTreeMap::from([("switchyard_sandbox_id".to_owned(), sandbox.id.to_string())]);
    if !hostname.is_empty() {
        labels.insert("docker_sandbox_hostname".to_owned(), hostname);
    }
    nomad::NetworkIsolationSpec {
        mode: NetworkIsolationMode::Group.into(),
        path: sandbox
            .details
            .netns
            .as_deref()
            .map(|path| path.display().to_string())
            .unwrap_or_default(),
        labels,
        hosts_config: None,
    }
}

#[cfg(test)]
mod tests;
