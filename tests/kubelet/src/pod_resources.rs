//! The PodResources service: the devices of the kubelet's pods.

use switchyard_proto::kubelet::pod_resources::v1;
use switchyard_proto::kubelet::pod_resources::v1::pod_resources_lister_server::PodResourcesLister;
use tonic::{Request, Response, Status};

use crate::KubeletInner;
use crate::manager::{AllocatedDevices, Pod};

#[tonic::async_trait]
impl PodResourcesLister for KubeletInner {
    async fn list(
        &self,
        _: Request<v1::ListPodResourcesRequest>,
    ) -> Result<Response<v1::ListPodResourcesResponse>, Status> {
        self.hang().await;
        let pods = self.change(|state| {
            // The query first releases the devices of pods that no longer exist.
            state.collect();
            state.pods.clone()
        });
        let pinned = v1::ContainerResources {
            cpu_ids: self.exclusive_cpus.clone(),
            dynamic_resources: self.dynamic_resources.clone(),
            ..Default::default()
        };
        let pinned = v1::PodResources {
            containers: vec![pinned],
            ..Default::default()
        };
        let pod_resources = pods.into_iter().map(pod).chain([pinned]).collect();
        Ok(Response::new(v1::ListPodResourcesResponse {
            pod_resources,
        }))
    }
}

fn pod((name, pod): (String, Pod)) -> v1::PodResources {
    let containers = pod.containers.into_iter().map(container).collect();
    v1::PodResources {
        name,
        namespace: "default".to_owned(),
        containers,
        cpu_ids: Vec::new(),
    }
}

fn container((name, held): (String, Vec<AllocatedDevices>)) -> v1::ContainerResources {
    v1::ContainerResources {
        name,
        // Each device has its own entry.
        devices: held
            .into_iter()
            .flat_map(|AllocatedDevices { resource, ids, .. }| {
                ids.into_iter().map(move |id| (resource.clone(), id))
            })
            .map(|(resource_name, id)| v1::ContainerDevices {
                resource_name,
                device_ids: vec![id],
            })
            .collect(),
        cpu_ids: Vec::new(),
        dynamic_resources: Vec::new(),
    }
}
