//! Polls the kubelet's pod resources API, where its socket exists: a lease whose slots no pod has, and for
//! which no container was created, is ended; and what pods have by dynamic resource allocation is shown to operators.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use switchyard_core::device::DynamicDevice;
use switchyard_core::gateway::Scope;
use switchyard_core::id::{LeaseToken, SlotId};
use switchyard_core::spec::CpuSet;
use switchyard_core::{Error, Result};
use switchyard_proto::kubelet::pod_resources::v1;
use switchyard_proto::kubelet::pod_resources::v1::pod_resources_lister_client::PodResourcesListerClient;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::Status;

use crate::channel::channel;

/// Pause between two List calls.
pub(crate) const PAUSE: Duration = Duration::from_secs(10);

/// Timeout of a List call.
const LIMIT: Duration = Duration::from_secs(5);

/// The largest answer that is read, in bytes; the kubelet's own clients use the same limit.
const MESSAGE_MAX: usize = 16 << 20;

/// A lease may be without a container in this many consecutive lists before a warning is logged: pulling its
/// image takes that long.
const LONG_UNUSED_LISTS: u32 = 60;

/// The most devices of dynamic resource allocation that are kept of a list.
const DYNAMIC_MAX: usize = 4096;

/// The most CDI names of such a device, and the most characters of a name, that are kept.
const CDI_MAX: usize = 32;
const NAME_CHARS_MAX: usize = 256;

/// In how many consecutive lists of the kubelet each lease without a container has appeared.
#[derive(Debug, Default)]
struct UnusedLeases {
    lists: BTreeMap<LeaseToken, u32>,
    warned: bool,
}

/// Reports the slots that the kubelet's pods have to the gateway, for as long as the future is polled.
/// `resources` are the resources that are offered.
pub(crate) async fn follow(
    socket: PathBuf,
    resources: watch::Receiver<BTreeSet<String>>,
    scope: Scope,
    pause: Duration,
) {
    let mut rounds = interval(pause);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut warned = false;
    let mut unused = UnusedLeases::default();
    loop {
        rounds.tick().await;
        if !socket.exists() {
            scope.devices().set_dynamic(Vec::new());
            continue;
        }
        match timeout(LIMIT, list(&socket)).await {
            Ok(Ok(list)) => {
                warned = false;
                scope.devices().set_dynamic(dynamic(&list));
                let offered = resources.borrow().clone();
                if offered.is_empty() {
                    // What was offered before a restart of the daemon is not known yet.
                    continue;
                }
                let listed = slots(list, &offered);
                scope.devices().reconcile_listed(&listed).await;
                if unused.after(scope.devices().unused(&listed)) {
                    tracing::warn!(
                        "a pod has devices, but no container was created with them here: if this lasts, the kubelet uses another container runtime than this daemon (see its containerRuntimeEndpoint), and this daemon does not learn which devices are in use"
                    );
                }
            }
            Ok(Err(status)) => warn_once(&mut warned, &socket, status.message()),
            Err(_) => warn_once(&mut warned, &socket, "no answer in time"),
        }
    }
}

// === impl UnusedLeases ===

impl UnusedLeases {
    /// Counts the leases without a container in the newest list; returns whether a warning is due.
    fn after(&mut self, now: BTreeSet<LeaseToken>) -> bool {
        let before = std::mem::take(&mut self.lists);
        self.lists = now
            .into_iter()
            .map(|token| (token, before.get(&token).copied().unwrap_or_default() + 1))
            .collect();
        let long = self.lists.values().any(|lists| *lists >= LONG_UNUSED_LISTS);
        long && !std::mem::replace(&mut self.warned, true)
    }
}

/// The CPUs that the kubelet behind this socket has assigned exclusively to containers and pods.
///
/// # Errors
/// `Unavailable` if the kubelet does not answer in time, or with an error.
pub async fn exclusive_cpus(socket: &Path) -> Result<CpuSet> {
    let what = || {
        format!(
            "ask the kubelet at {} for the exclusive CPUs of its pods",
            socket.display()
        )
    };
    let answer = timeout(LIMIT, list(socket))
        .await
        .map_err(|_| Error::unavailable(what()))?;
    answer
        .map(cpus)
        .map_err(|status| Error::unavailable(what()).with_source(status))
}

