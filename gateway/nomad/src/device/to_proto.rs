//! Conversion of devices from the gateway's types to Nomad's. Agents drop all devices for good if a field is
//! empty or a unit is unknown to them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use switchyard_core::device::{Device, DeviceGroup, Fact, Health, Inventory, Reservation, Traffic};
use switchyard_core::gateway::Leased;
use switchyard_core::id::LeaseToken;
use switchyard_core::spec::DeviceNode;
use switchyard_proto::nomad::device as nomad;
use switchyard_proto::nomad::shared::structs::{Attribute, StatObject, StatValue, attribute};

use super::{HEALTHY_SLOTS, LEASE_VARIABLE};

const KIB: u64 = 1 << 10;

/// The devices; none if they are not known yet.
pub(super) fn fingerprint(inventory: Option<&Inventory>) -> nomad::FingerprintResponse {
    let groups = inventory
        .into_iter()
        .flat_map(|inventory| &inventory.groups);
    // Groups without devices are omitted.
    let device_group = groups
        .filter(|group| !group.devices.is_empty())
        .map(|one| group(one))
        .collect();
    nomad::FingerprintResponse { device_group }
}

/// Number of slots of a group that can be allocated to tasks. A server without a healthy device for a job
/// re-evaluates when the class of a node changes. The class is computed from the attributes of the devices,
/// not from their health: without this attribute, a job submitted while another owner had the devices would
/// keep waiting after they become free.
fn healthy_slots(devices: &[Device]) -> Attribute {
    let healthy = devices
        .iter()
        .filter(|device| device.health == Health::Healthy)
        .count();
    attribute(&Fact::Whole(
        i64::try_from(healthy).unwrap_or(i64::MAX),
        String::new(),
    ))
}

fn group(group: &DeviceGroup) -> nomad::DeviceGroup {
    let DeviceGroup {
        vendor,
        kind,
        name,
        attributes,
        devices,
        // Each slot is a device here, and those beyond the quota are unhealthy.
        shares: _,
        quota: _,
        // For kubelets only.
        resource: _,
        placement: _,
        // For tasks only.
        variable: _,
        env: _,
        shared: _,
        mounts: _,
    } = group;
    let facts = attributes
        .iter()
        .map(|(key, fact)| (key.clone(), attribute(fact)));
    nomad::DeviceGroup {
        vendor: vendor.clone(),
        device_type: kind.clone(),
        device_name: name.clone(),
        devices: devices.iter().map(device).collect(),
        attributes: facts
            .chain([(HEALTHY_SLOTS.to_owned(), healthy_slots(devices))])
            .collect(),
    }
}

fn device(device: &Device) -> nomad::DetectedDevice {
    let Device {
        id,
        aliases: _,
        nodes: _,
        cdi: _,
        health,
        pci_bus_id,
        numa_node: _,
        traffic: _,
    } = device;
    nomad::DetectedDevice {
        id: id.clone(),
        healthy: *health == Health::Healthy,
        health_description: health.fault().unwrap_or_default().to_owned(),
        hw_locality: pci_bus_id
            .clone()
            .map(|pci_bus_id| nomad::DeviceLocality { pci_bus_id }),
    }
}

fn attribute(fact: &Fact) -> Attribute {
    let (value, unit) = match fact {
        Fact::Whole(number, unit) => (attribute::Value::IntVal(*number), unit.clone()),
        Fact::Number(number, unit) => (attribute::Value::FloatVal(*number), unit.clone()),
        Fact::Flag(flag) => (attribute::Value::BoolVal(*flag), String::new()),
        Fact::Text(text) => (attribute::Value::StringVal(text.clone()), String::new()),
    };
    Attribute {
        value: Some(value),
        unit,
    }
}

/// Makes the response for a lease. It has no mounts, because agents would put them in place of the task's
/// volumes; they are added at the start of the task, as are CDI devices, which these messages cannot express.
pub(super) fn reserved(leased: Leased) -> nomad::ReserveResponse {
    let Leased {
        token,
        reservation:
            Reservation {
                mut env,
                nodes,
                mounts: _,
                cdi: _,
            },
    } = leased;
    env.insert(variable(token), token.to_string());
    let reservation = nomad::ContainerReservation {
        envs: env.into_iter().collect(),
        mounts: Vec::new(),
        devices: nodes
            .into_iter()
            .map(
                |DeviceNode {
                     host_path,
                     container_path,
                     permissions,
                 }| nomad::DeviceSpec {
                    task_path: container_path.display().to_string(),
                    host_path: host_path.display().to_string(),
                    permissions,
                },
            )
            .collect(),
    };
    nomad::ReserveResponse {
        container_res: Some(reservation),
    }
}

/// The variable that carries the token of a lease to the start of the task.
fn variable(token: LeaseToken) -> String {
    format!("{LEASE_VARIABLE}{}", &token.to_string()[..8])
}

/// The statistics of the devices at this time.
pub(super) fn stats(inventory: Option<&Inventory>, now: SystemTime) -> nomad::StatsResponse {
    let groups = inventory
        .into_iter()
        .flat_map(|inventory| &inventory.groups);
    let one = |group: &Arc<DeviceGroup>| nomad::DeviceGroupStats {
        vendor: group.vendor.clone(),
        r#type: group.kind.clone(),
        name: group.name.clone(),
        instance_stats: group
            .devices
            .iter()
            .map(|device| (device.id.clone(), stat(device, now)))
            .collect(),
    };
    nomad::StatsResponse {
        groups: groups
            .filter(|group| !group.devices.is_empty())
            .map(one)
            .collect(),
    }
}

fn stat(device: &Device, now: SystemTime) -> nomad::DeviceStats {
    let health = device.health.fault().unwrap_or("healthy").to_owned();
    let health = StatValue {
        string_val: Some(health),
        desc: "Health".to_owned(),
        ..StatValue::default()
    };
    let mut attributes: HashMap<String, StatValue> =
        HashMap::from([("Health".to_owned(), health.clone())]);
    if let Some(Traffic {
        read_bytes,
        written_bytes,
    }) = device.traffic
    {
        attributes.insert(
            "Read".to_owned(),
            size(read_bytes, "Read since the node has started"),
        );
        attributes.insert(
            "Written".to_owned(),
            size(written_bytes, "Written since the node has started"),
        );
    }
    nomad::DeviceStats {
        summary: Some(health),
        stats: Some(StatObject {
            nested: Default::default(),
            attributes: attributes.into_iter().collect(),
        }),
        timestamp: Some(now.into()),
    }
}

fn size(bytes: u64, desc: &str) -> StatValue {
    StatValue {
        int_numerator_val: Some(i64::try_from(bytes / KIB).unwrap_or(i64::MAX)),
        unit: "KiB".to_owned(),
        desc: desc.to_owned(),
        ..StatValue::default()
    }
}
