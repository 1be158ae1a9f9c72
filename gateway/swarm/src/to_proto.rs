//! Converts what is reported of a task into the status on the wire.

use std::time::SystemTime;

use swarm::task_status::RuntimeStatus;
use switchyard_core::object::Task;
use switchyard_core::spec::Protocol;
use switchyard_core::state::{Exit, ExitCause, TaskState};
use switchyard_proto::docker::swarmkit::v1 as swarm;

use crate::life::{Report, State};
use crate::record::{PortRecord, Record};

/// The status of a task with this report, and its object if it has one.
pub(crate) fn status(report: Report, task: Option<&Task>, now: SystemTime) -> swarm::TaskStatus {
    let Report {
        state,
        message,
        error,
    } = report;
    // Until the start a task has no container for its cluster.
    let task = task.filter(|_| state >= State::Starting);
    let record = task.map(|task| Record::of(&task.meta)).unwrap_or_default();
    let ports: Vec<swarm::PortConfig> = record.ports.iter().map(port).collect();
    swarm::TaskStatus {
        timestamp: Some(now.into()),
        state: state.to_wire().into(),
        message: message.to_owned(),
        err: error,
        runtime_status: task.map(|task| RuntimeStatus::Container(container(task))),
        port_status: (!ports.is_empty()).then_some(swarm::PortStatus { ports }),
        applied_by: String::new(),
        applied_at: None,
    }
}

fn container(task: &Task) -> swarm::ContainerStatus {
    let exit_code = match &task.state {
        TaskState::Exited { exit, .. }
        | TaskState::Removing {
            exit: Some(exit), ..
        } => exit.code,
        TaskState::Removing { exit: None, .. }
        | TaskState::Created
        | TaskState::Starting
        | TaskState::Unattended
        | TaskState::Running { .. }
        | TaskState::Stopping { .. } => 0,
    };
    swarm::ContainerStatus {
        container_id: task.id.to_string(),
        pid: task
            .state
            .pid()
            .and_then(|pid| i32::try_from(pid).ok())
            .unwrap_or_default(),
        exit_code,
    }
}

fn port(record: &PortRecord) -> swarm::PortConfig {
    let protocol = match record.protocol() {
        Protocol::Tcp => swarm::port_config::Protocol::Tcp,
        Protocol::Udp => swarm::port_config::Protocol::Udp,
        Protocol::Sctp => swarm::port_config::Protocol::Sctp,
    };
    swarm::PortConfig {
        name: record.name.clone(),
        protocol: protocol.into(),
        target_port: record.target,
        published_port: record.published,
        publish_mode: swarm::port_config::PublishMode::Host.into(),
    }
}

/// Returns the error of a task that was stopped because it is unhealthy. The words are docker's, which
/// however considers a task with an exit code of 0 complete.
pub(crate) fn unhealthy(exit: Option<&Exit>) -> String {
    let cause = "dockerexec: unhealthy container";
    match exit.map(|exit| exit.code) {
        Some(0) => format!("task: exit (0): {cause}"),
        Some(code) => format!("task: non-zero exit ({code}): {cause}"),
        None => cause.to_owned(),
    }
}

/// Returns the error of a task that has failed by this exit, in docker's words; `None` if it has not failed.
pub(crate) fn failure(exit: &Exit) -> Option<String> {
    let Exit {
        code,
        finished_at: _,
        cause,
    } = exit;
    match cause {
        ExitCause::Exited if *code == 0 => None,
        ExitCause::Exited => Some(format!("task: non-zero exit ({code})")),
        ExitCause::OomKilled => Some(format!(
            "task: non-zero exit ({code}): the kernel killed it because it ran out of memory"
        )),
        ExitCause::StartFailed(why) => Some(format!("starting container failed: {why}")),
        ExitCause::Lost => Some("container lost: its exit was not observed".to_owned()),
    }
}
