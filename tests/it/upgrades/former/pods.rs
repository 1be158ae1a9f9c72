//! Pods with host ports, devices and mounts, and a pull that a restart interrupts.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::thread;

use switchyard_proto::cri::v1 as cri;
use switchyard_tests::cri::retry;
use switchyard_tests::host::{eventually, free_port};
use switchyard_tests::http;
use switchyard_tests::image::{busybox, random_layer};
use switchyard_tests::node::{Containerd, TestNode};
use switchyard_tests::registry_proxy::RegistryFault;
use switchyard_tests::versions;

use super::super::unreadable::{assert_refused, two_devices, with_device, with_port};
use super::super::{Counter, pid};
use super::{BEFORE, LIMIT, following, install};

/// Serves a page on port 80.
const SERVE: &str =
    "mkdir /tmp/www; echo hello > /tmp/www/index.html; exec httpd -f -p 80 -h /tmp/www";

/// A pod that has all that is looked at under each version.
struct WebPod<'n> {
    counter: Counter<'n>,
    server: String,
    server_pid: u64,
    port: u16,
}

impl<'n> WebPod<'n> {
    /// Starts it, with a device, a host port and a directory of the host.
    fn start(node: &'n TestNode, data: &Path) -> Self {
        let port = free_port();
        let pod = node.pod_with("web", |config| with_port(config, port));
        let server = pod.start_shell("server", SERVE);
        let counter = Counter::start_in(pod, |config| {
            config.devices = with_device(node, "counting", "acme0").devices;
            config.mounts = vec![cri::Mount {
                container_path: "/data".to_owned(),
                host_path: data.display().to_string(),
                ..Default::default()
            }];
        });
        let server_pid = pid(node, &server);
        Self {
            counter,
            server,
            server_pid,
            port,
        }
    }

    /// Fails unless all of it works, and what it has is refused to others.
    #[track_caller]
    fn assert_works(&self, node: &TestNode, data: &Path, when: &str) {
        self.counter.assert_runs(when);
        assert_eq!(pid(node, &self.server), self.server_pid, "{when}");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let answers = || http::get(address, "/").is_ok_and(|page| page.text() == "hello\n");
        assert!(eventually(LIMIT, answers), "{when}: nobody is at {address}");

        let id = &self.counter.id;
        let written = node
            .cri()
            .sh(id, "echo x >> /data/lines; wc -l < /data/lines");
        let lines = fs::read_to_string(data.join("lines")).expect("the container wrote it");
        assert_eq!(lines.lines().count().to_string(), written.trim(), "{when}");
        let device = node.root().path().join("dev/acme0");
        let found = node.cri().sh(id, &format!("ls {}", device.display()));
        assert_eq!(found, device.display().to_string(), "{when}");
        let stats = node.cri().stats(id).expect("it has statistics");
        let memory = stats.memory.as_ref();
        let memory = memory.and_then(|memory| memory.working_set_bytes.as_ref());
        assert!(
            memory.is_some_and(|bytes| bytes.value > 0),
            "{when}: {stats:?}"
        );

        let mut other = node.pod_config("other");
        with_port(&mut other, self.port);
        let taken = format!("{}/tcp", self.port);
        assert_refused(node.cri().run_pod(&other), &[&taken, "kubernetes"]);
        let thief = node.pod("thief");
        let refused = thief.try_create(&with_device(node, "main", "acme0"));
        assert_refused(refused, &["is held by", "kubernetes"]);
        assert_eq!(thief.run_shell("echo works", |_| {}), "works", "{when}");
    }
}

/// Starts a pull whose layer does not come, replaces the program, and lets the client try again, as a kubelet does.
#[track_caller]
fn install_amid_pull(node: &TestNode, program: &Path, when: &str) {
    let seed = u64::from(free_port());
    let image = busybox().layer(random_layer(200_000, seed)).build();
    let name = format!("upgrades/pulled-{seed}:1");
    node.registry().push(&name, &image);
    let reference = node.registry().reference(&name);
    let layer = &image.layers[1].digest;
    let proxy = node.registry().proxy();
    let before = proxy.count(layer);
    proxy.add_fault(layer, RegistryFault::Hold);
    thread::scope(|scope| {
        let pull = scope.spawn(|| node.cri().pull(&reference, None));
        let is_asked = eventually(LIMIT, || proxy.count(layer) > before);
        if is_asked {
            install(node, program);
        }
        proxy.release();
        // Whether it fails depends on how far the daemon was.
        let _ = pull.join().expect("a call does not panic");
        assert!(is_asked, "{when}: the layer is not asked for");
    });
    let id = retry(LIMIT, when, || node.cri().pull(&reference, None));
    assert_eq!(id, image.config.digest, "{when}");
}

#[track_caller]
fn pods_go_through_versions(containerd: Containerd) {
    let node = TestNode::start_version(&versions::former(), containerd, two_devices);
    let data = node.root().path().join("data");
    fs::create_dir(&data).expect("the root can be written");
    let web = WebPod::start(&node, &data);
    web.assert_works(&node, &data, BEFORE);
    let mut started = vec![Counter::start(&node, "before")];
    for (program, when) in following() {
        install_amid_pull(&node, &program, when);
        web.assert_works(&node, &data, when);
        for counter in &started {
            counter.assert_runs(when);
        }
        // It ends under this version, and another one of this version under the next.
        for counter in std::mem::take(&mut started) {
            counter.end(when);
        }
        started.push(Counter::start(&node, "after"));
    }
    for counter in started {
        counter.end("at the end");
    }
    let port = web.port;
    web.counter.end("at the end");
    // All that it had is free.
    let next = node.pod_with("next", |config| with_port(config, port));
    let _ = next.start(&with_device(&node, "main", "acme0"));
}

#[test]
fn pods_keep_all_they_have_through_an_upgrade_and_a_rollback() {
    pods_go_through_versions(Containerd::Managed);
}

#[test]
fn pods_keep_all_they_have_through_an_upgrade_and_a_rollback_beside_an_external_containerd() {
    pods_go_through_versions(Containerd::External);
}
