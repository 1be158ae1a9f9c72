//! Recovery after kills of the daemon, containerd and the logkeeper, in any order.

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use switchyard_proto::cri::v1::{ContainerState, ContainerStatus, Mount, PodSandboxStatus};
use switchyard_tests::daemon::{Daemon, binary};
use switchyard_tests::host::{eventually, random_bytes};
use switchyard_tests::node::{TestNode, TestPod, log_content};

/// Prints a number each hundredth of a second or so.
const COUNT: &str = "n=0; while :; do n=$((n+1)); echo $n; sleep 0.01; done";
/// Time for something to come back.
const LIMIT: Duration = Duration::from_secs(40);

/// Fails unless the numbers in a log are complete up to its end, which is later than now.
#[track_caller]
fn assert_counts_on(pod: &TestPod<'_>, name: &str) {
    let so_far = pod.log(name).len();
    let lines = pod.wait_log(name, |lines| lines.len() > so_far + 20);
    let numbers: Vec<_> = lines
        .iter()
        .map(|line| log_content(line).to_owned())
        .collect();
    // The last line may be half written.
    let complete = &numbers[..numbers.len() - 1];
    let expected: Vec<_> = (1..=complete.len())
        .map(|number| number.to_string())
        .collect();
    assert_eq!(complete, expected, "lines are lost or doubled");
}

fn pods_and_containers(node: &TestNode) -> (Vec<PodSandboxStatus>, Vec<ContainerStatus>) {
    let mut pods: Vec<_> = node.cri().pods().expect("pods can be listed");
    pods.sort_by(|one, other| one.id.cmp(&other.id));
    let mut containers: Vec<_> = node.cri().containers().expect("containers can be listed");
    containers.sort_by(|one, other| one.id.cmp(&other.id));
    (
        pods.iter()
            .map(|pod| node.cri().pod_status(&pod.id).expect("it has a status"))
            .collect(),
        containers
            .iter()
            .map(|container| node.cri().status(&container.id).expect("it has a status"))
            .collect(),
    )
}

/// All is as before after `end` has ended the daemon and another has begun; what happened meanwhile is known.
fn outlives(end: impl FnOnce(&mut Daemon)) {
    let node = TestNode::start();
    let client = node.cri();
    let pod = node.pod("outlives");
    let stopped = node.pod("stopped");
    client.stop_pod(stopped.id()).expect("it can be stopped");
    let counting = pod.start_shell("counting", COUNT);
    let ended = pod.start_shell("ended", "exit 3");
    let _ = client.wait_exit(&ended);
    let created = pod.create(&node.container("created", &["echo", "started late"]));
    let dir = node.root().path().join("host");
    fs::create_dir(&dir).expect("the root can be written");
    let ending = pod.start_shell_with(
        "ending",
        "while [ ! -e /host/go ]; do sleep 0.02; done; echo bye; exit 42",
        |config| {
            config.mounts = vec![Mount {
                host_path: dir.to_str().expect("the path is ASCII").to_owned(),
                container_path: "/host".to_owned(),
                ..Default::default()
            }];
        },
    );
    assert_counts_on(&pod, "counting");
    let (pods, mut containers) = pods_and_containers(&node);

    let mut daemon = node.daemon();
    end(&mut daemon);
    let before = pod.log("counting").len();
    pod.wait_log("counting", |lines| lines.len() > before + 10);
    fs::write(dir.join("go"), "").expect("the root can be written");
    pod.wait_log("ending", |lines| !lines.is_empty());
    daemon.restart();
    drop(daemon);

    let end = client.wait_exit(&ending);
    assert_eq!((end.exit_code, end.reason.as_str()), (42, "Error"));
    let (pods_now, mut containers_now) = pods_and_containers(&node);
    assert_eq!(pods_now, pods);
    for list in [&mut containers, &mut containers_now] {
        list.retain(|container| container.id != ending);
    }
    assert_eq!(containers_now, containers);
    assert_counts_on(&pod, "counting");
    assert_eq!(client.sh(&counting, "echo reached"), "reached");
    client
        .start(&created)
        .expect("what waited can still be started");
    assert_eq!(client.wait_exit(&created).exit_code, 0);
    assert_eq!(pod.log_text("created"), "started late");
    client.stop(&counting, 0).expect("it can be stopped");
    drop((pod, stopped));
    node.assert_clean();
}

