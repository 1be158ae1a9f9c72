//! Pods with a user namespace of their own.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use switchyard_proto::cri::v1::{
    Capability, CdiDevice, ContainerConfig, ContainerMetadata, Device, IdMapping, Int64Value,
    Mount, NamespaceMode, StatusRequest, UserNamespace,
};
use switchyard_proto::cri::v1alpha2 as old;
use switchyard_tests::cri::{context, image_spec, namespaces};
use switchyard_tests::devices::make_device;
use switchyard_tests::host::random_name;
use switchyard_tests::image::{LayerBuilder, busybox};
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::prereq;

/// The host's id of the root inside.
const ROOT: u32 = 200_000;

fn map() -> Vec<IdMapping> {
    vec![IdMapping {
        container_id: 0,
        host_id: ROOT,
        length: 65_536,
    }]
}

fn pod<'n>(node: &'n TestNode, name: &str, pid: NamespaceMode) -> TestPod<'n> {
    node.pod_with(name, |config| {
        let options = namespaces(config);
        options.set_pid(pid);
        let mode = NamespaceMode::Pod.into();
        options.userns_options = Some(UserNamespace {
            mode,
            uids: map(),
            gids: map(),
        });
    })
}

/// Returns whether the handler of this name can make user namespaces, as Status says.
fn supports_user_namespaces(node: &TestNode, handler: &str) -> bool {
    let answer = node
        .cri()
        .runtime(async |mut client| client.status(StatusRequest::default()).await);
    let handlers = answer.expect("it reports its status").runtime_handlers;
    let found = handlers
        .into_iter()
        .find(|found| found.name == handler)
        .expect("it is configured");
    found
        .features
        .is_some_and(|features| features.user_namespaces)
}

#[test]
fn user_namespace_root_is_unprivileged_on_the_host() {
    let node = TestNode::start();
    assert!(
        supports_user_namespaces(&node, ""),
        "Debian's runc can make them"
    );
    let pod = pod(&node, "users", NamespaceMode::Container);
    let dir = node.root().path().join(format!("host-{}", random_name()));
    fs::create_dir(&dir).expect("the root can be written");
    fs::write(dir.join("of-root"), "").expect("the root can be written");
    let device = format!(
        "cdiVersion: 0.7.0\nkind: vendor.example/users\ndevices:\n- name: 0\n  containerEdits:\n    mounts:\n\
         \x20   - {{hostPath: {}, containerPath: /device, options: [bind, ro]}}\n\
         \x20   - {{hostPath: /sys/kernel/mm, containerPath: /device-sys, options: [bind, ro, nosuid, nodev, noexec]}}\n",
        dir.display()
    );
    fs::create_dir_all(node.root().cdi()).expect("the root can be written");
    fs::write(node.root().cdi().join("users.yaml"), device).expect("the root can be written");
    let mount = |at: &str, mapped: bool| Mount {
        host_path: dir.to_str().expect("the path is ASCII").to_owned(),
        container_path: at.to_owned(),
        uid_mappings: if mapped { map() } else { Vec::new() },
        gid_mappings: if mapped { map() } else { Vec::new() },
        ..Default::default()
    };
    let id = pod.start_shell_with("main", "exec sleep 1000", |config| {
        config.mounts = vec![mount("/mapped", true), mount("/plain", false)];
        config.cdi_devices = vec![CdiDevice {
            name: "vendor.example/users=0".to_owned(),
        }];
        let add_capabilities = vec!["NET_ADMIN".to_owned(), "SYS_ADMIN".to_owned()];
        context(config).capabilities = Some(Capability {
            add_capabilities,
            ..Default::default()
        });
    });
    let sh = |script: &str| node.cri().sh(&id, script);
    assert_eq!(
        sh("tr -s ' ' < /proc/self/uid_map; id -u; id -g").trim(),
        format!("0 {ROOT} 65536\n0\n0")
    );
    // The image, the sandbox's files, the idmapped mount and that of the CDI device belong to root; the other mount,
    // and what the device has of a file system that maps no ids, belong to nobody (65534).
    assert_eq!(
        sh(
            "stat -c %u / /bin/busybox /etc/hosts /etc/hostname /etc/resolv.conf /dev/shm /mapped/of-root /device/of-root /plain/of-root /device-sys"
        ),
        "0\n0\n0\n0\n0\n0\n0\n0\n65534\n65534"
    );
    sh(
        "touch /new /mapped/new /dev/shm/new; chown 33:33 /mapped/new; hostname changed; ip link set lo mtu 1400",
    );
    let made = fs::metadata(dir.join("new")).expect("it was made");
    assert_eq!(
        (made.uid(), made.gid()),
        (33, 33),
        "ids on the disk are those inside"
    );
    assert!(sh("touch /plain/new 2>/dev/null || echo refused").contains("refused"));
    assert!(processes_of_root(&node) >= 1, "no process runs as {ROOT}");
    node.daemon().restart();
    assert_eq!(sh("id -u"), "0");
    let options = pod
        .status()
        .linux
        .and_then(|linux| linux.namespaces?.options)
        .expect("they are reported");
    assert_eq!(options.userns_options.expect("it is echoed").uids, map());
}

