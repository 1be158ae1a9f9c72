//! The fields of v1alpha2 answers that v1 does not have.

use std::collections::BTreeMap;
use std::path::PathBuf;

use switchyard_core::Result;
use switchyard_core::backend::Inspection;
use switchyard_core::image::Image;
use switchyard_core::object::Task;
use switchyard_core::spec::{MemoryLimit, Throttle, Throttled};
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1alpha2 as old;

use super::recoded;
use crate::record::ContainerRecord;
use crate::to_proto;

/// Adds the fields that v1 does not have to a container's status. Its volumes are those of its image, also if
/// the node no longer has the image.
pub(super) fn complete(
    status: &mut old::ContainerStatus,
    task: &Task,
    record: Option<&ContainerRecord>,
    inspection: &Inspection,
) {
    let limits = status
        .resources
        .as_mut()
        .and_then(|resources| resources.linux.as_mut());
    if let Some(limits) = limits {
        // Settings that cannot change are those of the request.
        let asked = record
            .and_then(|record| record.additions.clone())
            .unwrap_or_default();
        limits.disk_quota = asked.disk_quota;
        limits.ulimits = asked.ulimits;
        limits.blkio_weight = asked.blkio_weight;
        limits.blkio_weight_device = asked.blkio_weight_device;
        limits.memory_swappiness = asked.memory_swappiness;
        let throttles = |what| throttles(&task.details.throttles, what);
        limits.blkio_device_read_bps = throttles(Throttled::ReadBytes);
        limits.blkio_device_write_bps = throttles(Throttled::WriteBytes);
        limits.blkio_device_read_i_ops = throttles(Throttled::Reads);
        limits.blkio_device_write_i_ops = throttles(Throttled::Writes);
        limits.memory_reservation = task
            .details
            .resources
            .memory_reservation_bytes
            .map_or(0, MemoryLimit::signed);
        status.pouch_resources = Some(limits.clone());
    }
    for (index, mount) in (0..).zip(&mut status.mounts) {
        mount.name = record
            .and_then(|record| record.names.get(&index).cloned())
            .unwrap_or_default();
    }
    status.volumes = volumes(&task.details.image_volumes);
    status.quota_id = task
        .details
        .project
        .map(|project| project.to_string())
        .unwrap_or_default();
    status.envs = environment(&inspection.runtime_spec);
}

/// An image with its volumes.
pub(super) fn image(image: &Image) -> Result<old::Image> {
    let mut old: old::Image = recoded(&to_proto::image(image))?;
    old.volumes = volumes(&image.volumes);
    Ok(old)
}

/// The throttles of one kind.
fn throttles(all: &[Throttle], what: Throttled) -> Vec<old::ThrottleDevice> {
    let of_this = all.iter().filter(|throttle| throttle.what == what);
    of_this
        .map(|throttle| old::ThrottleDevice {
            path: throttle.device.to_string_lossy().into_owned(),
            rate: throttle.rate,
        })
        .collect()
}

fn volumes(directories: &[PathBuf]) -> BTreeMap<String, old::Volume> {
    directories
        .iter()
        .map(|path| (path.to_string_lossy().into_owned(), old::Volume {}))
        .collect()
}

/// The environment in an OCI runtime spec; empty if there is none.
fn environment(spec: &str) -> Vec<cri::KeyValue> {
    let spec: serde_json::Value = serde_json::from_str(spec).unwrap_or_default();
    let variables = spec["process"]["env"].as_array().into_iter().flatten();
    variables
        .filter_map(|variable| variable.as_str()?.split_once('='))
        .map(|(key, value)| cri::KeyValue {
            key: key.to_owned(),
            value: value.to_owned().into(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_environment_matches_the_process() {
        let spec = r#"{"process":{"env":["PATH=/bin","EMPTY=","SUM=1=1"]}}"#;
        let reported: Vec<_> = environment(spec)
            .into_iter()
            .map(|v| (v.key, v.value))
            .collect();
        let expected = [("PATH", "/bin"), ("EMPTY", ""), ("SUM", "1=1")];
        assert_eq!(
            reported,
            expected.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()))
        );
        assert_eq!(environment(""), []);
    }
}
