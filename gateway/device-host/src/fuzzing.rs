//! Properties that hold for any bytes that a plugin sends. Called only by fuzz targets and tests.

use std::path::Component;

use prost::Message;
use switchyard_core::ErrorKind;
use switchyard_core::device::DEVICE_ID_MAX;
use switchyard_core::id::device_of;
use switchyard_core::spec::MountSource;
use switchyard_proto::kubelet::device_plugin::v1beta1;

use crate::from_proto::{self, DEVICES_MAX};

const RESOURCE: &str = "acme.com/tpu";

/// Decodes the bytes as each of the messages: accepted messages have our ids, and no path that leads out of
/// its place.
///
/// # Panics
/// If a property does not hold.
pub fn messages(data: &[u8]) {
    if let Ok(request) = v1beta1::RegisterRequest::decode(data) {
        match from_proto::registration(request) {
            Ok(taken) => assert!(!taken.endpoint.contains('/') && taken.endpoint != ".."),
            Err(error) => {
                assert!(error.kind() == ErrorKind::InvalidArgument && error.report().len() < 1000)
            }
        }
    }
    if let Ok(list) = v1beta1::ListAndWatchResponse::decode(data) {
        let listed = from_proto::listed(RESOURCE, list);
        assert!(
            listed.devices.len() <= DEVICES_MAX && listed.devices.len() == listed.vendors.len()
        );
        assert!(listed.devices.is_sorted_by(|a, b| a.id < b.id));
        for device in &listed.devices {
            assert!(
                (1..=DEVICE_ID_MAX).contains(&device.id.len())
                    && device_of(&device.id) == device.id
            );
            assert!(
                device
                    .id
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
            );
        }
    }
    if let Ok(answer) = v1beta1::AllocateResponse::decode(data) {
        match from_proto::allocated(answer) {
            Ok(given) => {
                for node in &given.nodes {
                    are_plain([&node.host_path, &node.container_path]);
                }
                for mount in &given.mounts {
                    let MountSource::Host { path, .. } = &mount.source else {
                        panic!("{mount:?}")
                    };
                    are_plain([path, &mount.destination]);
                }
            }
            Err(error) => {
                assert!(
                    error.kind() == ErrorKind::FailedPrecondition && error.report().len() < 1000
                );
            }
        }
    }
}

fn are_plain(paths: [&std::path::PathBuf; 2]) {
    for path in paths {
        assert!(
            path.is_absolute() && path.components().all(|part| part != Component::ParentDir),
            "{path:?}"
        );
    }
}
