//! A full disk below `/run`.

use switchyard_tests::streams::{OUTPUTS, StreamSession};

use super::*;

#[test]
fn run_disk_without_inodes_fails_starts_and_execs_clearly_and_recovers() {
    let node = TestNode::start_with("", |root| {
        root.small_disk(&root.run(), "size=100m,nr_inodes=1500")
    });
    let cri = node.cri().with_timeout(SOON);
    let pod = node.pod("full");
    let id = pod.start_shell("main", "exec sleep 1000");
    let before = node.leak_scan();
    let created = pod.create(&node.container("created", &["sleep", "1000"]));
    let filling = FilledDisk::inodes(&node.root().run());
    let exhausted = &[Code::ResourceExhausted];
    assert_full(&refused("StartContainer", cri.start(&created), exhausted));
    let status = cri.status(&created).expect("it has a status");
    assert_eq!(
        (status.state(), status.reason.as_str()),
        (ContainerState::ContainerExited, "StartError")
    );
    assert_full(&refused("ExecSync", cri.exec(&id, &["true"], 5), exhausted));
    let mut streamed = StreamSession::exec(&cri, &id, &["true"], OUTPUTS);
    assert!(streamed.wait_end(), "{:?}", streamed.received);
    let status = &streamed.received.status;
    assert!(
        status.contains(r#""reason":"ResourceExhausted""#),
        "{status}"
    );
    assert_full(&refused(
        "RunPodSandbox",
        cri.run_pod(&node.pod_config("new")),
        exhausted,
    ));
    assert_eq!(
        cri.status(&id).expect("it has a status").state(),
        ContainerState::ContainerRunning
    );
    drop(filling);
    node.cri().remove(&created).expect("it can be removed");
    assert_no_leaks_since(&node, &before);
    assert_recovers(&node);
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    assert_eq!(pod.run_shell("echo more", |_| {}), "more");
    assert_eq!(
        node.pod("another").run_shell("echo another", |_| {}),
        "another"
    );
}

#[test]
fn daemon_starts_on_full_run_disk_with_a_warning() {
    let node = TestNode::start_with("", |root| {
        root.small_disk(&root.run(), "size=100m,nr_inodes=1500")
    });
    let pod = node.pod("full");
    let id = pod.start_shell("main", "exec sleep 1000");
    node.daemon().kill9();
    fs::remove_file(node.root().run().join("admin.addr")).expect("it was there");
    let filling = FilledDisk::inodes(&node.root().run());
    node.daemon().spawn();
    let cri = node.cri().with_timeout(SOON);
    let containers = retry("ListContainers", || cri.containers());
    assert_eq!(containers.len(), 1, "{containers:#?}");
    let is_told = || {
        let log = fs::read_to_string(node.root().daemon_log()).unwrap_or_default();
        log.to_lowercase().contains("no space left on device")
    };
    assert!(eventually(LIMIT, is_told), "{}", node.daemon().tail());
    filling.refill();
    assert_full(&refused(
        "ExecSync",
        cri.exec(&id, &["true"], 5),
        &[Code::ResourceExhausted],
    ));
    drop(filling);
    let address = node.root().run().join("admin.addr");
    assert!(
        eventually(LIMIT, || address.exists()),
        "{}",
        node.daemon().tail()
    );
    node.daemon().wait_ready();
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    assert_eq!(pod.run_shell("echo more", |_| {}), "more");
}

/// As `/run` of a node is, when others fill it: its pid files, notes and sockets need no more space than they have.
#[test]
fn run_disk_without_space_holds_up_no_log_and_no_removal() {
    let node = TestNode::start_with("", |root| root.small_disk(&root.run(), "size=40m"));
    let cri = node.cri().with_timeout(SOON);
    let pod = node.pod("full");
    let dir = node.root().path().join(format!("host-{}", random_name()));
    fs::create_dir(&dir).expect("the root can be written");
    let script = "until [ -e /host/go ]; do sleep 0.02; done; n=0; \
                  while [ $n -lt 10000 ]; do n=$((n+1)); echo \"line $n of $(printf %080d 0)\"; done; echo whole; exec sleep 1000";
    let id = pod.start_shell_with("main", script, |config| {
        config.mounts = vec![Mount {
            host_path: dir.to_str().expect("the path is ASCII").to_owned(),
            container_path: "/host".to_owned(),
            ..Default::default()
        }];
    });
    let removed = pod.start_shell("removed", "exec sleep 1000");
    let created = pod.create(&node.container("created", &["sleep", "1000"]));
    let filling = FilledDisk::bytes(&node.root().run());
    for name in ["logkeeper", "containerd"] {
        let killed = node.kill_managed(name);
        let is_back = || node.root().managed(name).is_some_and(|pid| pid != killed);
        assert!(
            eventually(LIMIT, is_back),
            "{name}: {}",
            node.daemon().tail()
        );
        filling.refill();
        assert_recovers(&node);
    }
    // Runtimes write there for each command, if only a few bytes, and do not always say why they have failed.
    let needy = [cri.exec(&id, &["true"], 5).map(drop), cri.start(&created)];
    for status in needy.into_iter().filter_map(Result::err) {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert_full(&status);
    }
    fs::write(dir.join("go"), "").expect("the root can be written");
    let lines = pod.wait_log("main", |lines| {
        lines.iter().any(|line| line.ends_with(" whole"))
    });
    // A line that came in two pieces has a partial one before it.
    let whole = lines
        .iter()
        .filter(|line| line.split(' ').nth(2) == Some("F"));
    assert_eq!(whole.count(), 10_001);
    cri.stop(&removed, 0).expect("it can be stopped");
    retry("RemoveContainer", || cri.remove(&removed));
    assert_eq!(
        cri.status(&id).expect("it has a status").state(),
        ContainerState::ContainerRunning
    );
    drop(filling);
    assert_recovers(&node);
    assert_eq!(pod.run_shell("echo more", |_| {}), "more");
}
