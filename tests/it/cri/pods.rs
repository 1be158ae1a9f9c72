//! Pods: their life cycle, files and runtime handlers, and calls that are repeated or cancelled.

use std::time::Duration;

use switchyard_proto::cri::v1::{
    ContainerState, DnsConfig, NamespaceMode, PodSandboxState, RunPodSandboxRequest,
};
use switchyard_tests::cri::{context, limits, namespaces};
use switchyard_tests::host::random_name;
use switchyard_tests::leak_scan::{NAMESPACE, ctr};
use switchyard_tests::node::{TestNode, TestPod, log_content};
use tonic::{Code, Request};

#[test]
fn pod_lifecycle_completes_and_leaves_nothing_behind() {
    let node = TestNode::start();
    let client = node.cri();
    let config = node.pod_config("whole");
    let pod = client.run_pod(&config).expect("a pod can be run");
    let status = client.pod_status(&pod).expect("it has a status");
    assert_eq!(status.state(), PodSandboxState::SandboxReady);
    assert_eq!(status.metadata, config.metadata);
    let container = node.container(
        "main",
        &["sh", "-c", "echo out; echo err >&2; exec sleep 1000"],
    );
    let id = client
        .create(&pod, &container, &config)
        .expect("a container can be made");
    assert_eq!(
        client.status(&id).expect("it has a status").state(),
        ContainerState::ContainerCreated
    );
    client.start(&id).expect("it can be started");
    let status = client.status(&id).expect("it has a status");
    assert_eq!(status.state(), ContainerState::ContainerRunning);
    assert!(
        status.started_at >= status.created_at && status.finished_at == 0,
        "{status:?}"
    );
    assert_eq!(client.sh(&id, "echo from exec"), "from exec");
    let answer = client
        .exec(&id, &["sh", "-c", "echo no >&2; exit 3"], 10)
        .expect("it can be asked");
    assert_eq!(
        (answer.exit_code, answer.stderr.as_slice()),
        (3, &b"no\n"[..])
    );

    client.stop(&id, 0).expect("it can be stopped");
    let status = client.status(&id).expect("it has a status");
    assert_eq!(
        (status.state(), status.exit_code),
        (ContainerState::ContainerExited, 137)
    );
    assert!(status.finished_at >= status.started_at, "{status:?}");
    let log = std::fs::read_to_string(&status.log_path).expect("its log is where its status says");
    let mut lines: Vec<_> = log.lines().collect();
    lines.sort_by_key(|line| log_content(line).to_owned());
    assert!(
        lines.len() == 2 && lines[0].ends_with("Z stderr F err"),
        "{log}"
    );
    assert!(
        lines[1].ends_with("Z stdout F out") && lines[1].as_bytes()[10] == b'T',
        "{log}"
    );

    client.stop_pod(&pod).expect("it can be stopped");
    let status = client.pod_status(&pod).expect("a stopped pod has a status");
    assert_eq!(status.state(), PodSandboxState::SandboxNotready);
    assert_eq!(status.network.unwrap_or_default().ip, "");
    client.remove(&id).expect("it can be removed");
    client.remove_pod(&pod).expect("it can be removed");
    assert_eq!(
        client.pod_status(&pod).expect_err("it is gone").code(),
        Code::NotFound
    );
    node.assert_clean();
}

#[test]
fn pod_has_its_hostname_and_dns_configuration() {
    let node = TestNode::shared();
    let pod = node.pod_with("files", |config| {
        config.hostname = "my-pod".to_owned();
        config.dns_config = Some(DnsConfig {
            servers: vec!["10.1.2.3".into(), "10.1.2.4".into()],
            searches: vec!["tests.example".into(), "example".into()],
            options: vec!["ndots:5".into()],
        });
    });
    let id = pod.start_shell("main", "exec sleep 1000");
    let sh = |script: &str| node.cri().sh(&id, script);
    assert_eq!(
        sh("hostname; cat /etc/hostname; echo $HOSTNAME"),
        "my-pod\nmy-pod\nmy-pod"
    );
    let hosts = sh("cat /etc/hosts");
    let has_both = hosts
        .lines()
        .any(|line| line.starts_with(&pod.ip()) && line.contains("my-pod"));
    assert!(has_both && hosts.contains("127.0.0.1"), "{hosts}");
    assert_eq!(
        sh("cat /etc/resolv.conf"),
        "search tests.example example\nnameserver 10.1.2.3\nnameserver 10.1.2.4\noptions ndots:5"
    );
}

