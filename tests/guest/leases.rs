//! Device leases across restarts and power cuts of the node: at the next boot a kubelet and a Nomad agent
//! have the devices that they had been given, and nobody else has them.
//!
//! After a boot a kubelet knows what is in its checkpoint: the slot of each pod, and the answer to its
//! allocation. Here that is noted on the host. An agent knows what is in its state: the variables of the
//! task, with the token ([`crate::tasks`]).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use switchyard_kubelet::{Kubelet, Options, RunOptions};
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::nomad::device as nomad;
use switchyard_proto::nomad::device::device_plugin_client::DevicePluginClient;
use switchyard_tests::host::eventually;
use switchyard_tests::nomad::PluginProcess;
use switchyard_tests::nomad::agent::{install_plugins, socket_args};
use tokio::runtime::Runtime;

use crate::load::note;
use crate::node::{GuestNode, LIMIT, run};
use crate::nomad::agent_paths;
use crate::tasks::ENDLESS_SCRIPT;

/// The resource name of the devices that `tests/guest/run` creates.
const RESOURCE: &str = "guest.test/device";
/// The number of devices.
const DEVICES: usize = 4;
/// The directory of the kubelet's sockets.
const DIRECTORY: &str = "/var/lib/kubelet/device-plugins";
/// The annotation in the answer to a kubelet, before the token.
const ANNOTATION: &str = "devices.switchyard.io/";

/// A lease as the kubelet's checkpoint records it.
#[derive(Debug, Clone)]
pub(crate) struct RecordedLease {
    slot: String,
    token: String,
    /// The device node.
    path: String,
    used_by: LeaseUse,
}

/// The object that was created with a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseUse {
    /// Nothing.
    None,
    /// Possibly something.
    Started,
    /// A pod with a container.
    Pod,
}

/// The holder of each slot, as `switchyard devices` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotHolder {
    owner: String,
    state: String,
    name: String,
    token: String,
}

/// A kubelet that runs until this is dropped.
pub(crate) struct LeaseKubelet {
    runtime: Arc<Runtime>,
    kubelet: Kubelet,
}

// === impl LeaseKubelet ===

impl LeaseKubelet {
    /// Starts a kubelet, and waits until this many devices are allocatable.
    pub(crate) fn start(healthy: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = Arc::new(runtime.expect("a runtime can be made"));
        let kubelet =
            runtime.block_on(async { Kubelet::start(Path::new(DIRECTORY), Options::default()) });
        let knows = || kubelet.capacity(RESOURCE);
        let known = eventually(LIMIT, || knows().0 == DEVICES && knows().1 >= healthy);
        assert!(
            known,
            "the kubelet may give out {:?} of {DEVICES} devices: {:#}",
            knows(),
            report()
        );
        Self { runtime, kubelet }
    }

    /// Admits two pods with a device each: one that is only admitted, and one that is run.
    pub(crate) fn begin(&self, node: &GuestNode) {
        let boot = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        for (kind, runs) in [("waits", false), ("runs", true)] {
            let name = format!("{kind}-{boot}");
            let given = self
                .runtime
                .block_on(self.kubelet.admit(&name, "main", &[(RESOURCE, 1)]));
            let given = RecordedLease::of(&given.expect("there is a device"));
            note(&format!(
                "lease {name} {} {} {}",
                given.slot, given.token, given.path
            ));
            if runs {
                note(&format!("using {name}"));
                given
                    .make(node, &name)
                    .unwrap_or_else(|why| panic!("{name}: {why}"));
                assert!(given.is_bound(&name), "{:#}", report());
                note(&format!("bound {name}"));
            }
        }
    }
}

/// Reserves a device that no kubelet has, as a Nomad agent does; the variables of the task.
pub(crate) fn reserve() -> BTreeMap<String, String> {
    let free = |holders: &Vec<SlotHolder>| holders.iter().all(|holder| holder.owner == "nomad");
    let mut holders = holders().into_iter();
    let slot = holders
        .rfind(|(_, holders)| free(holders))
        .expect("a kubelet has two at most")
        .0;
    reserve_slot(&slot).unwrap_or_else(|status| panic!("Reserve of {slot}: {status}"))
}

