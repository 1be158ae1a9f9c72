//! Load for a power cut: pods, Nomad tasks and images are created and removed, and everything that the daemon
//! has acknowledged is noted on the host. Device leases are taken beside that, and an upgrade of the package is in its postinst.
//!
//! A note is on the host once it is written, and so outlives the guest. `begin` and `removing` are noted
//! before a call, the others after its answer.

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1alpha2 as old;
use switchyard_tests::cri::image_spec;
use switchyard_tests::image::{LayerBuilder, busybox, digest};

use crate::interrupted::HeldUpgrade;
use crate::leases::LeaseKubelet;
use crate::node::GuestNode;
use crate::tasks::{ENDLESS_SCRIPT, TaskAgent};

/// The number of concurrent clients that create and remove pods.
const CLIENTS: u64 = 3;
/// The networks of the Nomad tasks; each has its own client.
const NETWORKS: [&str; 2] = ["host", "bridge"];
/// Maximum duration of the load; the host cuts the power much earlier.
const LIMIT: Duration = Duration::from_secs(600);
/// The size of the file in each image, in bytes.
const FILE: usize = 400_000;
/// The image of containers with a volume, which is initialised with its file.
const IMAGE: &str = "library/kept:latest";

/// Writes one line to the host. One write, so that lines of several threads are not mixed.
pub(crate) fn note(text: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("note {text}\n").as_bytes())
        .expect("the host listens");
    out.flush().expect("the host listens");
}

pub(crate) fn run(seed: u64) -> ExitCode {
    let node = GuestNode::start();
    let tasks = TaskAgent::start(&node);
    let layer =
        LayerBuilder::default()
            .dir("kept", 0o755)
            .file("kept/file", volume_content(), 0o644);
    node.registry
        .push(IMAGE, &busybox().layer(layer.build_uncompressed()).build());
    let pulled = node.cri.pull(&node.registry.reference(IMAGE), None);
    pulled.unwrap_or_else(|status| panic!("PullImage: {status}"));
    let boot = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    // The power is usually cut during the next starts.
    let standing = NETWORKS.map(|network| (network, tasks.start_endless(network)));
    let kubelet = LeaseKubelet::start(2);
    kubelet.begin(&node);
    let with_device = tasks.start_with_device();
    let upgrade = HeldUpgrade::in_postinst();
    note("upgrading");
    println!("guest: load begins");
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let node = &node;
            scope.spawn(move || pods(node, &format!("{boot}-{client}"), seed.wrapping_add(client)));
        }
        for (network, first) in standing {
            let tasks = &tasks;
            scope.spawn(move || tasks.load(network, first, LIMIT));
        }
        scope.spawn(|| images(&node, boot));
    });
    drop((kubelet, with_device, upgrade));
    println!("power was not cut within {LIMIT:?}");
    ExitCode::FAILURE
}

/// Leaves pods, running Nomad tasks and device leases for the boot after an orderly restart.
pub(crate) fn run_until_restart() -> ExitCode {
    let node = GuestNode::start();
    LeaseKubelet::start(2).begin(&node);
    TaskAgent::start(&node).leave();
    let config = node.pod_config("left");
    let name = config.metadata.clone().unwrap_or_default().uid;
    note(&format!("begin {name}"));
    let pod = node
        .cri
        .run_pod(&config)
        .unwrap_or_else(|status| panic!("RunPodSandbox: {status}"));
    note(&format!("pod {name} {pod}"));
    let made = node
        .cri
        .create(&pod, &node.container("main", ENDLESS_SCRIPT), &config);
    let id = made.unwrap_or_else(|status| panic!("CreateContainer: {status}"));
    note(&format!("created {name} {id}"));
    node.cri
        .start(&id)
        .unwrap_or_else(|status| panic!("StartContainer: {status}"));
    note(&format!("started {name} {id}"));
    ExitCode::SUCCESS
}

/// The content of the file in each volume.
pub(crate) fn volume_content() -> Vec<u8> {
    b"kept ".repeat(20_000)
}