#[test]
fn named_volume_owners_are_equal_with_and_without_a_user_namespace() {
    let node = TestNode::start();
    assert!(
        supports_user_namespaces(&node, ""),
        "Debian's runc can make them"
    );
    let seed = LayerBuilder::default()
        .dir("data", 0o755)
        .file("data/seed", "seeded\n", 0o644)
        .build();
    node.registry()
        .push("users/named:1", &busybox().layer(seed).build());
    let reference = node.registry().reference("users/named:1");
    node.cri().pull(&reference, None).expect("it can be pulled");
    let run = |pod: &TestPod<'_>, name: &str| {
        let config = old::ContainerConfig {
            metadata: Some(ContainerMetadata {
                name: name.to_owned(),
                attempt: 0,
            }),
            image: Some(image_spec(&reference)),
            command: ["sleep", "1000"].map(str::to_owned).to_vec(),
            mounts: vec![old::Mount {
                container_path: "/data".to_owned(),
                name: "data".to_owned(),
                ..Default::default()
            }],
            ..Default::default()
        };
        let id = node
            .cri()
            .create_v1alpha2(pod.id(), &config)
            .expect("it is well formed");
        node.cri().start(&id).expect("it starts");
        id
    };
    let inside = pod(&node, "inside", NamespaceMode::Container);
    let outside = node.pod("outside");
    let first = run(&inside, "first");
    // What the image has there is root's, and so is what root makes.
    let made = node.cri().sh(
        &first,
        "touch /data/roots && chown 33:33 /data/seed && stat -c %u /data /data/roots",
    );
    assert_eq!(made, "0\n0");
    let second = run(&outside, "second");
    let seen = "stat -c %u /data /data/seed /data/roots";
    assert_eq!(node.cri().sh(&second, seen), "0\n33\n0");
    node.cri().remove(&first).expect("it can be removed");
    let again = run(&inside, "again");
    assert_eq!(node.cri().sh(&again, seen), "0\n33\n0");
    node.cri()
        .remove_volume("data")
        .expect_err("containers have it");
    drop((inside, outside));
    node.cri().remove_volume("data").expect("nothing has it");
    node.assert_clean();
}

/// A runtime binds nodes there, by their paths inside: of another device, if the host has one at that path.
#[test]
fn device_under_another_name_is_that_device_in_a_user_namespace() {
    let node = TestNode::shared();
    // Like /dev/zero.
    let dir = node.root().path().join(format!("dev-{}", random_name()));
    fs::create_dir(&dir).expect("the root can be written");
    let other = dir.join("acme1");
    make_device(&other);
    fs::set_permissions(&other, Permissions::from_mode(0o666)).expect("it is the test's");
    let pod = pod(&node, "named", NamespaceMode::Container);
    let other = other.to_str().expect("it is ASCII");
    // As it is called on the host, as nothing is, and as another device is.
    for inside in [
        "/dev/full",
        "/dev/of/another/name",
        "/no/device/there",
        other,
    ] {
        // Its numbers, since a device that cannot be opened refuses a write too.
        let script = format!(
            "numbers=$(stat -c %t:%T {inside}); echo x 2>/dev/null >{inside} && echo another || echo $numbers full"
        );
        let said = pod.run_shell(&script, |config| {
            config.devices = vec![Device {
                host_path: "/dev/full".into(),
                container_path: inside.into(),
                permissions: "rw".into(),
            }];
        });
        assert_eq!(said, "1:7 full", "{inside}");
    }
}