#[test]
fn pod_containers_share_a_64_mib_dev_shm() {
    let node = TestNode::shared();
    let pod = node.pod("shm");
    let first = pod.start_shell("first", "exec sleep 1000");
    let second = pod.start_shell("second", "exec sleep 1000");
    assert_eq!(
        node.cri()
            .sh(&first, "df -k /dev/shm | tail -n 1 | awk '{ print $2 }'"),
        "65536"
    );
    assert_eq!(
        node.cri()
            .sh(&first, "stat -c %a /dev/shm; echo shared > /dev/shm/file"),
        "1777"
    );
    assert_eq!(node.cri().sh(&second, "cat /dev/shm/file"), "shared");
    let options = node.cri().sh(&second, "grep ' /dev/shm ' /proc/mounts");
    for option in ["tmpfs", "nosuid", "nodev", "noexec"] {
        assert!(options.contains(option), "{options}");
    }
}

#[test]
fn verbose_status_of_a_pod_shows_its_namespaces_and_network() {
    let node = TestNode::shared();
    let pod = node.pod("shown");
    let info = || -> serde_json::Value {
        serde_json::from_str(&node.cri().pod_info(pod.id())).expect("it is JSON")
    };
    let shown = info();
    let namespaces = shown["runtimeSpec"]["linux"]["namespaces"].as_array();
    let network = namespaces
        .and_then(|list| list.iter().find(|one| one["type"] == "network"))
        .and_then(|network| network["path"].as_str());
    let network = network.unwrap_or_else(|| panic!("no network namespace: {shown}"));
    assert!(std::path::Path::new(network).exists(), "{network}");
    let interface = &shown["cniResult"]["Interfaces"]["eth0"];
    assert_eq!(interface["IPConfigs"][0]["IP"], pod.ip(), "{shown}");
    assert_eq!(shown["netNamespaceClosed"], false);
    node.cri().stop_pod(pod.id()).expect("it can be stopped");
    assert_eq!(info()["netNamespaceClosed"], true);
}

#[test]
fn pod_sysctls_are_private() {
    let node = TestNode::shared();
    let pod = node.pod_with("sysctls", |config| {
        let sysctls = &mut config.linux.get_or_insert_default().sysctls;
        sysctls.insert("net.ipv4.ip_local_port_range".into(), "20000 30000".into());
        sysctls.insert("kernel.shm_rmid_forced".into(), "1".into());
        sysctls.insert("fs.mqueue.msg_max".into(), "77".into());
        // Plugins make the interface.
        sysctls.insert("net.ipv4.conf.eth0.arp_ignore".into(), "2".into());
        sysctls.insert("net/ipv4/neigh/eth0/gc_stale_time".into(), "77".into());
    });
    let script = "cd /proc/sys; cat net/ipv4/ip_local_port_range kernel/shm_rmid_forced fs/mqueue/msg_max net/ipv4/ip_unprivileged_port_start net/ipv4/conf/eth0/arp_ignore net/ipv4/neigh/eth0/gc_stale_time";
    assert_eq!(
        pod.run_shell(script, |_| {}),
        "20000\t30000\n1\n77\n0\n2\n77"
    );
}

