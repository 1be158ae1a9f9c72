//! The node whose daemon is restarted: a worker of a swarm, with tasks that its manager must not replace.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_tests::cri::Cri;
use switchyard_tests::host::eventually;
use switchyard_tests::image::{busybox, random_layer};
use switchyard_tests::leak_scan::LeakScan;
use switchyard_tests::prereq::CNI_BIN_DIR;
use switchyard_tests::registry::Registry;
use switchyard_tests::root::PrivateRoot;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::worker::SwarmWorker;

use super::load::{LoadTarget, SLOW};
use crate::failure::Failure;

/// Tasks of the service.
const TASKS: usize = 4;
/// The service.
const SERVICE: &str = "kept";
/// The image that containers run.
const IMAGE: &str = "library/busybox:1";
/// The image that is pulled.
const PULLED: &str = "upgrade/pulled:1";
/// Size of the layer of that one.
const PULLED_SIZE: usize = 20_000_000;
/// Limit for the daemon to clean up after the last restart.
const CLEAR_LIMIT: Duration = Duration::from_secs(30);

/// The plugin at the end of the chain: it takes five seconds for pods of one client, and passes on the result of the plugin before it,
/// which is the last key of its input before the type.
const PLUGIN: &str = r#"#!/bin/sh
input=$(cat)
case $CNI_COMMAND,$CNI_ARGS in
ADD,*K8S_POD_NAME=SLOW-* | DEL,*K8S_POD_NAME=SLOW-*) sleep 5 ;;
esac
[ "$CNI_COMMAND" = ADD ] || exit 0
echo "$input" | sed -e 's/.*"prevResult"://' -e 't next' -e ':next' -e 's/,"type":"slow".*//' -e t -e 's/}$//'
"#;

/// The node and what it needs. Dropping it ends and removes everything.
#[derive(Debug)]
pub(super) struct RestartedNode {
    worker: SwarmWorker,
    registry: Registry,
    // Last: its drop removes the network namespace of the others.
    cluster: SwarmCluster,
}

// === impl RestartedNode ===

impl RestartedNode {
    /// Starts it. It joins the swarm, and all tasks of the service run.
    pub(super) fn start() -> Result<Self, Failure> {
        let cluster = SwarmCluster::new();
        let started = cluster.within(|| {
            let registry = Registry::start();
            registry.push(IMAGE, &busybox().build());
            let pulled = busybox().layer(random_layer(PULLED_SIZE, 1)).build();
            registry.push(PULLED, &pulled);
            registry
        });
        let registry = started
            .join()
            .map_err(|_| "the registry did not start: see above")?;
        let worker = SwarmWorker::start(&cluster, with_slow_plugin);
        let node = Self {
            worker,
            registry,
            cluster,
        };
        let image = node.registry.reference(IMAGE);
        Cri::new(&node.worker.root().cri_socket()).pull(&image, None)?;
        node.worker
            .join(&node.cluster, &node.cluster.token("worker"));
        node.create_service(&image);
        node.cluster
            .wait_until("all tasks run", || node.running_tasks().len() == TASKS);
        Ok(node)
    }

    fn create_service(&self, image: &str) {
        let replicas = TASKS.to_string();
        self.cluster.docker(&[
            "service",
            "create",
            "--detach",
            "--no-resolve-image",
            "--constraint",
            "node.role==worker",
            "--network",
            "host",
            "--stop-grace-period",
            "100ms",
            "--replicas",
            &replicas,
            "--name",
            SERVICE,
            image,
            "sleep",
            "100000",
        ]);
    }

    /// The node, as far as clients know it.
    pub(super) fn target(&self) -> LoadTarget {
        let root = self.worker.root();
        LoadTarget {
            run: root.run(),
            logs: root.log_dir(),
            cgroup_parent: root.cgroup_parent(),
            image: self.registry.reference(IMAGE),
            pulled: self.registry.reference(PULLED),
            agent: root.into(),
        }
    }

    /// Restarts the daemon by SIGTERM, and waits until it is ready.
    pub(super) fn restart(&mut self) {
        self.worker.daemon().restart();
    }

    /// The ids of the service's tasks that run, as the manager knows them.
    pub(super) fn running_tasks(&self) -> BTreeSet<String> {
        let format = "{{.ID}} {{.CurrentState}}";
        let list =
            self.cluster
                .docker(&["service", "ps", "--no-trunc", "--format", format, SERVICE]);
        list.lines()
            .filter_map(|task| task.split_once(" Running "))
            .map(|(id, _)| id.to_owned())
            .collect()
    }

    /// Waits until the manager has a session with the node.
    pub(super) fn wait_for_session(&self) {
        self.cluster.wait_until("a session is open", || {
            self.worker.status()["manager"] == self.cluster.address(0)
        });
    }

    /// Removes the service, and returns what is left on the node.
    pub(super) fn end(self) -> Vec<String> {
        self.cluster.docker(&["service", "rm", SERVICE]);
        let mut left = Vec::new();
        eventually(CLEAR_LIMIT, || {
            left = LeakScan::of(self.worker.root()).findings;
            left.is_empty()
        });
        left
    }
}

/// Lets the network of pods end with the plugin; returns the configuration for it.
fn with_slow_plugin(root: &PrivateRoot) -> String {
    let dir = root.path().join("cni/slow");
    fs::create_dir_all(&dir).expect("the root can be written");
    let plugin = dir.join("slow");
    fs::write(&plugin, PLUGIN.replace("SLOW", SLOW)).expect("the root can be written");
    fs::set_permissions(&plugin, Permissions::from_mode(0o755)).expect("the file is ours");
    let file = root.cni_conf().join("10-test.conflist");
    let text = fs::read(&file).expect("the root has written it");
    let mut list: Value = serde_json::from_slice(&text).expect("it is JSON");
    let plugins = list["plugins"].as_array_mut().expect("it is a list");
    plugins.push(json!({ "type": "slow" }));
    fs::write(&file, list.to_string()).expect("the root can be written");
    format!("[network]\nbin_dirs = [{dir:?}, {CNI_BIN_DIR:?}]\n")
}