#[test]
fn user_namespace_goes_with_the_hosts_network() {
    let node = TestNode::shared();
    let answer = node
        .cri()
        .runtime(async |mut client| client.status(StatusRequest::default()).await);
    let features = answer.expect("it reports its status").features;
    assert!(features.is_some_and(|features| features.user_namespaces_host_network));
    let host = fs::read_link("/proc/self/ns/net").expect("this process has a namespace");
    let script = "id -u; tr -s ' ' < /proc/self/uid_map; readlink /proc/self/ns/net;
        ls /sys/class/net | grep -cx lo; mkdir /sys/none 2>&1 | grep -c 'Read-only'; hostname inside 2>/dev/null || echo refused";
    for (name, pid) in [
        ("alone", NamespaceMode::Container),
        ("together", NamespaceMode::Pod),
    ] {
        let pod = node.pod_with(name, |config| {
            let options = namespaces(config);
            options.set_pid(pid);
            options.set_network(NamespaceMode::Node);
            options.userns_options = Some(UserNamespace {
                mode: NamespaceMode::Pod.into(),
                uids: map(),
                gids: map(),
            });
        });
        let id = pod.start_shell("main", "exec sleep 1000");
        assert_eq!(
            node.cri().sh(&id, script),
            format!("0\n 0 {ROOT} 65536\n{}\n1\n1\nrefused", host.display()),
            "{name}"
        );
        // The files of the sandbox are those of its root; the interfaces of the host belong to nobody inside.
        let files = "stat -c %u /etc/hosts /etc/hostname /etc/resolv.conf /sys; ip link set lo mtu 1400 2>/dev/null || echo refused";
        assert_eq!(
            node.cri().sh(&id, files),
            "0\n0\n0\n65534\nrefused",
            "{name}"
        );
    }
}

/// Number of processes of the node that run as the root inside.
fn processes_of_root(node: &TestNode) -> usize {
    let procs = fs::read_dir("/proc").expect("there is a /proc");
    let mapped = |entry: &fs::DirEntry| {
        let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        status
            .lines()
            .any(|line| line.starts_with(&format!("Uid:\t{ROOT}\t")))
    };
    let name = node.root().cgroup_name();
    let ours = |entry: &fs::DirEntry| {
        fs::read_to_string(entry.path().join("cgroup")).is_ok_and(|text| text.contains(&name))
    };
    procs
        .flatten()
        .filter(|entry| mapped(entry) && ours(entry))
        .count()
}

