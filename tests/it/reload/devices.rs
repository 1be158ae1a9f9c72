//! Keys of devices: groups, quotas, the kubelet that they are offered to, and the host of vendors' plugins.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use switchyard_kubelet::vendor::VendorPlugin;
use switchyard_kubelet::{Kubelet, Options};
use switchyard_tests::host::eventually;
use switchyard_tests::http;
use switchyard_tests::node::TestNode;
use tokio::runtime::Runtime;
use tonic::Code;

use super::{apply, keys, reload};
use crate::nomad::devices::{LaunchedDevicePlugin, make_device};

/// Time for something to show.
const SOON: Duration = Duration::from_secs(20);
/// The group's resource name for kubelets.
const TPU: &str = "acme.com/tpu";
/// The resource that a vendor's plugin registers.
const GPU: &str = "acme.com/gpu";

/// A node with two devices, which the first configuration does not mention.
struct Devices {
    node: TestNode,
    runtime: Runtime,
}

impl Devices {
    fn start() -> Self {
        let node = TestNode::start_configured(|root| {
            let dir = root.path().join("dev");
            std::fs::create_dir(&dir).expect("the root can be written");
            ["acme0", "acme1"]
                .iter()
                .for_each(|name| make_device(&dir.join(name)));
            directories(&root.path().join("kubelet"))
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        Self {
            node,
            runtime: runtime.expect("a runtime can be made"),
        }
    }

    /// The configuration without any group.
    fn base(&self) -> String {
        directories(&self.node.root().path().join("kubelet"))
    }

    /// The configuration with the group of both devices.
    fn group(&self, more: &str) -> String {
        format!(
            "{}[[devices.groups]]\nvendor = \"acme\"\ntype = \"tpu\"\nname = \"v2\"\nresource = \"{TPU}\"\n\
             paths = [\"{}/acme[0-9]\"]\n{more}\n",
            self.base(),
            self.node.root().path().join("dev").display()
        )
    }

    /// The output of `switchyard devices`.
    fn report(&self) -> Value {
        let (_, body) = self.node.daemon().get("/v1/devices");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    /// The ids of the devices and the tokens of their leases.
    fn slots(&self) -> Vec<(String, Option<String>)> {
        let report = self.report();
        let slots = report["slots"].as_array().expect("it is a list");
        let text = |value: &Value| value.as_str().map(str::to_owned);
        slots
            .iter()
            .map(|slot| {
                (
                    text(&slot["id"]).expect("it has an id"),
                    text(&slot["holders"][0]["token"]),
                )
            })
            .collect()
    }

    /// Waits until there are so many devices; their ids.
    #[track_caller]
    fn wait_slots(&self, count: usize) -> Vec<String> {
        assert!(
            eventually(SOON, || self.slots().len() == count),
            "{:#}",
            self.report()
        );
        self.slots().into_iter().map(|(id, _)| id).collect()
    }

    fn held(&self) -> usize {
        self.slots()
            .iter()
            .filter(|(_, lease)| lease.is_some())
            .count()
    }

    /// Ends the lease of a device, as an operator does.
    #[track_caller]
    fn release(&self, id: &str) {
        let slots = self.slots();
        let lease = slots
            .iter()
            .find_map(|(slot, lease)| lease.as_ref().filter(|_| slot == id));
        let path = format!("/v1/devices/leases/{}", lease.expect("it is held"));
        let answer = http::delete_unix(&self.node.root().run().join("admin.sock"), &path);
        assert_eq!(answer.expect("it answers").status, 204);
    }

    /// Waits until the daemon has no such part.
    #[track_caller]
    fn wait_no_part(&self, name: &str) {
        let parts = || self.node.daemon().get("/readyz?verbose").1;
        assert!(eventually(SOON, || !parts().contains(name)), "{}", parts());
    }

    fn kubelet_directory(&self) -> PathBuf {
        self.node.root().path().join("kubelet/device-plugins")
    }
}

fn directories(kubelet: &std::path::Path) -> String {
    format!(
        "[devices.kubelet]\ndirectory = \"{0}/device-plugins\"\n\
         pod_resources_socket = \"{0}/pod-resources/kubelet.sock\"\n",
        kubelet.display()
    )
}

#[test]
fn quota_below_what_is_held_stays_until_freed() {
    let devices = Devices::start();
    assert_eq!(devices.slots(), []);
    apply(&devices.node, &devices.group(""), &["devices.groups"]);
    let ids = devices.wait_slots(2);
    let agent = LaunchedDevicePlugin::launch(devices.node.root());
    for id in &ids {
        agent.reserve(&[id]).expect("there is no quota");
    }
    apply(
        &devices.node,
        &devices.group("quota = { nomad = 1 }"),
        &["devices.groups"],
    );
    assert_eq!(devices.held(), 2, "{:#}", devices.report());
    devices.release(&ids[1]);
    // The inventory with the quota is published by the next scan.
    let mut refused = None;
    assert!(
        eventually(SOON, || {
            refused = agent.reserve(&[&ids[1]]).err();
            if refused.is_none() {
                devices.release(&ids[1]);
            }
            refused.is_some()
        }),
        "{:#}",
        devices.report()
    );
    assert_eq!(
        refused.expect("it was set").code(),
        Code::FailedPrecondition
    );
    devices.release(&ids[0]);
    agent.reserve(&[&ids[1]]).expect("none is held now");
    apply(&devices.node, &devices.base(), &["devices.groups"]);
    assert!(eventually(SOON, || devices
        .slots()
        .iter()
        .all(|(_, lease)| lease.is_some())));
}

#[test]
fn the_kubelet_is_served_while_it_is_enabled() {
    let devices = Devices::start();
    let _entered = devices.runtime.enter();
    let kubelet = Kubelet::start(&devices.kubelet_directory(), Options::default());
    apply(&devices.node, &devices.group(""), &["devices.groups"]);
    let healthy = |count: usize| {
        let what = format!("{count} devices are healthy");
        let waiting = kubelet.wait_until(&what, |kubelet| kubelet.capacity(TPU).1 == count);
        devices.runtime.block_on(waiting);
    };
    healthy(2);
    let disabled = devices
        .group("")
        .replace("[devices.kubelet]", "[devices.kubelet]\nenabled = false");
    apply(&devices.node, &disabled, &["devices.kubelet.enabled"]);
    healthy(0);
    devices.wait_no_part("kubelet devices");
    apply(
        &devices.node,
        &devices.group(""),
        &["devices.kubelet.enabled"],
    );
    healthy(2);
}

#[test]
fn plugins_register_while_their_host_is_enabled() {
    let devices = Devices::start();
    let directory = devices.node.root().path().join("host");
    let host = format!(
        "{}[devices.host]\ndirectory = {directory:?}\nenabled = ",
        devices.base()
    );
    let report = reload(&devices.node, &format!("{host}true\n"));
    assert_eq!(
        keys(&report, "applied"),
        ["devices.host.directory", "devices.host.enabled"],
        "{report:#}"
    );
    assert!(eventually(SOON, || directory.join("kubelet.sock").exists()));
    let vendor = VendorPlugin::start(&directory, "gpu.sock", GPU, &["gpu0", "gpu1"]);
    devices
        .runtime
        .block_on(vendor.register())
        .expect("it is taken");
    devices.wait_slots(2);
    let quota =
        format!("{host}true\nresources = [{{ name = {GPU:?}, quota = {{ nomad = 0 }} }}]\n");
    apply(&devices.node, &quota, &["devices.host.resources"]);
    let agent = LaunchedDevicePlugin::launch(devices.node.root());
    let id = devices.wait_slots(2).remove(0);
    let refused = agent.reserve(&[&id]).expect_err("Nomad may have none");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let report = reload(&devices.node, &format!("{host}false\n"));
    assert_eq!(
        keys(&report, "applied"),
        ["devices.host.enabled", "devices.host.resources"],
        "{report:#}"
    );
    devices.wait_slots(0);
    devices.wait_no_part("device plugins");
}
