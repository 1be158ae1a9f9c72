//! CNI plugins that fail, hang, answer nonsense or are missing, and configurations that are invalid, no files or
//! deleted, or whose file system hangs.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use switchyard_proto::cri::v1::{NamespaceMode, PodSandboxState, VersionRequest};
use switchyard_tests::cri::namespaces;
use switchyard_tests::daemon::Daemon;
use switchyard_tests::host::{eventually, processes};
use switchyard_tests::node::TestNode;
use switchyard_tests::prereq;
use tonic::Code;

use super::{LIMIT, assert_no_leaks_since, assert_not_ready, assert_recovers, refused};

mod faulty_node;

use faulty_node::FaultyCniNode;

/// Time for a call that gives up on a plugin and rolls back the chain.
const SOON: Duration = Duration::from_secs(30);

/// A file system over a directory that answers nobody, until this is dropped: FUSE without a server.
struct HungMount {
    point: PathBuf,
    device: Option<File>,
}

impl HungMount {
    fn over(point: &Path) -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device =
            device.expect("/dev/fuse is there: the kernel has FUSE, or `modprobe fuse` loads it");
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        mount(
            Some("hung"),
            point,
            Some("fuse"),
            MsFlags::empty(),
            Some(options.as_str()),
        )
        .expect("mounting needs root with CAP_SYS_ADMIN");
        Self {
            point: point.to_owned(),
            device: Some(device),
        }
    }
}

impl Drop for HungMount {
    fn drop(&mut self) {
        // Who waits gets an error: nobody will answer any more.
        drop(self.device.take());
        umount2(&self.point, MntFlags::MNT_DETACH).expect("it is mounted");
    }
}

#[test]
fn failing_cni_add_is_named_and_rolled_back() {
    let wayward = FaultyCniNode::start();
    let node = &wayward.node;
    let cri = node.cri().with_timeout(SOON);
    let before = node.leak_scan();
    for (what, message, code) in [
        (
            "fail",
            "plugin wayward refused ADD with code 7: a planned failure",
            Code::Unknown,
        ),
        (
            "hang",
            "(network.plugin_timeout_seconds limits each plugin, which takes longer the more ports are published): cannot attach",
            Code::Unknown,
        ),
        (
            "nonsense",
            "plugin wayward wrote no usable result",
            Code::Unknown,
        ),
        ("version", "7.7.7", Code::Unknown),
        ("noaddress", "no address", Code::Unknown),
        ("giant", "plugin wayward wrote more than", Code::Unknown),
        (
            "killed",
            "plugin wayward failed on ADD with signal: 9",
            Code::Unknown,
        ),
        ("full", "no space left on device", Code::ResourceExhausted),
    ] {
        wayward.set_plugin_fault("ADD", what);
        let config = node.pod_config(what);
        let status = refused(what, cri.run_pod(&config), &[code]);
        assert!(status.message().contains(message), "{what}: {status}");
        wayward.assert_given_up(what);
        assert_no_leaks_since(node, &before);
        // The network condition covers configuration and installation, not answers of plugins: pods on the
        // host network still start.
        assert!(
            node.cri()
                .condition("NetworkReady")
                .expect("Status answers")
                .status,
            "{what}"
        );
        assert_eq!(node.daemon().get("/readyz/network").0, 200, "{what}");
        wayward.clear_plugin_fault("ADD");
        // The request of the same pod can be repeated.
        let pod = node.run(config);
        assert_eq!(pod.status().state(), PodSandboxState::SandboxReady);
    }
    assert_recovers(node);
}

#[test]
fn failing_cni_del_is_named_and_stop_can_be_retried() {
    let wayward = FaultyCniNode::start();
    let node = &wayward.node;
    let cri = node.cri().with_timeout(SOON);
    let before = node.leak_scan();
    for (what, message) in [
        (
            "fail",
            "plugin wayward refused DEL with code 7: a planned failure",
        ),
        ("hang", "plugin wayward did not finish DEL within 2 s"),
        ("killed", "plugin wayward failed on DEL with signal: 9"),
    ] {
        let pod = node.pod(what);
        let id = pod.start_shell("main", "exec sleep 1000");
        wayward.set_plugin_fault("DEL", what);
        let status = refused("StopPodSandbox", cri.stop_pod(pod.id()), &[Code::Unknown]);
        assert!(status.message().contains(message), "{what}: {status}");
        assert_eq!(
            pod.status().state(),
            PodSandboxState::SandboxNotready,
            "{what}"
        );
        assert_eq!(
            node.cri().status(&id).expect("it has a status").exit_code,
            137,
            "{what}"
        );
        let status = refused(
            "RemovePodSandbox",
            cri.remove_pod(pod.id()),
            &[Code::Unknown],
        );
        assert!(status.message().contains(message), "{what}: {status}");
        wayward.assert_given_up(what);
        wayward.clear_plugin_fault("DEL");
        node.cri()
            .stop_pod(pod.id())
            .expect("it can be stopped again");
        drop(pod);
        assert_no_leaks_since(node, &before);
    }
    // A failed pod whose rollback fails too is removed later by the cleanup queue.
    wayward.set_plugin_fault("ADD", "fail");
    wayward.set_plugin_fault("DEL", "fail");
    let status = refused(
        "RunPodSandbox",
        cri.run_pod(&node.pod_config("both")),
        &[Code::Unknown],
    );
    assert!(status.message().contains("a planned failure"), "{status}");
    wayward.clear_plugin_fault("DEL");
    wayward.clear_plugin_fault("ADD");
    assert_no_leaks_since(node, &before);
}

