//! Disks of logs and of containerd.

use std::fs;
use std::time::Duration;

use crate::bad_disks::FilledDisk;
use crate::drill::fuse::Fuse;
use crate::drill::incident::{Incident, Sign};
use crate::drill::load::Load;
use crate::drill::node::DrillNode;
use crate::image::{busybox, random_layer};
use crate::root::PrivateRoot;

/// The time of a write: just less than what is taken for a hanging disk.
const SLOW_WRITE: Duration = Duration::from_millis(1900);
/// Pause between two looks at the progress of an application.
const PROGRESS: Duration = Duration::from_secs(5);
/// Orders of which a container that nothing holds up handles many times more within that time.
const FEW: u64 = 500;
/// An application that logs a thousand bytes for each order, and counts them.
const ORDERS: &str = "pad=$(head -c 960 /dev/zero | tr '\\0' .); n=0; \
    while :; do n=$((n+1)); echo \"order $n accepted $pad\"; echo $n >/count; done";

/// A disk with logs is slow.
///
/// # Panics
/// When the disk cannot be mounted.
pub(crate) fn slow_logs(node: &DrillNode) -> Incident {
    let volume = node.root().log_dir().join("vol1");
    let disk = Fuse::mount_as("store01:/export/logs", volume.clone());
    let mut config = node.pod_config("shop", "orders-1");
    let logs = volume.join("shop_orders-1");
    fs::create_dir(&logs).expect("the disk can be written");
    config.log_directory = logs.display().to_string();
    let app = node.test_node().container("app", &["sh", "-c", ORDERS]);
    let pod = node.run(config, app);
    disk.delay_writes(SLOW_WRITE);
    let cri = node.cri().with_timeout(PROGRESS);
    let report = node.report().clone();
    let mut last = None;
    let probes = Load::start(PROGRESS, move || {
        match cri.exec(&pod.container, &["cat", "/count"], 5) {
            Ok(answer) => {
                let text = String::from_utf8_lossy(&answer.stdout).into_owned();
                // The application may be about to write it.
                let Ok(count) = text.trim().parse::<u64>() else {
                    return;
                };
                let handled = last.map(|last| count.saturating_sub(last));
                if let Some(handled) = handled.filter(|handled| *handled < FEW) {
                    let text = format!("Liveness probe failed: {handled} orders within 5 s");
                    report.say(&pod.name, &text);
                }
                last = Some(count);
            }
            Err(status) => report.say_failure(&pod.name, "Liveness probe errored", &status),
        }
    });
    Incident::new("orders-1", Sign::Reported(3))
        .with(probes)
        .with(disk)
}

/// Puts the directory of containerd on a disk of its own.
pub(crate) fn with_small_disk(root: &PrivateRoot) -> String {
    root.small_disk(&root.state().join("containerd"), "size=160m,mode=0711");
    String::new()
}

/// The disk of containerd is used to 95 %: images do not fit any more.
pub(crate) fn nearly_full(node: &DrillNode) -> Incident {
    let file = node.root().state().join("containerd/containerd.log.1");
    let filling = FilledDisk::up_to(file, 95);
    let registry = node.test_node().registry();
    let image = busybox().layer(random_layer(12 << 20, 4711)).build();
    registry.push("shop/search:3", &image);
    let image = registry.reference("shop/search:3");
    let pulls = node.pulling("shop/search-1", &image, None, Duration::from_secs(60));
    Incident::new("search", Sign::Reported(4))
        .with(pulls)
        .with(filling)
}
