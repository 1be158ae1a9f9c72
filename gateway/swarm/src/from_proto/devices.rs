//! Devices of a task: those that the scheduler has chosen of what the node offers, and those that the service names.

use swarm::generic_resource::Resource;
use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::check_count;
use switchyard_linux::beginning;
use switchyard_proto::docker::swarmkit::v1 as swarm;

use super::request::TaskRequest;
use crate::plan::AssignedDevice;

/// The label of a container by which a service names devices, as CDI names separated by commas.
pub(super) const DEVICE_LABEL: &str = "switchyard.io/device";

/// Maximum number of bytes quoted from a refused name.
const SHOWN: usize = 256;

/// The devices that the scheduler has chosen. Whether the node has them, and who else, its ledger knows.
pub(super) fn assigned(task: &swarm::Task) -> Result<Vec<AssignedDevice>> {
    let field = "assigned_generic_resources";
    let mut devices = Vec::new();
    for (index, swarm::GenericResource { resource }) in
        task.assigned_generic_resources.iter().enumerate()
    {
        check_count(field, "devices", index)?;
        match resource {
            Some(Resource::NamedResourceSpec(swarm::NamedGenericResource { kind, value })) => {
                devices.push(AssignedDevice {
                    kind: kind.clone(),
                    id: value.clone(),
                });
            }
            Some(Resource::DiscreteResourceSpec(swarm::DiscreteGenericResource {
                kind,
                value: _,
            })) => {
                let kind = beginning(kind, SHOWN);
                let why = format!(
                    "{kind:?} is a number, and this node offers only devices, by their ids"
                );
                return Err(Error::unimplemented(format!("{field}[{index}]: {why}")));
            }
            None => {
                return Err(Error::invalid(
                    format_args!("{field}[{index}]"),
                    "it is empty",
                ));
            }
        }
    }
    Ok(devices)
}

/// The devices with ids of what is assigned to a task, whatever else that is.
pub(crate) fn named_devices(task: &swarm::Task) -> impl Iterator<Item = AssignedDevice> + '_ {
    task.assigned_generic_resources
        .iter()
        .filter_map(|resource| match &resource.resource {
            Some(Resource::NamedResourceSpec(swarm::NamedGenericResource { kind, value })) => {
                Some(AssignedDevice {
                    kind: kind.clone(),
                    id: value.clone(),
                })
            }
            Some(Resource::DiscreteResourceSpec(_)) | None => None,
        })
}

/// The CDI names of the devices that the service names, each once.
pub(super) fn by_label(asked: &TaskRequest<'_>) -> Result<Vec<String>> {
    let Some(list) = asked.container.labels.get(DEVICE_LABEL) else {
        return Ok(Vec::new());
    };
    let field = format!("container.labels[{DEVICE_LABEL:?}]");
    let mut names: Vec<String> = Vec::new();
    for name in list.split(',').map(str::trim) {
        if !asked.node.allowed_devices.contains(name) {
            let shown = beginning(name, SHOWN);
            let why = format!(
                "{shown:?} is no CDI name that services may name on this node: swarm.allow_devices of its configuration lists those"
            );
            return Err(Error::invalid(field, why));
        }
        if !names.iter().any(|known| known == name) {
            check_count(&field, "devices", names.len())?;
            names.push(name.to_owned());
        }
    }
    Ok(names)
}