#[test]
fn missing_or_invalid_network_configuration_is_reported_and_pods_stop() {
    let wayward = FaultyCniNode::start();
    let node = &wayward.node;
    let cri = node.cri().with_timeout(SOON);
    let before = node.leak_scan();
    let list = fs::read_to_string(wayward.conflist()).expect("it is there");
    let dir = node.root().cni_conf();
    let named = dir.to_str().expect("the path is ASCII").to_owned();
    for (what, broken) in [
        ("vanished", None),
        ("broken", Some("{ this is no JSON")),
        ("empty", Some("")),
    ] {
        let pod = node.pod(what);
        match broken {
            None => fs::remove_file(wayward.conflist()).expect("it is there"),
            Some(text) => fs::write(wayward.conflist(), text).expect("the root can be written"),
        }
        assert_not_ready(node, "NetworkReady", "NetworkPluginNotReady", &named);
        assert!(
            node.cri()
                .condition("RuntimeReady")
                .expect("Status answers")
                .status,
            "{what}"
        );
        let (status, body) = node.daemon().get("/readyz/network");
        assert!(
            status == 503 && body.contains(&named),
            "{what}: {status} {body}"
        );
        let status = refused(
            "RunPodSandbox",
            cri.run_pod(&node.pod_config("none")),
            &[Code::Unavailable],
        );
        assert!(status.message().contains(&named), "{what}: {status}");
        // The removal uses the copy of the configuration that was saved when the pod was created.
        node.cri().stop_pod(pod.id()).expect("it can be stopped");
        drop(pod);
        assert_no_leaks_since(node, &before);
        fs::write(wayward.conflist(), &list).expect("the root can be written");
        assert_recovers(node);
        assert_eq!(
            node.pod("again").status().state(),
            PodSandboxState::SandboxReady
        );
    }
}

#[test]
fn missing_cni_plugin_is_reported_and_pods_stop_when_it_returns() {
    let wayward = FaultyCniNode::start();
    let node = &wayward.node;
    let cri = node.cri().with_timeout(SOON);
    let before = node.leak_scan();
    let pod = node.pod("missing");
    let plugin = wayward.dir.join("wayward");
    let away = wayward.dir.join("away");
    fs::rename(&plugin, &away).expect("it is there");
    assert_not_ready(
        node,
        "NetworkReady",
        "NetworkPluginNotReady",
        "plugin wayward",
    );
    let status = refused(
        "RunPodSandbox",
        cri.run_pod(&node.pod_config("none")),
        &[Code::Unknown, Code::Unavailable],
    );
    assert!(status.message().contains("plugin wayward"), "{status}");
    let status = refused(
        "StopPodSandbox",
        cri.stop_pod(pod.id()),
        &[Code::Unknown, Code::Unavailable],
    );
    assert!(status.message().contains("plugin wayward"), "{status}");
    fs::rename(&away, &plugin).expect("it is there");
    assert_recovers(node);
    node.cri()
        .stop_pod(pod.id())
        .expect("it can be stopped again");
    drop(pod);
    assert_no_leaks_since(node, &before);
}