async fn list(socket: &Path) -> std::result::Result<v1::ListPodResourcesResponse, Status> {
    let channel = channel(socket.to_owned());
    let mut client = PodResourcesListerClient::new(channel).max_decoding_message_size(MESSAGE_MAX);
    Ok(client
        .list(v1::ListPodResourcesRequest {})
        .await?
        .into_inner())
}

fn warn_once(warned: &mut bool, socket: &Path, error: &str) {
    if !std::mem::replace(warned, true) {
        tracing::warn!(socket = %socket.display(), error, "cannot read from the kubelet which devices its pods have: devices that it allocates for pods that never start are freed only when another owner asks for them");
    }
}

/// The CPUs that a list names.
fn cpus(list: v1::ListPodResourcesResponse) -> CpuSet {
    let v1::ListPodResourcesResponse { pod_resources } = list;
    let of_pods = pod_resources.into_iter().flat_map(|pod| {
        let of_containers = pod
            .containers
            .into_iter()
            .flat_map(|container| container.cpu_ids);
        of_containers.chain(pod.cpu_ids)
    });
    of_pods
        .filter_map(|id| u32::try_from(id).ok())
        .map(|id| (id, id))
        .collect()
}

/// The devices that a list names by claims of dynamic resource allocation. Their names are cut: they are shown alone.
pub(crate) fn dynamic(list: &v1::ListPodResourcesResponse) -> Vec<DynamicDevice> {
    let name = |text: &str| -> String { text.chars().take(NAME_CHARS_MAX).collect() };
    let within = |namespace: &str, of: &str| format!("{}/{}", name(namespace), name(of));
    let mut devices = Vec::new();
    for pod in &list.pod_resources {
        for container in &pod.containers {
            for claim in &container.dynamic_resources {
                let left = DYNAMIC_MAX - devices.len();
                devices.extend(claim.claim_resources.iter().take(left).map(|resource| {
                    let cdi = resource.cdi_devices.iter().take(CDI_MAX);
                    DynamicDevice {
                        pod: within(&pod.namespace, &pod.name),
                        container: name(&container.name),
                        claim: within(&claim.claim_namespace, &claim.claim_name),
                        driver: name(&resource.driver_name),
                        pool: name(&resource.pool_name),
                        device: name(&resource.device_name),
                        cdi: cdi.map(|device| name(&device.name)).collect(),
                    }
                }));
            }
        }
    }
    devices
}

