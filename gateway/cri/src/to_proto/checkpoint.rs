//! The files in a checkpoint's archive that describe the container, in the format of containerd's archives.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde_json::{Value, json};
use switchyard_core::object::Task;
use switchyard_proto::cri::v1 as cri;

use super::container;
use crate::record::ContainerRecord;

/// The timestamp that means "never".
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The contents of the files that describe a container whose checkpoint is created at `now`, by file name.
pub(crate) fn checkpoint_notes(
    task: &Task,
    record: Option<&ContainerRecord>,
    runtime_type: &str,
    now: SystemTime,
) -> BTreeMap<String, Vec<u8>> {
    let status = container::container_status(task, record);
    let image = container::image(task, record).image;
    let config = json!({
        "id": status.id,
        "name": task.meta.name,
        "rootfsImage": image,
        "rootfsImageRef": status.image_ref,
        "rootfsImageName": image,
        "runtime": runtime_type,
        "createdTime": stamp(task.meta.created_at),
        "checkpointedTime": stamp(now),
        "restoredTime": NEVER,
        "restored": false,
    });
    let short = json!({
        "CreatedAt": status.created_at,
        "StartedAt": status.started_at,
        "FinishedAt": status.finished_at,
        "ExitCode": status.exit_code,
        "Pid": task.state.pid().unwrap_or(0),
        "Reason": status.reason,
        "Message": status.message,
    });
    [
        ("config.dump", config),
        ("status.dump", full(&status)),
        ("status", short),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_string().into_bytes()))
    .into()
}

fn full(status: &cri::ContainerStatus) -> Value {
    json!({
        "id": status.id,
        "metadata": status.metadata.as_ref().map(|of| json!({ "name": of.name, "attempt": of.attempt })),
        "state": status.state,
        "created_at": status.created_at,
        "started_at": status.started_at,
        "image": status.image.as_ref().map(|image| json!({
            "image": image.image,
            "user_specified_image": image.user_specified_image,
        })),
        "image_ref": status.image_ref,
        "image_id": status.image_id,
        "labels": status.labels,
        "annotations": status.annotations,
        "mounts": status.mounts.iter().map(mount).collect::<Vec<_>>(),
        "log_path": status.log_path,
    })
}

fn mount(mount: &cri::Mount) -> Value {
    json!({
        "container_path": mount.container_path,
        "host_path": mount.host_path,
        "readonly": mount.readonly,
    })
}

/// A time in RFC 3339 format.
fn stamp(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map_or_else(|_| NEVER.to_owned(), |time| time.to_string())
}
