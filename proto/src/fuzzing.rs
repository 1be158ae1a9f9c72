//! Properties that hold for any bytes that are received as a message. Called only by fuzz targets and tests.

use prost::Message;

use crate::cri::v1 as cri;
use crate::docker::swarmkit::v1 as swarm;
use crate::kubelet::device_plugin::v1beta1 as kubelet;
use crate::nomad::drivers::proto as nomad;
use crate::shape::{Shaped, structs_of};

/// Counts the bytes as messages of several protocols: what is decoded of them has no more structs than were counted.
///
/// # Panics
/// If a property does not hold.
pub fn message_shapes(data: &[u8]) {
    counted(data, |message: swarm::AssignmentsMessage| {
        size_of_val(message.changes.as_slice())
    });
    counted(data, |message: swarm::SessionMessage| {
        size_of_val(message.managers.as_slice())
    });
    counted(data, |message: cri::CreateContainerRequest| {
        message.config.map_or(0, |config| {
            size_of_val(config.mounts.as_slice())
                + size_of_val(config.envs.as_slice())
                + size_of_val(config.args.as_slice())
                + config.annotations.len() * 2 * size_of::<String>()
        })
    });
    counted(data, |message: nomad::StartTaskRequest| {
        message.task.map_or(0, |task| {
            size_of_val(task.mounts.as_slice()) + size_of_val(task.devices.as_slice())
        })
    });
    counted(data, |message: kubelet::ListAndWatchResponse| {
        size_of_val(message.devices.as_slice())
    });
}

fn counted<M: Message + Default + Shaped>(data: &[u8], structs: impl FnOnce(M) -> usize) {
    let counted = structs_of::<M>(data);
    // Decoded although it would be refused: inputs are small.
    if let (Ok(message), Ok(counted)) = (M::decode(data), counted) {
        let found = structs(message) as u64;
        assert!(
            found <= counted,
            "{found} bytes of structs, of which {counted} were counted"
        );
    }
}