/// The daemon ends while a plugin removes a network: the plugin is left to finish, and the next daemon waits for it
/// before it repeats the removal. A plugin that is killed then leaves packet rules that no later DEL finds.
fn del_outlives(end: impl FnOnce(&mut Daemon)) {
    let wayward = FaultyCniNode::start_within(60);
    let node = &wayward.node;
    let cri = node.cri().with_timeout(SOON);
    let before = node.leak_scan();
    let pod = node.pod("held");
    let runs = || {
        let text = fs::read_to_string(wayward.dir.join("runs")).unwrap_or_default();
        text.lines()
            .filter(|line| line.starts_with("DEL"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    fs::write(wayward.dir.join("hold"), "").expect("the root can be written");
    wayward.set_plugin_fault("DEL", "held");
    thread::scope(|scope| {
        let stop = scope.spawn(|| cri.stop_pod(pod.id()));
        assert!(
            eventually(LIMIT, || wayward.dir.join("held").exists()),
            "{}",
            node.daemon().tail()
        );
        wayward.clear_plugin_fault("DEL");
        end(&mut node.daemon());
        stop.join()
            .expect("a call does not panic")
            .expect_err("the daemon has ended");
    });
    node.daemon().restart();
    thread::scope(|scope| {
        let again = scope.spawn(|| cri.stop_pod(pod.id()));
        // Other pods are not held up.
        let another = node.pod("another");
        assert_eq!(another.status().state(), PodSandboxState::SandboxReady);
        assert_eq!(runs(), ["DEL begins"]);
        fs::remove_file(wayward.dir.join("hold")).expect("it is there");
        again
            .join()
            .expect("a call does not panic")
            .expect("it can be stopped");
    });
    assert_eq!(runs()[..3], ["DEL begins", "DEL is done", "DEL begins"]);
    drop(pod);
    assert_no_leaks_since(node, &before);
}

#[test]
fn cni_del_of_a_stopped_daemon_is_finished_and_awaited() {
    del_outlives(|daemon| assert!(daemon.terminate().success()));
}

#[test]
fn cni_del_of_a_killed_daemon_is_finished_and_awaited() {
    del_outlives(Daemon::kill9);
}

#[test]
fn fifo_in_the_configuration_directory_is_skipped_and_blocks_nothing() {
    let node = TestNode::start();
    let before = node.leak_scan();
    let dir = node.root().cni_conf();
    // Without a writer, an ordinary open would wait for ever.
    mkfifo(&dir.join("00-fifo.conflist"), Mode::S_IRWXU).expect("the root can be written");
    symlink("/dev/zero", dir.join("01-endless.conf")).expect("the root can be written");
    for _ in 0..2 {
        assert!(
            node.cri()
                .condition("NetworkReady")
                .expect("Status answers")
                .status
        );
        assert_eq!(node.daemon().get("/readyz/network").0, 200);
    }
    assert_eq!(
        node.pod("beside").status().state(),
        PodSandboxState::SandboxReady
    );
    fs::remove_file(dir.join("10-test.conflist")).expect("it was written");
    let why = "00-fifo.conflist: it cannot be read: it is no regular file but a FIFO";
    assert_not_ready(&node, "NetworkReady", "NetworkPluginNotReady", why);
    let status = refused(
        "RunPodSandbox",
        node.cri().run_pod(&node.pod_config("none")),
        &[Code::Unavailable],
    );
    assert!(status.message().contains(why), "{status}");
    assert_eq!(node.daemon().get("/livez").0, 200);
    for name in ["00-fifo.conflist", "01-endless.conf"] {
        fs::remove_file(dir.join(name)).expect("it was made");
    }
    assert_no_leaks_since(&node, &before);
}

#[test]
fn configuration_directory_that_hangs_stops_only_pods_on_its_network() {
    let node = TestNode::start();
    let before = node.leak_scan();
    let cri = node.cri().with_timeout(LIMIT);
    let dir = node.root().cni_conf();
    let named = dir.to_str().expect("the path is ASCII").to_owned();
    let kept = node.pod("kept");
    let hung = HungMount::over(&dir);
    thread::scope(|scope| {
        let refusal = scope.spawn(|| {
            refused(
                "RunPodSandbox",
                cri.run_pod(&node.pod_config("waits")),
                &[Code::Unavailable],
            )
        });
        // As many as the daemon has threads for its sockets.
        let looks =
            [0, 1].map(|_| scope.spawn(|| cri.condition("NetworkReady").expect("Status answers")));
        for look in looks {
            look.join().expect("it answers");
        }
        assert_eq!(node.daemon().get("/livez").0, 200);
        let version =
            cri.runtime(async |mut client| client.version(VersionRequest::default()).await);
        assert_eq!(version.expect("Version answers").runtime_api_version, "v1");
        let host = node.pod_with("host", |config| {
            namespaces(config).set_network(NamespaceMode::Node)
        });
        assert_eq!(host.run_shell("echo runs", |_| {}), "runs");
        let status = refusal.join().expect("it is refused");
        let text = status.message();
        assert!(text.contains(&named) && text.contains("hang"), "{status}");
    });
    // Now it is known, and nobody waits.
    assert_not_ready(&node, "NetworkReady", "NetworkPluginNotReady", &named);
    let (status, body) = node.daemon().get("/readyz/network");
    assert!(status == 503 && body.contains(&named), "{status} {body}");
    let status = refused(
        "RunPodSandbox",
        cri.run_pod(&node.pod_config("later")),
        &[Code::Unavailable],
    );
    assert!(status.message().contains("still hangs"), "{status}");
    assert_eq!(node.daemon().get("/livez").0, 200);
    // What is attached can be detached: its configuration is in its journal.
    node.cri().stop_pod(kept.id()).expect("it can be stopped");
    drop(hung);
    assert_recovers(&node);
    assert_eq!(
        node.pod("again").status().state(),
        PodSandboxState::SandboxReady
    );
    drop(kept);
    assert_no_leaks_since(&node, &before);
}
