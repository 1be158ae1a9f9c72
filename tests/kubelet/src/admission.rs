//! Admission: devices are allocated to one pod after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use switchyard_proto::kubelet::device_plugin::v1beta1;
use switchyard_proto::kubelet::device_plugin::v1beta1::device_plugin_client::DevicePluginClient;
use tokio::time::timeout;
use tonic::Status;

use crate::manager::{AllocatedDevices, Plugin};
use crate::{Kubelet, KubeletInner};

/// The deadline of PreStartContainer.
const PRE_START: Duration = Duration::from_secs(30);

/// The options that a container gets, from all plugins together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// The devices it was given, by resource.
    pub ids: BTreeMap<String, Vec<String>>,
    /// Environment variables.
    pub envs: BTreeMap<String, String>,
    /// Annotations of the container in CRI.
    pub annotations: BTreeMap<String, String>,
    /// Device nodes: path on the host, path inside, permissions.
    pub devices: Vec<(String, String, String)>,
    /// Mounts: path on the host, path inside, whether read-only.
    pub mounts: Vec<(String, String, bool)>,
    /// Names in the Container Device Interface.
    pub cdi_devices: Vec<String>,
}

// === impl Kubelet ===

impl Kubelet {
    /// Admits a container of a pod that requests this many devices of each resource.
    ///
    /// # Errors
    /// The text of `UnexpectedAdmissionError`: the pod has failed permanently.
    pub async fn admit(
        &self,
        pod: &str,
        container: &str,
        wanted: &[(&str, usize)],
    ) -> Result<RunOptions, String> {
        let _turn = self.shared.admission.lock().await;
        self.shared.change(|state| {
            state.collect();
            state.pods.entry(pod.to_owned()).or_default().active = true;
        });
        let mut held = Vec::new();
        for (resource, count) in wanted {
            match self.shared.allocate(resource, *count).await {
                Ok(Some(one)) => {
                    held.push(one);
                    // Devices that were allocated for one resource stay allocated if another resource fails.
                    self.shared.change(|state| {
                        let pod = state.pods.entry(pod.to_owned()).or_default();
                        pod.containers.insert(container.to_owned(), held.clone());
                    });
                }
                Ok(None) => {}
                Err(why) => {
                    self.remove_pod(pod);
                    return Err(why);
                }
            }
        }
        Ok(merged(&held))
    }

    /// Calls PreStartContainer of the plugins before a container starts.
    ///
    /// # Errors
    /// The text of `CreateContainerConfigError`: the kubelet tries again later.
    pub async fn pre_start(&self, pod: &str, container: &str) -> Result<(), String> {
        let held = self
            .shared
            .state()
            .pods
            .get(pod)
            .and_then(|pod| pod.containers.get(container))
            .cloned();
        for AllocatedDevices { resource, ids, .. } in held.unwrap_or_default() {
            let Some(plugin) = self.shared.state().plugin(&resource) else {
                continue;
            };
            if !plugin.options.pre_start_required {
                continue;
            }
            let request = v1beta1::PreStartContainerRequest { devices_ids: ids };
            let mut client = DevicePluginClient::new(plugin.channel);
            match timeout(PRE_START, client.pre_start_container(request)).await {
                Ok(answer) => answer.map(drop).map_err(|status| text(&status))?,
                Err(_) => return Err("rpc error: code = DeadlineExceeded".to_owned()),
            }
        }
        Ok(())
    }

    /// Checks whether a pod that an earlier kubelet process has admitted, and whose containers do not run,
    /// may start again.
    ///
    /// # Errors
    /// The text of `UnexpectedAdmissionError`.
    pub fn readmit(&self, pod: &str) -> Result<(), String> {
        let state = self.shared.state();
        let held = state.pods.get(pod).map(|pod| {
            pod.containers
                .values()
                .flatten()
                .cloned()
                .collect::<Vec<_>>()
        });
        for AllocatedDevices { resource, ids, .. } in held.unwrap_or_default() {
            let devices = state.devices(&resource);
            if !devices.values().any(|seen| seen.healthy) {
                return Err(format!(
                    "no healthy devices present; cannot allocate unhealthy devices {resource}"
                ));
            }
            if ids
                .iter()
                .any(|id| !devices.get(id).is_some_and(|seen| seen.healthy))
            {
                return Err(format!(
                    "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
                ));
            }
        }
        Ok(())
    }