#[test]
fn pods_and_containers_survive_daemon_kill() {
    outlives(Daemon::kill9);
}

#[test]
fn pods_and_containers_survive_daemon_shutdown() {
    outlives(|daemon| assert!(daemon.terminate().success()));
}

#[test]
fn containers_survive_containerd_restart() {
    let node = TestNode::start();
    let client = node.cri();
    let pod = node.pod("outlives");
    let id = pod.start_shell("counting", COUNT);
    let before = client.status(&id).expect("it has a status");
    let dead = node.kill_managed("containerd");
    let again = eventually(LIMIT, || {
        node.root()
            .managed("containerd")
            .is_some_and(|pid| pid != dead)
            && client
                .exec(&id, &["true"], 5)
                .is_ok_and(|answer| answer.exit_code == 0)
    });
    assert!(again, "exec does not come back\n{}", node.daemon().tail());
    assert_eq!(client.status(&id).expect("it has a status"), before);
    assert_counts_on(&pod, "counting");
    assert_eq!(pod.run_shell("echo more", |_| {}), "more");
    assert_eq!(node.pod("more").run_shell("echo works", |_| {}), "works");
    client.stop(&id, 0).expect("it can be stopped");
    assert_eq!(client.status(&id).expect("it has a status").exit_code, 137);
}

#[test]
fn no_line_is_lost_when_the_logkeeper_is_killed() {
    let node = TestNode::start();
    let pod = node.pod("logs");
    let _id = pod.start_shell("counting", COUNT);
    assert_counts_on(&pod, "counting");
    let dead = node.kill_managed("logkeeper");
    let again = eventually(LIMIT, || {
        node.root()
            .managed("logkeeper")
            .is_some_and(|pid| pid != dead)
    });
    assert!(again, "it is not started again\n{}", node.daemon().tail());
    assert_counts_on(&pod, "counting");
    // The logkeeper takes over the logs before it listens; once it listens, the daemon notices and containers
    // can be started.
    let socket = node.root().run().join("logkeeper/logkeeper.sock");
    assert!(
        eventually(LIMIT, || UnixStream::connect(&socket).is_ok()
            && node.daemon().get("/readyz").0 == 200),
        "it does not serve again\n{}",
        node.daemon().tail()
    );
    assert_eq!(pod.run_shell("echo works", |_| {}), "works");
}

#[test]
fn a_second_daemon_on_the_same_directories_is_refused() {
    let node = TestNode::shared();
    let second = Command::new(binary())
        .arg("serve")
        .arg("--config")
        .arg(node.root().config())
        .output();
    let second = second.expect("the daemon can be started");
    let text = String::from_utf8_lossy(&second.stderr).into_owned()
        + &String::from_utf8_lossy(&second.stdout);
    assert!(!second.status.success(), "{text}");
    let state = node.root().state();
    assert!(
        text.contains(&*state.to_string_lossy())
            || text.contains(&*node.root().run().to_string_lossy()),
        "{text}"
    );
    assert_eq!(node.pod("first").run_shell("echo works", |_| {}), "works");
}

