//! Processes of pods: such as cannot end, are killed, or cannot be started.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use switchyard_proto::cri::v1 as cri;

use crate::bad_disks::FrozenDisk;
use crate::cri::limits;
use crate::drill::incident::{Incident, Sign};
use crate::drill::load::Load;
use crate::drill::node::DrillNode;
use crate::host::{cgroups, eventually, processes};
use crate::root::PrivateRoot;

/// A limit of memory that an application exceeds at times.
const LITTLE_MEMORY: i64 = 24 << 20;
/// A process that needs more memory than that.
const LARGE: &str = "dd if=/dev/zero of=/dev/null bs=64M count=1";
/// Time for a process to come to its state.
const SOON: Duration = Duration::from_secs(30);

/// A limit on the processes of all pods. Dropping this removes it.
#[derive(Debug)]
struct ProcessLimit(PathBuf);

impl Drop for ProcessLimit {
    fn drop(&mut self) {
        // The group may be gone.
        let _ = fs::write(&self.0, "max");
    }
}

/// Makes the disk of a volume.
pub(crate) fn with_volume(root: &PrivateRoot) -> String {
    // The root unmounts it.
    let _ = root.ext4_disk(&root.path().join("volumes/data"));
    String::new()
}

/// A process waits in the kernel for the disk of its volume: its pod cannot be stopped.
///
/// # Panics
/// When the process does not come to wait.
pub(crate) fn cannot_end(node: &DrillNode) -> Incident {
    let volume = node.root().path().join("volumes/data");
    let script = "while :; do date >>/data/journal; sleep 0.2; done";
    let pod = node.app_with("pay", "ledger-1", script, |app| {
        app.mounts.push(mount(&volume, "/data"));
    });
    let frozen = FrozenDisk::new(&volume);
    let root = node.root().path();
    let waits = || {
        let all = processes::belonging_to(root);
        all.iter()
            .any(|process| processes::waits_in_kernel(process.pid))
    };
    assert!(eventually(SOON, waits), "no process waits for the disk");
    Incident::new("ledger-1", Sign::Reported(1))
        .with(node.stopping(&pod))
        .with(frozen)
}

fn mount(volume: &Path, inside: &str) -> cri::Mount {
    cri::Mount {
        container_path: inside.to_owned(),
        host_path: volume.display().to_string(),
        ..Default::default()
    }
}

/// The kernel kills children of one pod, whose main process lives.
pub(crate) fn children_are_killed(node: &DrillNode) -> Incident {
    let script = format!(
        "n=0; while :; do n=$((n+1)); {LARGE} 2>/dev/null || echo \"report $n failed\"; sleep 1; done"
    );
    let pod = node.app_with("batch", "reports-1", &script, |app| {
        limits(app).memory_limit_in_bytes = LITTLE_MEMORY;
    });
    let report = node.report().clone();
    let log = Path::new(&pod.config.log_directory).join("app.log");
    let mut seen = 0;
    let reader = Load::start(Duration::from_secs(1), move || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let failures: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("failed"))
            .collect();
        for line in failures.iter().skip(seen) {
            report.say(&pod.name, line);
        }
        seen = failures.len();
    });
    Incident::new("reports-1", Sign::Reported(3)).with(reader)
}

/// The main process of a container was killed for memory. Its successor runs, and the daemon was upgraded since.
///
/// # Panics
/// When the container does not end, or its successor does not start.
pub(crate) fn was_killed_and_replaced(node: &DrillNode) -> Incident {
    let cache = node.root().path().join("volumes/cache");
    fs::create_dir_all(&cache).expect("the root can be written");
    let script = format!(
        "sleep 2; if [ ! -e /cache/warm ]; then : >/cache/warm; exec {LARGE}; fi; exec sleep 100000"
    );
    let pod = node.app_with("pay", "ledger-1", &script, |app| {
        app.mounts.push(mount(&cache, "/cache"));
        limits(app).memory_limit_in_bytes = LITTLE_MEMORY;
    });
    let ended = node.cri().wait_exit(&pod.container);
    assert_ne!(ended.exit_code, 0, "{ended:?}");
    let mut app = pod.app.clone();
    if let Some(metadata) = &mut app.metadata {
        metadata.attempt = 1;
    }
    let next = node.cri().create(&pod.id, &app, &pod.config);
    let next = next.expect("it is created");
    node.cri().start(&next).expect("it starts");
    node.cri()
        .remove(&pod.container)
        .expect("what has ended can be removed");
    node.report()
        .say(&pod.name, "container app: restart count 1");
    node.restart_daemon();
    Incident::new("ledger-1", Sign::Reported(1))
}

/// The pods may have no more processes.
///
/// # Panics
/// When the kernel does not limit processes.
pub(crate) fn too_many(node: &DrillNode) -> Incident {
    let pod = node.app("batch", "worker-1", "exec sleep 100000");
    let groups = cgroups::named(&node.root().cgroup_name());
    let group = groups
        .iter()
        .find(|group| group.join("pids.max").exists())
        .expect("the pods have a parent group, whose processes are limited");
    let current = fs::read_to_string(group.join("pids.current")).expect("it was just found");
    let current: u64 = current.trim().parse().expect("it is a number");
    let limit = ProcessLimit(group.join("pids.max"));
    fs::write(&limit.0, (current + 2).to_string()).expect("root can limit a group");
    let script = "while :; do sleep 1 & sleep 1 & sleep 1 & sleep 1 & wait; done";
    let app = node.test_node().container("task", &["sh", "-c", script]);
    let starts = node.starting(&pod, app, Duration::from_secs(2));
    Incident::new("worker-1", Sign::Reported(2))
        .with(starts)
        .with(limit)
}