#[test]
fn host_ipc_pod_shares_dev_shm_and_private_pod_does_not() {
    let node = TestNode::shared();
    let name = format!("switchyard-{}", random_name());
    let file = std::path::Path::new("/dev/shm").join(&name);
    std::fs::write(&file, "").expect("the host has shared memory");
    let script = format!("readlink /proc/self/ns/ipc; ls /dev/shm | grep -c -x {name} || true");
    let seen = |mode: NamespaceMode| {
        let pod = node.pod_with("ipc", |config| namespaces(config).set_ipc(mode));
        pod.run_shell(&script, |config| {
            context(config)
                .namespace_options
                .get_or_insert_default()
                .set_ipc(mode);
        })
    };
    let shared = seen(NamespaceMode::Node);
    let own = seen(NamespaceMode::Pod);
    std::fs::remove_file(&file).expect("it was just made");
    let host = std::fs::read_link("/proc/self/ns/ipc").expect("this process has a namespace");
    assert_eq!(shared, format!("{}\n1", host.display()));
    let (namespace, count) = own.split_once('\n').expect("there are two lines");
    assert!(
        namespace != host.display().to_string() && count == "0",
        "{own}"
    );
}

#[test]
fn pod_of_a_sandboxed_handler_survives_daemon_restart() {
    let handler = "[containerd.runtimes.boxed]\ntype = \"io.containerd.runc.v2\"\nbinary = \"runc\"\nsandbox = \"container\"\n";
    let node = TestNode::start_with(handler, |_| {});
    let config = node.pod_config("boxed");
    let id = node
        .cri()
        .run_pod_with(&config, "boxed")
        .expect("the handler is configured");
    let pod = TestPod::adopt(&node, id, config);
    let socket = node.root().containerd_socket().expect("containerd runs");
    let tasks = || ctr(&socket, NAMESPACE, &["tasks", "ls", "-q"]);
    assert_eq!(tasks(), [pod.id()]);
    let ip = pod.ip();
    let main = pod.start_shell("main", "exec sleep 1000");
    let address = || node.cri().sh(&main, "ip -4 -o addr show dev eth0");
    assert!(address().contains(&ip), "{}", address());
    node.daemon().kill9();
    node.daemon().restart();
    assert_eq!(
        (pod.status().state(), pod.ip()),
        (PodSandboxState::SandboxReady, ip.clone())
    );
    assert!(address().contains(&ip), "{}", address());
    node.cri().stop_pod(pod.id()).expect("it can be stopped");
    assert_eq!(tasks(), [""; 0]);
}

#[test]
fn pod_uses_its_runtime_handler() {
    let node = TestNode::shared();
    for handler in ["runc", "crun"] {
        let config = node.pod_config(handler);
        let id = node
            .cri()
            .run_pod_with(&config, handler)
            .expect("the handler is configured");
        let pod = TestPod::adopt(&node, id, config);
        assert_eq!(pod.status().runtime_handler, handler);
    }
    let status = node
        .cri()
        .run_pod_with(&node.pod_config("kata"), "kata")
        .expect_err("there is no kata");
    assert!(status.message().contains("kata"), "{status}");
    assert!(
        matches!(status.code(), Code::InvalidArgument | Code::NotFound),
        "{status}"
    );
}

#[test]
fn pod_stop_kills_containers_and_removal_removes_them() {
    let node = TestNode::shared();
    let pod = node.pod("stopped");
    let running = pod.start_shell("running", "trap '' TERM; while :; do sleep 1; done");
    let created = pod.create(&node.container("created", &["true"]));
    node.cri().stop_pod(pod.id()).expect("it can be stopped");
    node.cri()
        .stop_pod(pod.id())
        .expect("a stop can be repeated");
    assert_eq!(node.cri().wait_exit(&running).exit_code, 137);
    let status = pod
        .try_create(&node.container("late", &["true"]))
        .expect_err("the pod is stopped");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    node.cri()
        .remove_pod(pod.id())
        .expect("it can be removed with its containers");
    for id in [&running, &created] {
        assert_eq!(
            node.cri().status(id).expect_err("it is gone").code(),
            Code::NotFound
        );
    }
    node.assert_gone(&[pod.id(), &running, &created]);
}

#[test]
fn cancelled_run_pod_is_completed_by_retry() {
    let node = TestNode::start();
    let config = node.pod_config("cancelled");
    let mut request = Request::new(RunPodSandboxRequest {
        config: Some(config.clone()),
        runtime_handler: String::new(),
    });
    request.set_timeout(Duration::from_millis(5));
    let cancelled = node
        .cri()
        .runtime(async |mut client| client.run_pod_sandbox(request).await);
    let status = cancelled.expect_err("no pod is up within 5 ms");
    assert!(
        matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled),
        "{status}"
    );
    let pod = node.run(config);
    let ids: Vec<_> = node
        .cri()
        .pods()
        .expect("pods can be listed")
        .into_iter()
        .map(|pod| pod.id)
        .collect();
    assert_eq!(ids, [pod.id()]);
    drop(pod);
    node.assert_clean();
}

