//! Exports of a real NFS server, the kernel's own, as volumes of a Nomad task: it reads and writes them through a restart of
//! the daemon, only the task sees the mounts, and none is left.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use switchyard_tests::host::eventually;
use switchyard_tests::nomad::{Agent, TaskRunner, TaskSetup};

use crate::daemon::kill_main;
use crate::node::{GuestFact, GuestNode, LIMIT, run, try_run};
use crate::nomad::{agent_paths, task};

pub(crate) const FACTS: &[GuestFact] = &[(
    "nomad_task_uses_exports_of_an_nfs_server_and_leaves_no_mount",
    task_uses_exports,
)];

/// The exported directory.
const EXPORT: &str = "/srv/guest-export";

/// The file systems of the kernel's NFS client, after a line of headings.
const CLIENT_VOLUMES: &str = "/proc/fs/nfsfs/volumes";

/// Runs until it is told to end.
const UNTIL_END: &str = "while [ ! -e /local/end ]; do sleep 0.2; done";

/// The options of a client that fails instead of waiting for ever: a fact that fails leaves the others in peace.
const BOUNDED: &str = "soft,timeo=100,retrans=2";

/// A server of NFS 4 with one export for this machine, until it is dropped.
struct NfsServer {
    /// Process that answers the kernel's questions about exports.
    /// `None` until it runs.
    mountd: Option<Child>,
}

impl NfsServer {
    /// Starts the server. No client may open a file for the first seconds, in which those of before could reclaim theirs.
    fn start() -> Self {
        let mut server = Self { mountd: None };
        fs::create_dir_all(EXPORT).expect("the disk can be written");
        let only_4 = ["--no-nfs-version", "3"];
        let times = ["--lease-time", "10", "--grace-time", "10"];
        run(&[&["rpc.nfsd"][..], &only_4, &times, &["2"]].concat());
        let mountd = Command::new("rpc.mountd")
            .args(["--foreground", "--no-nfs-version", "2"])
            .args(only_4)
            .stdin(Stdio::null())
            .spawn();
        server.mountd = Some(mountd.expect("the image has it"));
        let options = "rw,no_root_squash,no_subtree_check";
        run(&["exportfs", "-o", options, &format!("127.0.0.1:{EXPORT}")]);
        server
    }
}

impl Drop for NfsServer {
    fn drop(&mut self) {
        // Also after a failure, of which this must hide nothing.
        try_run(&["exportfs", "-ua"]);
        try_run(&["rpc.nfsd", "0"]);
        if let Some(mountd) = &mut self.mountd {
            let _ = mountd.kill();
            let _ = mountd.wait();
        }
        let _ = fs::remove_dir_all(EXPORT);
    }
}

/// A volume of the driver `local` with these options, at a path of the task.
fn volume(target: &str, kind: &str, options: &str) -> Value {
    let driver = json!({
        "name": "local",
        "options": [{
            "type": kind,
            "device": format!(":{EXPORT}"),
            "o": format!("addr=127.0.0.1,{BOUNDED},{options}"),
        }],
    });
    json!({ "type": "volume", "target": target, "volume_options": { "driver_config": driver } })
}

/// The output of a shell in the task.
#[track_caller]
fn sh(agent: &Agent, task: &TaskSetup, script: &str) -> String {
    let output = agent
        .driver()
        .exec(task.id(), &["sh", "-c", script], LIMIT)
        .unwrap_or_else(|status| panic!("{script}: {status}"));
    assert_eq!(output.code, 0, "{script}: {output:?}");
    output.stdout.trim_end().to_owned()
}

/// The lines of the mounts that this process sees, of NFS.
fn mounts_of_nfs() -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the kernel has it");
    let of_nfs = |line: &&str| line.contains(" - nfs ") || line.contains(" - nfs4 ");
    mounts.lines().filter(of_nfs).map(str::to_owned).collect()
}

/// The number of file systems of the kernel's client.
fn client_volumes() -> usize {
    let volumes = fs::read_to_string(CLIENT_VOLUMES).unwrap_or_default();
    volumes.lines().skip(1).count()
}

fn task_uses_exports(node: &GuestNode) {
    let server = NfsServer::start();
    let exported = Path::new(EXPORT);
    fs::write(exported.join("seed"), "of the server\n").expect("the disk can be written");
    let agent = Agent::start(agent_paths(), &json!({ "volumes": { "enabled": true } }));
    let agent = Arc::new(agent);
    let mounts = json!({
        "mounts": [
            volume("/data", "nfs", "vers=4.2"),
            volume("/data4", "nfs4", "rw"),
            volume("/fixed", "nfs4", "ro"),
        ],
    });
    let mut task = task(&agent, &node.image(), UNTIL_END, mounts);
    let started = agent.driver().start(&task.config);
    let started = started.unwrap_or_else(|status| panic!("{status}"));
    let runner = TaskRunner::start(&agent, started.handle.expect("it has a handle"));
    assert_eq!(mounts_of_nfs(), [""; 0], "only the task has them");
    assert!(client_volumes() >= 1, "nothing is mounted");
    for path in ["/data", "/data4", "/fixed"] {
        assert_eq!(
            sh(&agent, &task, &format!("cat {path}/seed")),
            "of the server"
        );
    }
    sh(
        &agent,
        &task,
        "echo one > /data/one; echo two > /data4/two; chown 33:33 /data/one",
    );
    let refused = "touch /fixed/three 2>/dev/null || echo refused";
    assert_eq!(sh(&agent, &task, refused), "refused");
    let content = |name: &str| fs::read_to_string(exported.join(name)).unwrap_or_default();
    assert_eq!(
        (content("one").as_str(), content("two").as_str()),
        ("one\n", "two\n")
    );
    assert!(!exported.join("three").exists());
    kill_main("switchyard");
    node.wait_ready();
    runner.wait_recovered(1);
    assert_eq!(
        sh(
            &agent,
            &task,
            "echo again >> /data/one; cat /data4/two /data/one"
        ),
        "two\none\nagain"
    );
    assert_eq!(content("one"), "one\nagain\n");
    fs::write(task.task_dir().join("local/end"), "").expect("the disk can be written");
    let ended = runner.join();
    assert_eq!(ended.result.exit_code, 0, "{ended:?}");
    let destroyed = agent.driver().destroy(task.id(), true);
    destroyed.expect("it can be destroyed");
    task.remove_cgroups();
    let is_left = || client_volumes() > 0 || !mounts_of_nfs().is_empty();
    assert!(
        eventually(LIMIT, || !is_left()),
        "{} file systems are mounted: {:?}",
        client_volumes(),
        mounts_of_nfs()
    );
    // The files are the server's, and stay.
    assert_eq!(content("one"), "one\nagain\n");
    drop(server);
}