/// A container that is not removed, with a named volume that is initialised with the image's file.
fn with_volume(node: &GuestNode, name: &str, volume: &str) -> old::ContainerConfig {
    let mount = old::Mount {
        container_path: "/kept".to_owned(),
        name: volume.to_owned(),
        ..Default::default()
    };
    old::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: name.to_owned(),
            attempt: 0,
        }),
        image: Some(image_spec(&node.registry.reference(IMAGE))),
        command: ["sleep", "1000"].map(str::to_owned).to_vec(),
        mounts: vec![mount],
        log_path: format!("{name}.log"),
        ..Default::default()
    }
}

/// Creates pods with one or two containers, some of them started or stopped, every other pod with a volume,
/// and removes those created a while ago.
fn pods(node: &GuestNode, client: &str, mut random: u64) {
    let begin = std::time::Instant::now();
    let mut standing = Vec::new();
    let mut number = 0;
    while begin.elapsed() < LIMIT {
        number += 1;
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let name = format!("{client}-{number}");
        let mut config = node.pod_config(&name);
        config.metadata.get_or_insert_default().uid = name.clone();
        note(&format!("begin {name}"));
        let pod = node
            .cri
            .run_pod(&config)
            .unwrap_or_else(|status| panic!("RunPodSandbox: {status}"));
        note(&format!("pod {name} {pod}"));
        for container in 0..=(random >> 40) % 2 {
            let script = if (random >> 50).is_multiple_of(4) {
                "exit 3"
            } else {
                "exec sleep 1000"
            };
            let main = format!("c{container}");
            let has_volume = container == 0 && number % 2 == 1;
            let made = if has_volume {
                node.cri
                    .create_v1alpha2(&pod, &with_volume(node, &main, &name))
            } else {
                node.cri
                    .create(&pod, &node.container(&main, script), &config)
            };
            let id = made.unwrap_or_else(|status| panic!("CreateContainer: {status}"));
            note(&format!("created {name} {id}"));
            if has_volume {
                note(&format!("volume {name}"));
            }
            if !(random >> 45).is_multiple_of(5) {
                node.cri
                    .start(&id)
                    .unwrap_or_else(|status| panic!("StartContainer: {status}"));
                note(&format!("started {name} {id}"));
            }
        }
        standing.push((name, pod));
        if standing.len() > 1 + usize::from((random >> 33).is_multiple_of(2)) {
            let (name, pod) = standing.remove(0);
            note(&format!("removing {name}"));
            node.cri
                .stop_pod(&pod)
                .unwrap_or_else(|status| panic!("StopPodSandbox: {status}"));
            node.cri
                .remove_pod(&pod)
                .unwrap_or_else(|status| panic!("RemovePodSandbox: {status}"));
            note(&format!("removed {name}"));
            remove_volume(node, &name);
        }
    }
}

/// Removes a volume, if one has this name.
pub(crate) fn remove_volume(node: &GuestNode, name: &str) {
    note(&format!("unnaming {name}"));
    node.cri
        .remove_volume(name)
        .unwrap_or_else(|status| panic!("RemoveVolume: {status}"));
    note(&format!("unnamed {name}"));
}

/// Pulls images that were not pulled before.
fn images(node: &GuestNode, boot: u64) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let begin = std::time::Instant::now();
    while begin.elapsed() < LIMIT {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut bytes = format!("{boot}-{number} ").repeat(FILE / 16);
        bytes.truncate(FILE);
        let sum = digest(bytes.as_bytes());
        let layer = LayerBuilder::default()
            .file("data", bytes, 0o644)
            .build_uncompressed();
        let name = format!("images/i{boot}-{number}:latest");
        node.registry.push(&name, &busybox().layer(layer).build());
        let reference = node.registry.reference(&name);
        node.cri
            .pull(&reference, None)
            .unwrap_or_else(|status| panic!("PullImage: {status}"));
        note(&format!("image {reference} {sum}"));
    }
}
