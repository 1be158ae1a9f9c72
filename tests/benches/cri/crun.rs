//! Our pods with crun against the CRI plugin's with runc.
//!
//! Debian's crun refuses a node on which both cgroup versions are mounted. So a second daemon, with a
//! containerd of its own, runs in a mount namespace that shows version 2 alone. That has no controllers
//! there, so there are no limits; and where the daemon may not raise how much memory it locks, crun cannot
//! install the device rules, and ignores that only if the rules allow everything: so the pods of both sides
//! are privileged. The node's own mounts are not changed.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use switchyard_tests::daemon::binary;
use switchyard_tests::leak_scan::{LeakScan, NAMESPACE};
use switchyard_tests::prereq;
use switchyard_tests::root::PrivateRoot;

use crate::failure::Failure;
use crate::pair::Pair;
use crate::pods::{self, StartedPod};
use crate::requests::Requests;
use crate::row::{Goal, Row};
use crate::side::{Side, channel};
use crate::test_bed::TestBed;

/// The shell's script in the new mount namespace before it becomes the daemon.
const SCRIPT: &str =
    r#"umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@""#;

/// Limit for its containerd to listen.
const CONTAINERD_LIMIT: Duration = Duration::from_secs(20);

/// The second daemon. Dropping it ends and removes everything of it.
#[derive(Debug)]
pub(crate) struct Crun {
    side: Side,
    requests: Requests,
    child: KilledOnDrop,
    // Last: its drop removes what the others live in.
    root: PrivateRoot,
}

/// A process that is killed when it is dropped.
#[derive(Debug)]
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // It fails only when the process has been waited for already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// === impl Crun ===

impl Crun {
    /// Starts it and pulls the image of the stand.
    pub(crate) async fn start(stand: &TestBed) -> Result<Self, Failure> {
        let root = PrivateRoot::new();
        root.write_config("[containerd]\ndefault_runtime = \"crun\"\n");
        let log = File::create(root.daemon_log())?;
        let child = Command::new(prereq::require("unshare", "util-linux"))
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                SCRIPT,
                "sh",
            ])
            .arg(binary())
            .arg("serve")
            .arg("--config")
            .arg(root.config())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let child = KilledOnDrop(child);
        let socket = root.cri_socket();
        let cri = channel(&socket).await.map_err(|error| {
            let log = fs::read_to_string(root.daemon_log()).unwrap_or_default();
            format!("the daemon in a mount namespace of its own does not serve: {error}; its log:\n{log}")
        })?;
        drop(cri);
        // The daemon serves before its containerd is there.
        let deadline = tokio::time::Instant::now() + CONTAINERD_LIMIT;
        let core = loop {
            match root.containerd_socket() {
                Some(core) => break core,
                None if tokio::time::Instant::now() > deadline => {
                    return Err("the daemon has no containerd socket".into());
                }
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        let mut side = Side::connect(
            "Switchyard with crun",
            &socket,
            NAMESPACE,
            channel(&core).await?,
        )
        .await?;
        side.wait_ready().await?;
        side.pull(&stand.image).await?;
        let requests = Requests {
            logs: root.log_dir(),
            parent: root.cgroup_parent(),
            image: stand.image.clone(),
            limits: false,
            privileged: true,
        };
        Ok(Self {
            side,
            requests,
            child,
            root,
        })
    }

    /// One pod of each side, up and down. Who comes first alternates.
    pub(crate) async fn round(
        &mut self,
        stand: &mut TestBed,
        round: u32,
    ) -> Result<Pair<StartedPod>, Failure> {
        let requests = Requests {
            privileged: true,
            ..Requests::new(stand)
        };
        let theirs = pod(&mut stand.theirs, &requests, round);
        Pair::in_turns(round, theirs, pod(&mut self.side, &self.requests, round)).await
    }

    /// Lists what its pods left behind, after the last one is gone.
    pub(crate) fn leftovers(&self) -> Result<Vec<String>, Failure> {
        let mut found = LeakScan::of(&self.root).findings;
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", self.child.0.id()))?;
        let root = self.root.path().to_string_lossy();
        let mounts = table.lines().filter(|line| line.contains(root.as_ref()));
        found.extend(mounts.map(|line| format!("mount in the namespace of its own: {line}")));
        Ok(found)
    }
}

/// The bound of a pod with crun.
const BOUND: &str = "The CNI plugins and the shim's start stay as they are; crun saves of runc's part alone: --only pods --breakdown\n\
    shows the parts. Tried: shims started ahead of their containers (ADR 13).";

/// Returns the rows of the pods.
pub(crate) fn rows(pods: &[Pair<StartedPod>]) -> Vec<Row> {
    let row = |name: &str, of: fn(&StartedPod) -> Duration| {
        Row::times(
            name,
            pods.iter().map(|pair| Pair {
                theirs: of(&pair.theirs),
                ours: of(&pair.ours),
            }),
        )
    };
    vec![
        row("RunPodSandbox", |up| up.run),
        row("CreateContainer", |up| up.create),
        row("StartContainer", |up| up.start),
        row("= pod up, ours crun, theirs runc", |up| {
            up.run + up.create + up.start
        })
        .goal(Goal::RatioAtMost(0.35))
        .bound(BOUND),
    ]
}

async fn pod(side: &mut Side, requests: &Requests, round: u32) -> Result<StartedPod, Failure> {
    let up = pods::start_pod(side, requests, &format!("crun-{round}")).await?;
    pods::remove_pod(side, &up.pod).await?;
    Ok(up)
}