#[test]
fn user_namespace_pod_supports_images_volumes_users_and_shared_pids() {
    let node = TestNode::shared();
    let seed = LayerBuilder::default()
        .dir("data", 0o755)
        .file("data/seed", "seeded\n", 0o600)
        .build();
    let image = busybox().layer(seed).volume("/data").user("app").build();
    node.registry().push("users/volume:1", &image);
    let reference = node.registry().reference("users/volume:1");
    node.cri().pull(&reference, None).expect("it can be pulled");
    let pod = pod(&node, "shared", NamespaceMode::Pod);
    let with = |config: &mut ContainerConfig| {
        config.image = Some(image_spec(&reference));
        config.mounts = vec![Mount {
            container_path: "/image".to_owned(),
            readonly: true,
            image: Some(image_spec(&reference)),
            ..Default::default()
        }];
    };
    let script = "id -u; id -G; stat -c '%U %G' /home/app /data/seed /image/home/app; touch /home/app/x && echo wrote";
    let seen = pod.run_shell(script, with);
    assert_eq!(seen, "1000\n1000 29 44\napp app\nroot root\napp app\nwrote");
    let root = pod.start_shell_with(
        "root",
        "cat /data/seed /image/data/seed; echo new > /data/new; exec sleep 1000",
        |config| {
            with(config);
            context(config).run_as_user = Some(Int64Value { value: 0 });
        },
    );
    pod.wait_log("root", |lines| lines.len() == 2);
    assert_eq!(pod.log_text("root"), "seeded\nseeded");
    assert_eq!(
        node.cri().sh(&root, "cat /proc/1/comm"),
        "pause",
        "the infra process is inside as well"
    );
    // Operators find the files of the volume where the spec says.
    let _ = node.cri().sh(&root, "echo here > /data/here");
    let info: serde_json::Value =
        serde_json::from_str(&node.cri().container_info(&root)).expect("it is JSON");
    let mounts = info["runtimeSpec"]["mounts"].as_array();
    let data = mounts.and_then(|list| list.iter().find(|mount| mount["destination"] == "/data"));
    let source = data.and_then(|mount| mount["source"].as_str());
    let source = source.unwrap_or_else(|| panic!("/data is no mount: {info}"));
    let file = std::path::Path::new(source).join("here");
    assert_eq!(fs::read_to_string(file).expect("it is there"), "here\n");
    let mut beyond = node.container("beyond", &["true"]);
    context(&mut beyond).run_as_user = Some(Int64Value { value: 70_000 });
    let status = pod
        .try_create(&beyond)
        .expect_err("there is no such user inside");
    assert!(status.message().contains("no user 70000"), "{status}");
    drop(pod);
    node.cri()
        .remove_image(&reference)
        .expect("it can be removed");
}

#[test]
fn handler_without_user_namespaces_reports_and_rejects_them() {
    let node = TestNode::start_with(
        "[containerd.runtimes.none]\nbinary = \"/bin/false\"\n",
        |_| {},
    );
    assert!(supports_user_namespaces(&node, "runc") && !supports_user_namespaces(&node, "none"));
    let mut config = node.pod_config("none");
    namespaces(&mut config).userns_options = Some(UserNamespace {
        mode: NamespaceMode::Pod.into(),
        uids: map(),
        gids: map(),
    });
    let status = node
        .cri()
        .run_pod_with(&config, "none")
        .expect_err("it cannot");
    assert!(
        status
            .message()
            .contains("\"none\" of this node has no user namespaces"),
        "{status}"
    );
    namespaces(&mut config).set_ipc(NamespaceMode::Node);
    let status = node
        .cri()
        .run_pod(&config)
        .expect_err("the host's shared memory is not its root's");
    assert!(status.message().contains("userns_options"), "{status}");
    node.assert_clean();
}

/// A kubelet takes what handlers can do from the first answer that says the runtime is ready, and refuses
/// pods by it.
#[test]
fn ready_node_reports_handler_features_after_restart() {
    let mut dir = PathBuf::new();
    let node = TestNode::start_configured(|root| {
        dir = root.path().join("runtime");
        fs::create_dir(&dir).expect("the root can be written");
        let runtime = dir.join("runtime");
        let real = prereq::require("runc", "runc");
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = features ] && sleep 2; while [ \"$1\" = features ] && [ -e {dir}/hang ]; do sleep 0.1; done\nexec {real} \"$@\"\n",
            dir = dir.display(),
            real = real.display(),
        );
        fs::write(&runtime, script).expect("the root can be written");
        fs::set_permissions(&runtime, Permissions::from_mode(0o755)).expect("it is ours");
        format!("[containerd.runtimes.runc]\nbinary = {runtime:?}\n")
    });
    assert!(
        supports_user_namespaces(&node, "runc"),
        "{}",
        node.daemon().tail()
    );
    // The next daemon gets no request before the test ends; it knows the pod from its predecessor.
    fs::write(dir.join("hang"), "").expect("the root can be written");
    node.daemon().kill9();
    node.daemon().restart();
    assert!(
        supports_user_namespaces(&node, "runc"),
        "{}",
        node.daemon().tail()
    );
    fs::remove_file(dir.join("hang")).expect("it is there");
}
