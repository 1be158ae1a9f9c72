//! Registries and images.

use std::time::Duration;

use serde_json::json;
use switchyard_proto::cri::v1 as cri;

use crate::cri::Cri;
use crate::drill::incident::{Incident, Sign};
use crate::drill::load::Load;
use crate::drill::node::DrillNode;
use crate::image::{busybox, random_layer};
use crate::nomad::{Agent, TaskSetup};
use crate::registry::Registry;
use crate::registry_proxy::{Access, RegistryFault};

/// The size of an image, in bytes.
const SIZE: usize = 12 << 20;
/// Bytes a second of a slow registry: the image takes ten minutes.
const RATE: usize = 20_000;
/// Time for which a kubelet waits for an image.
const PULL_LIMIT: Duration = Duration::from_secs(1800);
/// Requests that are slow: more than an incident makes.
const REQUESTS: usize = 1000;

/// One of two registries is slow.
pub(crate) fn slow_registry(node: &DrillNode) -> Incident {
    let registry = Registry::start_behind_proxy(Access::Open);
    let image = busybox().layer(random_layer(SIZE, 1401)).build();
    registry.push("shop/cart:14", &image);
    for _ in 0..REQUESTS {
        registry
            .proxy()
            .add_fault("/blobs/", RegistryFault::Drip(RATE));
    }
    let reference = registry.reference("shop/cart:14");
    let slow = node.pulling("shop/cart-1", &reference, None, PULL_LIMIT);
    // The other one works as ever.
    let image = busybox().layer(random_layer(1 << 20, 1402)).build();
    let other = node.test_node().registry();
    other.push("shop/mail:2", &image);
    let reference = other.reference("shop/mail:2");
    let others = node.pulling("shop/mail-1", &reference, None, PULL_LIMIT);
    Incident::new("cart", Sign::Alert("SwitchyardOperationStuck"))
        .with(slow)
        .with(others)
        .with(registry)
}

/// The password that pods pull with is not the registry's any more.
pub(crate) fn old_password(node: &DrillNode) -> Incident {
    let registry = Registry::start_behind_proxy(Access::Bearer {
        credentials: Some(("robot-pay".to_owned(), "w8-2026-autumn".to_owned())),
    });
    registry.push("pay/api:7", &busybox().build());
    let auth = cri::AuthConfig {
        username: "robot-pay".into(),
        password: "w8-2026-spring".into(),
        ..Default::default()
    };
    let image = registry.reference("pay/api:7");
    let pulls = node.pulling("pay/api-1", &image, Some(auth), PULL_LIMIT);
    Incident::new("api", Sign::Alert("SwitchyardPullsFail"))
        .with(pulls)
        .with(registry)
}

/// Images that the kubelet removes are held by tasks of Nomad, so that no space becomes free.
///
/// # Panics
/// When a task does not start.
pub(crate) fn held_by_others(node: &DrillNode) -> Incident {
    let agent = Agent::start(node.root(), &json!({}));
    let registry = node.test_node().registry();
    let mut images = Vec::new();
    let mut tasks = Vec::new();
    for (name, seed) in [("batch/report:5", 2101), ("batch/train:8", 2102)] {
        let image = busybox().layer(random_layer(4 << 20, seed)).build();
        registry.push(name, &image);
        let reference = registry.reference(name);
        let config = json!({
            "image": reference, "command": "sleep", "args": ["100000"], "network_mode": "host",
        });
        let mut task = TaskSetup::new(node.root(), &agent, "batch", &config);
        task.config.job_name = "nightly".to_owned();
        agent.driver().start(&task.config).expect("it starts");
        node.cri().pull(&reference, None).expect("it can be pulled");
        images.push(reference);
        tasks.push(task);
    }
    let cri = node.cri().clone();
    let report = node.report().clone();
    let collections = Load::start(Duration::from_secs(5), move || {
        let before = used_bytes(&cri);
        for image in &images {
            if let Err(status) = cri.remove_image(image) {
                report.say_failure("node", "FreeDiskSpaceFailed: image removal", &status);
            }
        }
        let freed = before.saturating_sub(used_bytes(&cri));
        let text =
            format!("ImageGCFailed: wanted to free 8388608 bytes, but freed {freed} bytes space");
        report.say("node", &text);
    });
    Incident::new("nightly", Sign::Reported(2))
        .with(collections)
        .with_all(tasks)
        .with(agent)
}

/// The bytes of images, as the kubelet sees them.
fn used_bytes(cri: &Cri) -> u64 {
    let answer =
        cri.images(async |mut client| client.image_fs_info(cri::ImageFsInfoRequest {}).await);
    let systems = answer.map(|answer| answer.image_filesystems);
    let systems = systems.unwrap_or_default();
    systems
        .iter()
        .filter_map(|system| system.used_bytes.as_ref())
        .map(|bytes| bytes.value)
        .sum()
}