fn reserve_slot(slot: &str) -> Result<BTreeMap<String, String>, tonic::Status> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = Arc::new(runtime.expect("a runtime can be made"));
    let plugin = PluginProcess::launch(
        &install_plugins(agent_paths()).join("switchyard-device"),
        &socket_args(agent_paths()),
        &runtime,
    );
    let plugin =
        plugin.unwrap_or_else(|failed| panic!("the device plugin does not start: {failed:?}"));
    let request = nomad::ReserveRequest {
        device_ids: vec![slot.to_owned()],
    };
    let mut client = DevicePluginClient::new(plugin.channel());
    let answer = runtime.block_on(client.reserve(request))?.into_inner();
    Ok(answer
        .container_res
        .expect("an agent falls over without it")
        .envs)
}

/// Violations about the leases of the last boot. Afterwards their devices are free, or will be soon.
pub(crate) fn check_after_boot(
    node: &GuestNode,
    noted: &BTreeMap<String, RecordedLease>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    assert!(
        eventually(LIMIT, || holders().len() == DEVICES),
        "the devices are not there: {:#}",
        report()
    );
    let slots = holders();
    let mut held = 0;
    for (slot, holders) in &slots {
        held += holders.len();
        let of_pod = |holder: &SlotHolder| {
            noted
                .values()
                .any(|one| one.slot == *slot && one.token == holder.token)
        };
        // The leases of Nomad tasks are in the agent's state.
        let is_known = |holder: &SlotHolder| holder.owner == "nomad" || of_pod(holder);
        if holders.len() > 1 || !holders.iter().all(is_known) {
            wrong.push(format!(
                "device {slot} is held by {holders:?} after the boot"
            ));
        }
    }
    println!(
        "from before: {} leases of a kubelet's; {held} devices are leased",
        noted.len()
    );
    // All slots but the one that a Nomad task had.
    let leases = LeaseKubelet::start(DEVICES - 1);
    for (name, lease) in noted {
        if let Err(why) = lease.check(node, name, &slots) {
            wrong.push(format!("lease {name} of {}: {why}", lease.slot));
        }
        note(&format!("ended {name}"));
    }
    drop(leases);
    wrong
}

// === impl RecordedLease ===

impl RecordedLease {
    /// The part of an answer that a kubelet records.
    fn of(given: &RunOptions) -> Self {
        let token = given
            .annotations
            .keys()
            .find_map(|key| key.strip_prefix(ANNOTATION));
        Self {
            slot: given.ids[RESOURCE][0].clone(),
            token: token.expect("a lease has a token").to_owned(),
            path: given.devices[0].0.clone(),
            used_by: LeaseUse::None,
        }
    }

    /// Parses a note.
    pub(crate) fn parse(slot: &str, token: &str, path: &str) -> Self {
        Self {
            slot: slot.to_owned(),
            token: token.to_owned(),
            path: path.to_owned(),
            used_by: LeaseUse::None,
        }
    }

    /// Notes what was created with it.
    pub(crate) fn is_used(&mut self, by: LeaseUse) {
        self.used_by = by;
    }

    fn unbound(&self) -> SlotHolder {
        SlotHolder {
            owner: "kubernetes".to_owned(),
            state: "unbound".to_owned(),
            name: String::new(),
            token: self.token.clone(),
        }
    }

    /// Returns whether this pod holds the device by this lease, and nobody else holds it.
    fn is_bound(&self, pod: &str) -> bool {
        let has = |holder: &SlotHolder| {
            holder.state == "bound" && holder.name.contains(pod) && holder.token == self.token
        };
        matches!(holders()[&self.slot].as_slice(), [holder] if has(holder))
    }

