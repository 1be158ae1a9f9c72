//! Converts containers.

use std::collections::BTreeMap;
use std::time::SystemTime;

use switchyard_core::object::{ResolvedUser, Task};
use switchyard_core::spec::Meta;
use switchyard_core::state::{Exit, ExitCause, TaskState};
use switchyard_proto::cri::v1 as cri;

use super::time::nanoseconds;
use super::{resources, signal};
use crate::record::ContainerRecord;

/// The fields of a container status that depend on the task's state.
#[derive(Debug, PartialEq)]
struct StatusFields {
    state: cri::ContainerState,
    started_at: i64,
    finished_at: i64,
    exit_code: i32,
    reason: &'static str,
    message: String,
}

/// The state in CRI's terms. A container that is being removed has exited, or has never run. A kubelet starts
/// another attempt beside a created container, but stops an unknown one first: so a start that nobody waits
/// for, whose program may still run for a moment, is unknown.
pub(crate) const fn container_state(state: &TaskState) -> cri::ContainerState {
    match state {
        TaskState::Created | TaskState::Starting | TaskState::Removing { exit: None, .. } => {
            cri::ContainerState::ContainerCreated
        }
        TaskState::Unattended => cri::ContainerState::ContainerUnknown,
        TaskState::Running { .. } | TaskState::Stopping { .. } => {
            cri::ContainerState::ContainerRunning
        }
        TaskState::Exited { .. } | TaskState::Removing { exit: Some(_), .. } => {
            cri::ContainerState::ContainerExited
        }
    }
}

/// A container in a list.
pub(crate) fn container(task: &Task, record: Option<&ContainerRecord>) -> cri::Container {
    cri::Container {
        id: task.id.to_string(),
        pod_sandbox_id: task.sandbox.to_string(),
        metadata: Some(metadata(task, record)),
        image: Some(image(task, record)),
        image_ref: task.details.image_ref.clone(),
        state: container_state(&task.state).into(),
        created_at: nanoseconds(task.meta.created_at),
        labels: task.meta.labels.clone(),
        annotations: annotations(record),
        image_id: task.details.image_id.to_string(),
    }
}

/// A container's full status.
pub(crate) fn container_status(
    task: &Task,
    record: Option<&ContainerRecord>,
) -> cri::ContainerStatus {
    let StatusFields {
        state,
        started_at,
        finished_at,
        exit_code,
        reason,
        message,
    } = status_fields(&task.state);
    let log_path = task
        .details
        .log_path
        .as_ref()
        .map(|path| path.to_string_lossy().into_owned());
    cri::ContainerStatus {
        id: task.id.to_string(),
        metadata: Some(metadata(task, record)),
        state: state.into(),
        created_at: nanoseconds(task.meta.created_at),
        started_at,
        finished_at,
        exit_code,
        image: Some(image(task, record)),
        image_ref: task.details.image_ref.clone(),
        reason: reason.to_owned(),
        message,
        labels: task.meta.labels.clone(),
        annotations: annotations(record),
        mounts: config(record)
            .map(|config| config.mounts.clone())
            .unwrap_or_default(),
        log_path: log_path.unwrap_or_default(),
        resources: Some(cri::ContainerResources {
            linux: Some(resources::limits(&task.details.resources)),
            windows: None,
        }),
        image_id: task.details.image_id.to_string(),
        user: Some(cri::ContainerUser {
            linux: Some(user(&task.details.user)),
        }),
        stop_signal: signal::stop_signal(task.details.stop_signal).into(),
    }
}

fn status_fields(state: &TaskState) -> StatusFields {
    let begun = |started_at| StatusFields {
        state: container_state(state),
        started_at,
        finished_at: 0,
        exit_code: 0,
        reason: "",
        message: String::new(),
    };
    match state {
        TaskState::Created
        | TaskState::Starting
        | TaskState::Unattended
        | TaskState::Removing { exit: None, .. } => begun(0),
        TaskState::Running { started_at, .. } | TaskState::Stopping { started_at, .. } => {
            begun(nanoseconds(*started_at))
        }
        TaskState::Exited { started_at, exit }
        | TaskState::Removing {
            started_at,
            exit: Some(exit),
        } => exited_fields(*started_at, exit),
    }
}

fn exited_fields(started_at: Option<SystemTime>, exit: &Exit) -> StatusFields {
    let (reason, message) = match &exit.cause {
        ExitCause::Exited if exit.code == 0 => ("Completed", String::new()),
        ExitCause::Exited => ("Error", String::new()),
        ExitCause::OomKilled => ("OOMKilled", String::new()),
        ExitCause::StartFailed(why) => ("StartError", why.clone()),
        ExitCause::Lost => (
            "Unknown",
            "it exited while it was not observed; its exit code is unknown".to_owned(),
        ),
    };
    StatusFields {
        state: cri::ContainerState::ContainerExited,
        // CRI requires both times for any exited container, also if it never ran or its start time is
        // unknown.
        started_at: nanoseconds(started_at.unwrap_or(exit.finished_at)),
        finished_at: nanoseconds(exit.finished_at),
        exit_code: exit.code,
        reason,
        message,
    }
}

