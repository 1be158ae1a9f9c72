//! The state of the device manager: registrations, devices, and which pod has which.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use switchyard_proto::kubelet::device_plugin::v1beta1;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// The state that a kubelet leaves to its successor.
#[derive(Debug, Clone, Default)]
pub struct Checkpoint {
    pods: BTreeMap<String, Pod>,
    resources: BTreeSet<String>,
}

/// A device as reported by ListAndWatch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedDevice {
    /// True if it may be allocated.
    pub healthy: bool,
    /// Its NUMA nodes.
    pub numa_nodes: Vec<i64>,
}

/// A registration that was accepted.
#[derive(Debug, Clone)]
pub struct AcceptedRegistration {
    /// The resource.
    pub resource: String,
    /// The name of the plugin's socket.
    pub endpoint: String,
    /// Time of the call of Register.
    pub called: Instant,
    /// Time of the answer.
    pub answered: Instant,
}

/// The newest plugin of a resource.
#[derive(Debug, Clone)]
pub(crate) struct Plugin {
    pub(crate) channel: Channel,
    pub(crate) options: v1beta1::DevicePluginOptions,
    /// Closes its connection.
    pub(crate) connection: CancellationToken,
}

#[derive(Debug, Default)]
struct Resource {
    plugin: Option<Plugin>,
    devices: BTreeMap<String, ListedDevice>,
}

/// A pod that was admitted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pod {
    /// The devices of its containers.
    pub(crate) containers: BTreeMap<String, Vec<AllocatedDevices>>,
    /// True if it is among the pods of the node. The devices of other pods are free.
    pub(crate) active: bool,
}

/// The devices of a container.
#[derive(Debug, Clone)]
pub(crate) struct AllocatedDevices {
    pub(crate) resource: String,
    pub(crate) ids: Vec<String>,
    pub(crate) response: v1beta1::ContainerAllocateResponse,
}

#[derive(Debug, Default)]
pub(crate) struct ManagerState {
    resources: BTreeMap<String, Resource>,
    pub(crate) pods: BTreeMap<String, Pod>,
    /// The devices that are being allocated: no lock is held during the call.
    allocating: Vec<(String, String)>,
    pub(crate) registered: Vec<AcceptedRegistration>,
    pub(crate) crash: Option<String>,
}

// === impl ManagerState ===

impl ManagerState {
    pub(crate) fn restored(checkpoint: Checkpoint) -> Self {
        let Checkpoint { pods, resources } = checkpoint;
        let resources = resources
            .into_iter()
            .map(|resource| (resource, Resource::default()))
            .collect();
        Self {
            pods,
            resources,
            ..Self::default()
        }
    }

    pub(crate) fn checkpoint(&self) -> Checkpoint {
        Checkpoint {
            pods: self.pods.clone(),
            resources: self.resources.keys().cloned().collect(),
        }
    }

    /// Replaces the plugin of a resource. The stream of the replaced plugin stays open.
    pub(crate) fn add(&mut self, resource: &str, plugin: Plugin) {
        self.resources
            .entry(resource.to_owned())
            .or_default()
            .plugin = Some(plugin);
    }

    /// Applies a message of any plugin of the resource.
    pub(crate) fn list(&mut self, resource: &str, devices: Vec<v1beta1::Device>) {
        let devices: BTreeMap<String, ListedDevice> = devices.into_iter().map(seen).collect();
        let missing = |(of, id): &&(String, String)| of == resource && !devices.contains_key(id);
        if let Some((_, id)) = self.allocating.iter().find(missing) {
            self.crash = Some(format!(
                "{id} of {resource} is missing while it is being allocated"
            ));
        }
        self.resources
            .entry(resource.to_owned())
            .or_default()
            .devices = devices;
    }

    /// The stream of any plugin of the resource has ended: the newest plugin is disconnected, whichever
    /// stream it was.
    pub(crate) fn end(&mut self, resource: &str) {
        let Some(resource) = self.resources.get_mut(resource) else {
            return;
        };
        resource
            .devices
            .values_mut()
            .for_each(|seen| seen.healthy = false);
        if let Some(plugin) = resource.plugin.take() {
            plugin.connection.cancel();
        }
    }

    pub(crate) fn disconnect_all(&self) {
        for plugin in self
            .resources
            .values()
            .filter_map(|resource| resource.plugin.as_ref())
        {
            plugin.connection.cancel();
        }
    }

    pub(crate) fn is_known(&self, resource: &str) -> bool {
        self.resources.contains_key(resource)
    }

    pub(crate) fn plugin(&self, resource: &str) -> Option<Plugin> {
        self.resources.get(resource)?.plugin.clone()
    }

    pub(crate) fn devices(&self, resource: &str) -> BTreeMap<String, ListedDevice> {
        self.resources
            .get(resource)
            .map(|resource| resource.devices.clone())
            .unwrap_or_default()
    }

    /// The number of devices of a resource, and of healthy ones among them.
    pub(crate) fn capacity(&self, resource: &str) -> (usize, usize) {
        let devices = self
            .resources
            .get(resource)
            .map(|resource| &resource.devices);
        let healthy = devices
            .into_iter()
            .flatten()
            .filter(|(_, seen)| seen.healthy)
            .count();
        (devices.map_or(0, BTreeMap::len), healthy)
    }

    /// Releases the devices of pods that no longer exist.
    pub(crate) fn collect(&mut self) {
        self.pods.retain(|_, pod| pod.active);
    }

    /// The healthy devices of a resource that no pod has.
    pub(crate) fn free(&self, resource: &str) -> BTreeSet<String> {
        let held = self
            .pods
            .values()
            .flat_map(|pod| pod.containers.values().flatten());
        let taken: BTreeSet<&String> = held
            .filter(|held| held.resource == resource)
            .flat_map(|held| &held.ids)
            .collect();
        let devices = self
            .resources
            .get(resource)
            .into_iter()
            .flat_map(|resource| &resource.devices);
        devices
            .filter(|(id, seen)| seen.healthy && !taken.contains(id))
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Records that Allocate is about to be called.
    pub(crate) fn begin(&mut self, resource: &str, ids: &[String]) {
        self.allocating
            .extend(ids.iter().map(|id| (resource.to_owned(), id.clone())));
    }

    /// Records that Allocate was answered.
    pub(crate) fn finish(&mut self, resource: &str, ids: &[String]) {
        self.allocating
            .retain(|(of, id)| of != resource || !ids.contains(id));
    }
}

fn seen(device: v1beta1::Device) -> (String, ListedDevice) {
    let v1beta1::Device {
        id,
        health,
        topology,
    } = device;
    let nodes = topology.map(|topology| topology.nodes).unwrap_or_default();
    (
        id,
        ListedDevice {
            healthy: health == "Healthy",
            numa_nodes: nodes.into_iter().map(|node| node.id).collect(),
        },
    )
}