    /// Removes a pod. Its devices are free at once, although its containers may still run.
    pub fn remove_pod(&self, pod: &str) {
        self.shared.change(|state| {
            if let Some(pod) = state.pods.get_mut(pod) {
                pod.active = false;
            }
        });
    }
}

// === impl KubeletInner ===

impl KubeletInner {
    /// Allocates devices of a resource; `None` if no plugin ever registered it.
    async fn allocate(
        &self,
        resource: &str,
        count: usize,
    ) -> Result<Option<AllocatedDevices>, String> {
        if !self.state().is_known(resource) {
            return Ok(None);
        }
        let free = self.state().free(resource);
        if free.len() < count {
            let available = free.len();
            return Err(format!(
                "requested number of devices unavailable for {resource}. Requested: {count}, Available: {available}"
            ));
        }
        let plugin = self.state().plugin(resource);
        let plugin = plugin.ok_or_else(|| format!("endpoint of {resource} is stopped"))?;
        let ids = self.preferred(&plugin, &free, count).await?;
        self.state().begin(resource, &ids);
        let request = v1beta1::AllocateRequest {
            container_requests: vec![v1beta1::ContainerAllocateRequest {
                devices_ids: ids.clone(),
            }],
        };
        let answer = DevicePluginClient::new(plugin.channel)
            .allocate(request)
            .await;
        self.state().finish(resource, &ids);
        if let Some(crash) = self.state().crash.clone() {
            return Err(crash);
        }
        let answer = answer.map_err(|status| text(&status))?.into_inner();
        let first = answer.container_responses.into_iter().next();
        let response =
            first.ok_or_else(|| "no containers return in allocation response".to_owned())?;
        Ok(Some(AllocatedDevices {
            resource: resource.to_owned(),
            ids,
            response,
        }))
    }

    /// Chooses among the free devices.
    async fn preferred(
        &self,
        plugin: &Plugin,
        free: &BTreeSet<String>,
        count: usize,
    ) -> Result<Vec<String>, String> {
        if !plugin.options.get_preferred_allocation_available || free.len() == count {
            return Ok(free.iter().take(count).cloned().collect());
        }
        let request = v1beta1::ContainerPreferredAllocationRequest {
            available_device_i_ds: free.iter().cloned().collect(),
            must_include_device_i_ds: Vec::new(),
            allocation_size: i32::try_from(count).expect("pods want few"),
        };
        let request = v1beta1::PreferredAllocationRequest {
            container_requests: vec![request],
        };
        let answer = DevicePluginClient::new(plugin.channel.clone())
            .get_preferred_allocation(request)
            .await;
        let answer = answer.map_err(|status| text(&status))?.into_inner();
        let preferred = answer
            .container_responses
            .into_iter()
            .next()
            .unwrap_or_default()
            .device_i_ds;
        // Preferred devices that are not free are ignored, and missing ones are filled up.
        let mut ids: Vec<String> = preferred
            .into_iter()
            .filter(|id| free.contains(id))
            .take(count)
            .collect();
        let rest: Vec<String> = free
            .iter()
            .filter(|id| !ids.contains(id))
            .cloned()
            .collect();
        ids.extend(rest.into_iter().take(count - ids.len()));
        Ok(ids)
    }
}

/// Merges what a container gets; of conflicting values of several plugins the first counts.
fn merged(all: &[AllocatedDevices]) -> RunOptions {
    let mut options = RunOptions::default();
    for AllocatedDevices {
        resource,
        ids,
        response,
    } in all
    {
        let response = response.clone();
        options.ids.insert(resource.clone(), ids.clone());
        for (name, value) in response.envs {
            options.envs.entry(name).or_insert(value);
        }
        for (key, value) in response.annotations {
            options.annotations.entry(key).or_insert(value);
        }
        options.devices.extend(
            response
                .devices
                .into_iter()
                .map(|node| (node.host_path, node.container_path, node.permissions)),
        );
        options.mounts.extend(
            response
                .mounts
                .into_iter()
                .map(|mount| (mount.host_path, mount.container_path, mount.read_only)),
        );
        options
            .cdi_devices
            .extend(response.cdi_devices.into_iter().map(|device| device.name));
    }
    options
}

/// A status as a kubelet prints it.
fn text(status: &Status) -> String {
    format!(
        "rpc error: code = {:?} desc = {}",
        status.code(),
        status.message()
    )
}