#[test]
fn concurrent_runs_of_one_pod_get_one_pod() {
    let node = TestNode::shared();
    let config = node.pod_config("raced");
    let ids: Vec<_> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| node.cri().run_pod(&config)))
            .collect();
        calls
            .into_iter()
            .map(|call| call.join().expect("a call does not panic"))
            .collect()
    });
    let ids: Vec<_> = ids
        .into_iter()
        .map(|id| id.expect("each gets an answer"))
        .collect();
    let pod = TestPod::adopt(&node, ids[0].clone(), config.clone());
    assert!(ids.iter().all(|id| id == pod.id()), "{ids:?}");
    assert_eq!(
        node.cri().run_pod(&config).expect("a later call as well"),
        pod.id()
    );
    let container = node.container("raced", &["sleep", "1000"]);
    let ids: Vec<_> = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| pod.create(&container)))
            .collect();
        calls
            .into_iter()
            .map(|call| call.join().expect("a call does not panic"))
            .collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[test]
fn reserved_pod_name_with_another_configuration_is_rejected() {
    let node = TestNode::shared();
    let pod = node.pod("taken");
    let mut other = pod.config().clone();
    other.hostname = "other".to_owned();
    assert_eq!(
        node.cri()
            .run_pod(&other)
            .expect_err("the name is taken")
            .code(),
        Code::AlreadyExists
    );
    let config = node.container("taken", &["sleep", "1000"]);
    let _id = pod.create(&config);
    let mut other = config.clone();
    other.command = vec!["true".to_owned()];
    assert_eq!(
        pod.try_create(&other)
            .expect_err("the name is taken")
            .code(),
        Code::AlreadyExists
    );
}

#[test]
fn unknown_ids_are_not_found_or_already_removed() {
    let node = TestNode::shared();
    let client = node.cri();
    for id in ["0".repeat(64).as_str(), "no-such-id", "../../etc", "ä\n"] {
        client.stop_pod(id).expect("what is not there is stopped");
        client.remove_pod(id).expect("what is not there is removed");
        client.stop(id, 5).expect("what is not there is stopped");
        client.remove(id).expect("what is not there is removed");
        let pod_config = node.pod_config("none");
        let container = node.container("none", &["true"]);
        for (call, status) in [
            ("PodSandboxStatus", client.pod_status(id).err()),
            ("ContainerStatus", client.status(id).err()),
            ("ContainerStats", client.stats(id).err()),
            ("StartContainer", client.start(id).err()),
            ("ExecSync", client.exec(id, &["true"], 1).err()),
            ("ReopenContainerLog", client.reopen_log(id).err()),
            (
                "UpdateContainerResources",
                client.update(id, Default::default()).err(),
            ),
            (
                "CreateContainer",
                client.create(id, &container, &pod_config).err(),
            ),
        ] {
            let status = status.unwrap_or_else(|| panic!("{call} of {id:?} succeeds"));
            assert_eq!(status.code(), Code::NotFound, "{call} of {id:?}: {status}");
        }
    }
    client
        .remove_image("registry.example/no/such:image")
        .expect("what is not there is removed");
    assert_eq!(
        client
            .image("registry.example/no/such:image")
            .expect("it can be asked for"),
        None
    );
}

#[test]
fn container_limits_and_security_context_default_to_none() {
    let node = TestNode::shared();
    let pod = node.pod("defaults");
    let mut config = node.container("main", &["sleep", "1000"]);
    // Present, and empty: as some clients send them.
    limits(&mut config);
    context(&mut config);
    let id = pod.start(&config);
    assert_eq!(
        node.cri().sh(
            &id,
            "grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status | tr -d '\t'"
        ),
        "NoNewPrivs:0\nSeccomp:0"
    );
}