    /// Creates a pod with the lease, as a kubelet does from its checkpoint, and checks that its container has
    /// the device; the pod's id.
    fn make(&self, node: &GuestNode, name: &str) -> Result<String, String> {
        let message = |status: tonic::Status| status.to_string();
        let mut config = node.pod_config(name);
        config.metadata.get_or_insert_default().uid = name.to_owned();
        note(&format!("begin {name}"));
        let pod = node.cri.run_pod(&config).map_err(message)?;
        note(&format!("pod {name} {pod}"));
        let mut container = node.container("main", ENDLESS_SCRIPT);
        container.annotations = [(format!("{ANNOTATION}{}", self.token), String::new())].into();
        container.devices = vec![cri::Device {
            container_path: "/dev/given".to_owned(),
            host_path: self.path.clone(),
            permissions: "rw".to_owned(),
        }];
        let id = node
            .cri
            .create(&pod, &container, &config)
            .map_err(message)?;
        note(&format!("created {name} {id}"));
        node.cri.start(&id).map_err(message)?;
        note(&format!("started {name} {id}"));
        let seen = node.cri.sh(&id, "test -c /dev/given && echo given");
        if seen == "given" {
            Ok(pod)
        } else {
            Err(format!("its container does not have the device: {seen:?}"))
        }
    }

    /// A lease with which nothing was created is unchanged, and no other owner has the device. A pod that ran
    /// holds its device until the kubelet stops it, as a kubelet does before it starts the pod again with the
    /// same device.
    fn check(
        &self,
        node: &GuestNode,
        name: &str,
        slots: &BTreeMap<String, Vec<SlotHolder>>,
    ) -> Result<(), String> {
        let holders = &slots[&self.slot];
        let expected = match self.used_by {
            LeaseUse::None => *holders == [self.unbound()],
            LeaseUse::Started => true,
            LeaseUse::Pod => self.is_bound(name),
        };
        if !expected {
            return Err(format!(
                "it was answered ({:?}), and the device is held by {holders:?}",
                self.used_by
            ));
        }
        if self.used_by != LeaseUse::Started {
            match reserve_slot(&self.slot) {
                Err(status) if status.message().contains("kubernetes") => {}
                other => return Err(format!("Nomad asks for its device: {other:?}")),
            }
        }
        note(&format!("using {name}"));
        let pods = node.cri.pods().map_err(|status| status.to_string())?;
        for pod in pods
            .iter()
            .filter(|pod| pod.metadata.as_ref().is_some_and(|one| one.uid == name))
        {
            node.cri
                .stop_pod(&pod.id)
                .map_err(|status| format!("its pod cannot be stopped: {status}"))?;
        }
        let name = format!("{name}-again");
        let pod = self.make(node, &name)?;
        let is_bound = self.is_bound(&name);
        let shown = report();
        note(&format!("removing {name}"));
        for answer in [node.cri.stop_pod(&pod), node.cri.remove_pod(&pod)] {
            answer.map_err(|status| format!("its pod cannot be taken away: {status}"))?;
        }
        note(&format!("removed {name}"));
        if is_bound {
            Ok(())
        } else {
            Err(format!(
                "its pod runs again, and does not have it: {shown:#}"
            ))
        }
    }
}

/// The output of `switchyard devices`.
pub(crate) fn report() -> Value {
    let text = run(&["switchyard", "devices", "--output", "json"]);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The holder of each slot.
pub(crate) fn holders() -> BTreeMap<String, Vec<SlotHolder>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let holder = |value: &Value| SlotHolder {
        owner: text(&value["owner"]),
        state: text(&value["state"]),
        name: text(&value["name"]),
        token: text(&value["token"]),
    };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let slots = list(&report()["slots"]).into_iter();
    slots
        .map(|slot| {
            (
                text(&slot["id"]),
                list(&slot["holders"]).iter().map(holder).collect(),
            )
        })
        .collect()
}

/// Checks that one of these variables is the token of a lease that a Nomad task holds, and that the task
/// holds no other slot.
pub(crate) fn is_held_by(task: &str, env: &BTreeMap<String, String>) -> Result<(), String> {
    let holders = holders();
    let of_task = holders
        .values()
        .filter(|all| all.iter().any(|holder| holder.name == task));
    let of_task: Vec<&Vec<SlotHolder>> = of_task.collect();
    let fits = |holder: &SlotHolder| {
        (holder.owner.as_str(), holder.state.as_str()) == ("nomad", "bound")
            && env.values().any(|value| *value == holder.token)
    };
    match of_task.as_slice() {
        [all] if all.len() == 1 && fits(&all[0]) => Ok(()),
        _ => Err(format!("its device is held otherwise: {holders:?}")),
    }
}