/// The slots of these resources that a list names.
pub(crate) fn slots(
    list: v1::ListPodResourcesResponse,
    resources: &BTreeSet<String>,
) -> BTreeSet<SlotId> {
    let v1::ListPodResourcesResponse { pod_resources } = list;
    let containers = pod_resources.into_iter().flat_map(|pod| pod.containers);
    let devices = containers.flat_map(|container| container.devices);
    let ours = devices.filter(|devices| resources.contains(&devices.resource_name));
    ours.flat_map(|devices| devices.device_ids)
        .flat_map(SlotId::new)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_no_container_comes_for_is_told_once_and_a_slow_pull_is_not() {
        let token = |byte| LeaseToken::from_bytes([byte; 16]);
        let mut unused = UnusedLeases::default();
        for _ in 0..LONG_UNUSED_LISTS - 1 {
            assert!(!unused.after([token(1), token(2)].into()));
        }
        assert!(!unused.after([token(3)].into()), "containers came for both");
        let warned = (0..3 * LONG_UNUSED_LISTS)
            .filter(|_| unused.after([token(3)].into()))
            .count();
        assert_eq!(warned, 1);
    }

    #[test]
    fn processors_of_containers_and_of_pods_are_theirs() {
        let container = |cpu_ids| v1::ContainerResources {
            cpu_ids,
            ..Default::default()
        };
        let pod = |containers, cpu_ids| v1::PodResources {
            containers,
            cpu_ids,
            ..Default::default()
        };
        let list = v1::ListPodResourcesResponse {
            pod_resources: vec![
                pod(
                    vec![container(vec![2, 3]), container(Vec::new())],
                    Vec::new(),
                ),
                pod(vec![container(vec![-1, i64::MAX])], vec![5, 4]),
            ],
        };
        assert_eq!(cpus(list).to_string(), "2-5");
    }

    #[test]
    fn devices_of_claims_are_listed_within_bounds() {
        let resource = |device: &str, cdi: &[&str]| v1::ClaimResource {
            cdi_devices: cdi
                .iter()
                .map(|name| v1::CdiDevice {
                    name: (*name).to_owned(),
                })
                .collect(),
            driver_name: "gpu.acme.com".to_owned(),
            pool_name: "node1".to_owned(),
            device_name: device.to_owned(),
        };
        let list = |claim_resources| v1::ListPodResourcesResponse {
            pod_resources: vec![v1::PodResources {
                name: "web".to_owned(),
                namespace: "shop".to_owned(),
                containers: vec![
                    v1::ContainerResources::default(),
                    v1::ContainerResources {
                        name: "app".to_owned(),
                        dynamic_resources: vec![v1::DynamicResource {
                            claim_name: "gpus".to_owned(),
                            claim_namespace: "shop".to_owned(),
                            claim_resources,
                        }],
                        ..Default::default()
                    },
                ],
                ..Default::default()
            }],
        };
        let device = |device: &str, cdi: &[&str]| DynamicDevice {
            pod: "shop/web".to_owned(),
            container: "app".to_owned(),
            claim: "shop/gpus".to_owned(),
            driver: "gpu.acme.com".to_owned(),
            pool: "node1".to_owned(),
            device: device.to_owned(),
            cdi: cdi.iter().map(|name| (*name).to_owned()).collect(),
        };
        let long = "\u{e4}".repeat(100_000);
        let cut = "\u{e4}".repeat(NAME_CHARS_MAX);
        let many = vec!["acme.com/gpu=0"; CDI_MAX + 1];
        for (given, expected) in [
            (vec![], vec![]),
            (
                vec![resource("gpu-0", &["acme.com/claim=1", "acme.com/claim=2"])],
                vec![device("gpu-0", &["acme.com/claim=1", "acme.com/claim=2"])],
            ),
            (vec![resource("gpu-0", &[])], vec![device("gpu-0", &[])]),
            (vec![resource(&long, &[&long])], vec![device(&cut, &[&cut])]),
            (
                vec![resource("gpu-0", &many)],
                vec![device("gpu-0", &many[1..])],
            ),
            (
                vec![resource("gpu-0", &[]); DYNAMIC_MAX + 1],
                vec![device("gpu-0", &[]); DYNAMIC_MAX],
            ),
        ] {
            assert!(dynamic(&list(given)) == expected, "{:?}", expected.first());
        }
    }

    #[test]
    fn only_slots_of_our_resources_count() {
        let devices = |resource: &str, ids: &[&str]| v1::ContainerDevices {
            resource_name: resource.to_owned(),
            device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        let container = |devices| v1::ContainerResources {
            devices,
            ..Default::default()
        };
        let pod = |containers| v1::PodResources {
            containers,
            ..Default::default()
        };
        let long = "x".repeat(100_000);
        let list = v1::ListPodResourcesResponse {
            pod_resources: vec![
                pod(vec![container(vec![
                    devices("acme.com/tpu", &["a", "b"]),
                    devices("other/x", &["c"]),
                ])]),
                pod(vec![
                    container(Vec::new()),
                    container(vec![devices("acme.com/tpu", &["d", &long])]),
                ]),
            ],
        };
        let listed = slots(list, &["acme.com/tpu".to_owned()].into());
        assert_eq!(
            listed,
            ["a", "b", "d"].map(|id| SlotId::new(id).unwrap()).into()
        );
    }
}