fn config(record: Option<&ContainerRecord>) -> Option<&cri::ContainerConfig> {
    record.and_then(|record| record.config.as_ref())
}

/// The container's name and attempt; without a record, from the labels that kubelets set.
pub(super) fn metadata(task: &Task, record: Option<&ContainerRecord>) -> cri::ContainerMetadata {
    config(record)
        .and_then(|config| config.metadata.clone())
        .unwrap_or_else(|| labelled_container(&task.meta))
}

/// The container's name from the label that kubelets set; never empty.
pub(crate) fn labelled_container(task: &Meta) -> cri::ContainerMetadata {
    let name = task
        .labels
        .get("io.kubernetes.container.name")
        .unwrap_or(&task.name);
    cri::ContainerMetadata {
        name: name.clone(),
        attempt: 0,
    }
}

/// The annotations of the request; none without a record.
pub(super) fn annotations(record: Option<&ContainerRecord>) -> BTreeMap<String, String> {
    config(record)
        .map(|config| config.annotations.clone())
        .unwrap_or_default()
}

/// The image as the user wrote it; never empty.
pub(super) fn image(task: &Task, record: Option<&ContainerRecord>) -> cri::ImageSpec {
    written_image(
        config(record).and_then(|config| config.image.clone()),
        &task.details.image_ref,
    )
}

/// The image of a request as the user wrote it, or else `image_ref`.
pub(crate) fn written_image(requested: Option<cri::ImageSpec>, image_ref: &str) -> cri::ImageSpec {
    let mut spec = requested.unwrap_or_default();
    if !spec.user_specified_image.is_empty() {
        spec.image.clone_from(&spec.user_specified_image);
    }
    if spec.image.is_empty() {
        image_ref.clone_into(&mut spec.image);
    }
    spec
}

/// The user in numeric form; CRI includes the primary group in the supplementary groups.
fn user(user: &ResolvedUser) -> cri::LinuxContainerUser {
    let ResolvedUser { uid, gid, groups } = user;
    let mut supplemental_groups = vec![i64::from(*gid)];
    supplemental_groups.extend(
        groups
            .iter()
            .filter(|group| *group != gid)
            .map(|group| i64::from(*group)),
    );
    cri::LinuxContainerUser {
        uid: i64::from(*uid),
        gid: i64::from(*gid),
        supplemental_groups,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[track_caller]
    fn check(state: TaskState, expected: (cri::ContainerState, i64, i64, i32, &str)) {
        let StatusFields {
            state: wire,
            started_at,
            finished_at,
            exit_code,
            reason,
            message: _,
        } = status_fields(&state);
        let seconds = |ns: i64| ns / 1_000_000_000;
        assert_eq!(
            (
                wire,
                seconds(started_at),
                seconds(finished_at),
                exit_code,
                reason
            ),
            expected,
            "{state:?}"
        );
    }

    #[test]
    fn times_codes_and_reasons_are_set_only_in_matching_states() {
        use cri::ContainerState as C;
        let exit = |code, cause| Exit {
            code,
            finished_at: at(9),
            cause,
        };
        let exited = |code, cause| TaskState::Exited {
            started_at: Some(at(5)),
            exit: exit(code, cause),
        };
        check(TaskState::Created, (C::ContainerCreated, 0, 0, 0, ""));
        check(TaskState::Starting, (C::ContainerCreated, 0, 0, 0, ""));
        check(TaskState::Unattended, (C::ContainerUnknown, 0, 0, 0, ""));
        check(
            TaskState::Running {
                pid: 1,
                started_at: at(5),
            },
            (C::ContainerRunning, 5, 0, 0, ""),
        );
        check(
            TaskState::Stopping {
                pid: 1,
                started_at: at(5),
            },
            (C::ContainerRunning, 5, 0, 0, ""),
        );
        check(
            exited(0, ExitCause::Exited),
            (C::ContainerExited, 5, 9, 0, "Completed"),
        );
        check(
            exited(3, ExitCause::Exited),
            (C::ContainerExited, 5, 9, 3, "Error"),
        );
        check(
            exited(137, ExitCause::OomKilled),
            (C::ContainerExited, 5, 9, 137, "OOMKilled"),
        );
        check(
            exited(255, ExitCause::Lost),
            (C::ContainerExited, 5, 9, 255, "Unknown"),
        );
        let failed = TaskState::Exited {
            started_at: None,
            exit: Exit::start_failed(at(9), "no such file"),
        };
        check(
            failed.clone(),
            (C::ContainerExited, 9, 9, 128, "StartError"),
        );
        assert_eq!(status_fields(&failed).message, "no such file");
        let removing = TaskState::Removing {
            started_at: Some(at(5)),
            exit: Some(exit(0, ExitCause::Exited)),
        };
        check(removing, (C::ContainerExited, 5, 9, 0, "Completed"));
        check(
            TaskState::Removing {
                started_at: None,
                exit: None,
            },
            (C::ContainerCreated, 0, 0, 0, ""),
        );
    }

    #[test]
    fn primary_group_is_listed_once() {
        let wire = user(&ResolvedUser {
            uid: 1,
            gid: 2,
            groups: vec![3, 2],
        });
        assert_eq!(wire.supplemental_groups, [2, 3]);
    }
}