#[test]
fn kill_during_ten_runs_leaves_one_pod_each() {
    let node = TestNode::start();
    let rounds: Vec<Vec<_>> = (0..3)
        .map(|round| {
            (0..10)
                .map(|index| node.pod_config(&format!("round{round}-{index}")))
                .collect()
        })
        .collect();
    for configs in &rounds {
        std::thread::scope(|scope| {
            for config in configs {
                // Most of them never get an answer.
                scope.spawn(|| drop(node.cri().run_pod(config)));
            }
            let [random] = random_bytes();
            std::thread::sleep(Duration::from_millis(u64::from(random) * 2));
            node.daemon().kill9();
        });
        node.daemon().restart();
    }
    let pods: Vec<_> = rounds
        .into_iter()
        .flatten()
        .map(|config| node.run(config))
        .collect();
    let mut wanted: Vec<_> = pods.iter().map(|pod| pod.id().to_owned()).collect();
    let mut found: Vec<_> = node
        .cri()
        .pods()
        .expect("pods can be listed")
        .into_iter()
        .map(|pod| pod.id)
        .collect();
    wanted.sort();
    found.sort();
    assert_eq!(found, wanted);
    let mut addresses: Vec<_> = pods.iter().map(TestPod::ip).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), pods.len(), "two pods have one address");
    for pod in pods.iter().step_by(7) {
        assert_eq!(pod.run_shell("echo works", |_| {}), "works");
    }
    std::thread::scope(|scope| {
        for pod in &pods {
            scope.spawn(|| {
                node.cri().stop_pod(pod.id()).expect("it can be stopped");
                node.cri().remove_pod(pod.id()).expect("it can be removed");
            });
        }
    });
    // A plugin of a dead daemon may run on beside the one that undoes its work: then the next daemon tries
    // again.
    node.daemon().restart();
    node.assert_clean();
}

#[test]
fn container_killed_while_the_daemon_is_down_is_reported_exited() {
    let node = TestNode::start();
    let pod = node.pod("vanished");
    let id = pod.start_shell("main", "exec sleep 31999");
    node.daemon().kill9();
    // Its shim is killed as well, so that no process knows the exit status.
    for process in switchyard_tests::host::processes::belonging_to(node.root().path()) {
        let is_shim = process.command.contains("containerd-shim") && process.command.contains(&id);
        if is_shim || process.command == "sleep 31999" {
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
    }
    node.daemon().restart();
    let status = node.cri().wait_exit(&id);
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert_ne!(status.exit_code, 0, "{status:?}");
    node.cri().remove(&id).expect("it can be removed");
    // containerd cleans up after a lost shim in its own time.
    let gone = || {
        !node
            .leak_scan()
            .findings
            .iter()
            .any(|finding| finding.contains(&id))
    };
    assert!(eventually(LIMIT, gone), "{:#?}", node.leak_scan().findings);
}

#[test]
fn exit_code_is_known_after_exit_without_daemon_and_containerd() {
    let node = TestNode::start();
    let pod = node.pod("meanwhile");
    let gate = node.root().path().join("meanwhile");
    fs::create_dir(&gate).expect("the root can be written");
    let id = pod.start_shell_with(
        "main",
        "until [ -e /gate/go ]; do sleep 0.05; done; exit 42",
        |config| {
            config.mounts = vec![Mount {
                container_path: "/gate".to_owned(),
                host_path: gate.to_str().expect("the path is ASCII").to_owned(),
                ..Default::default()
            }];
        },
    );
    node.daemon().kill9();
    node.kill_managed("containerd");
    fs::write(gate.join("go"), "").expect("the directory can be written");
    let script = "until [ -e /gate/go ]";
    let runs = || {
        let mut all = switchyard_tests::host::processes::belonging_to(node.root().path());
        all.retain(|process| process.command.contains(script));
        !all.is_empty()
    };
    assert!(eventually(LIMIT, || !runs()), "the container does not end");
    node.daemon().restart();
    let status = node.cri().wait_exit(&id);
    assert_eq!(
        (status.state(), status.exit_code),
        (ContainerState::ContainerExited, 42),
        "{status:?}"
    );
    node.cri().remove(&id).expect("it can be removed");
}
