//! Kills during RunPodSandbox, StartPodSandbox, StopPodSandbox and RemovePodSandbox.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};

use switchyard_crash_points::CrashPoint::{self, *};
use switchyard_crash_points::Operation;
use switchyard_namespaces::is_namespace_file;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::cri::namespaces;
use switchyard_tests::host::eventually;
use switchyard_tests::leak_scan::{NAMESPACE, ctr};
use switchyard_tests::node::TestPod;

use super::cases::KillCase;
use super::fixture::{KillFixture, KillPoint, LIMIT};

/// Steps that RunPodSandbox takes several times, and of operations that it includes.
pub(super) const RUN_FURTHER: &[(CrashPoint, u32)] = &[
    (FileDrafted, 1),
    (FileNamed, 2),
    (PinMounted, 2),
    (PluginAdded, 2),
    (PluginAdded, 3),
    (ResultSaved, 3),
];

pub(super) const POD_START_CASES: &[KillCase] = &[
    KillCase::of(run_pod, Operation::CreateSandbox).and(RUN_FURTHER),
    KillCase::of(recover, Operation::Recover),
    KillCase::of(migrate_labels, Operation::RenewObject),
    KillCase::of(set_pod_cidr, Operation::SetRanges).and(&[(FileDrafted, 1), (FileNamed, 1)]),
];

pub(super) const POD_END_CASES: &[KillCase] = &[
    KillCase::of(stop_pod, Operation::StopSandbox).and(&[
        (PluginDeleted, 2),
        (PluginDeleted, 3),
        (PinReleased, 2),
    ]),
    KillCase::of(remove_pod, Operation::RemoveSandbox),
    KillCase::of(start_pod, Operation::StartSandbox).and(&[
        (PluginAdded, 2),
        (InfraCreated, 1),
        (SandboxMarked, 1),
    ]),
    KillCase::of(update_pod, Operation::AmendSandbox),
];

/// A pod whose creation takes every step: with a host port and an infra process.
pub(super) fn config(fixture: &KillFixture) -> cri::PodSandboxConfig {
    let mut config = fixture.node.pod_config("run");
    namespaces(&mut config).set_pid(cri::NamespaceMode::Pod);
    let free =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    config.port_mappings = vec![cri::PortMapping {
        container_port: 80,
        host_port: free.expect("loopback has a free port").port().into(),
        ..Default::default()
    }];
    config
}

pub(super) fn run_pod(fixture: &KillFixture, kill: KillPoint) {
    let config = config(fixture);
    fixture.killed_during(kill, || fixture.node.cri().run_pod(&config));
    assert_runs(fixture, kill, config);
}

/// The daemon that removes what a killed predecessor has created is killed as well.
fn recover(fixture: &KillFixture, kill: KillPoint) {
    let config = config(fixture);
    fixture.two_daemons_killed_during(SandboxAttached, kill, || {
        fixture.node.cri().run_pod(&config)
    });
    assert_runs(fixture, kill, config);
}

/// The pod was created by an earlier version, which put all its labels on the containerd object; the daemon
/// is killed while it removes them from there.
fn migrate_labels(fixture: &KillFixture, kill: KillPoint) {
    let label = "containerd.io/gc.ref.content.x";
    let pod = fixture.node.pod_with("renew", |config| {
        config.labels = [(label.to_owned(), "early".to_owned())].into();
    });
    let socket = fixture
        .node
        .root()
        .containerd_socket()
        .expect("the node has a containerd");
    let words = ["containers", "label", pod.id(), &format!("{label}=early")];
    let outcome = ctr(&socket, NAMESPACE, &words).join("\n");
    assert!(outcome.contains("early"), "{outcome}");
    fixture.node.daemon().kill9();
    fixture.node.daemon().kill_at(&[(kill.step, kill.nth)]);
    fixture.node.daemon().spawn();
    fixture.node.daemon().wait_killed();
    fixture.node.daemon().restart();
    let object = ctr(&socket, NAMESPACE, &["containers", "info", pod.id()]).join("\n");
    assert!(
        object.contains(pod.id()) && !object.contains("gc.ref"),
        "{kill:?}: {object}"
    );
    assert_eq!(pod.run_shell("echo works", |_| {}), "works", "{kill:?}");
    drop(pod);
    fixture.assert_undisturbed(kill);
    fixture.assert_nothing_left(kill);
}

/// Repeating the request gives exactly one pod, which works.
#[track_caller]
fn assert_runs(fixture: &KillFixture, kill: KillPoint, config: cri::PodSandboxConfig) {
    let pod = fixture.node.run(config);
    let again = fixture
        .node
        .cri()
        .run_pod(pod.config())
        .expect("it can be sent again");
    assert_eq!(again, pod.id(), "{kill:?}");
    assert_eq!(
        fixture.node.cri().pods().expect("they can be listed").len(),
        2,
        "{kill:?}"
    );
    assert_eq!(
        pod.status().state(),
        cri::PodSandboxState::SandboxReady,
        "{kill:?}"
    );
    let seen = pod.run_shell(
        "ip -4 addr show eth0; hostname; cat /etc/resolv.conf > /dev/null",
        |_| {},
    );
    assert!(seen.contains(&pod.ip()), "{kill:?}: {seen}");
    drop(pod);
    fixture.assert_nothing_left(kill);
}

pub(super) fn stop_pod(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.run(config(fixture));
    let container = pod.start_shell("main", "exec sleep 1000");
    let mut is_answered = false;
    fixture.killed_during(kill, || {
        let answer = fixture.node.cri().stop_pod(pod.id());
        // What plugins do is behind the answer.
        is_answered = answer.is_ok();
        answer.and(Err::<(), _>(tonic::Status::aborted(
            "killed behind the answer",
        )))
    });
    if is_answered {
        assert_eq!(
            pod.status().state(),
            cri::PodSandboxState::SandboxNotready,
            "{kill:?}: it was answered"
        );
    }
    fixture
        .node
        .cri()
        .stop_pod(pod.id())
        .expect("it can be sent again");
    assert_eq!(
        pod.status().state(),
        cri::PodSandboxState::SandboxNotready,
        "{kill:?}"
    );
    let status = fixture
        .node
        .cri()
        .status(&container)
        .expect("it has a status");
    assert_eq!(
        status.state(),
        cri::ContainerState::ContainerExited,
        "{kill:?}"
    );
    assert_eq!(status.exit_code, 137, "{kill:?}: {status:?}");
    fixture
        .node
        .cri()
        .stop_pod(pod.id())
        .expect("a stop is idempotent");
    // What the killed daemon has left behind its answer does not wait for the removal.
    let pins = fixture.node.root().run().join("ns").join(pod.id());
    let is_pinned = || {
        let files = fs::read_dir(&pins).into_iter().flatten().flatten();
        files
            .map(|file| is_namespace_file(&file.path()))
            .any(|looked| looked.expect("it can be looked at"))
    };
    assert!(
        eventually(LIMIT, || !is_pinned()),
        "{kill:?}: a namespace of a stopped pod stays"
    );
    assert_removable(fixture, kill, pod);
}

/// The start of a stopped pod; repeating the request makes the pod ready with the address that it had.
fn start_pod(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.run(config(fixture));
    let address = pod.ip();
    fixture
        .node
        .cri()
        .stop_pod(pod.id())
        .expect("it can be stopped");
    fixture.killed_during(kill, || fixture.node.cri().start_pod(pod.id()));
    fixture
        .node
        .cri()
        .start_pod(pod.id())
        .expect("it can be sent again");
    assert_eq!(
        (pod.status().state(), pod.ip()),
        (cri::PodSandboxState::SandboxReady, address),
        "{kill:?}"
    );
    let seen = pod.run_shell("ip -4 addr show eth0", |_| {});
    assert!(seen.contains(&pod.ip()), "{kill:?}: {seen}");
    assert_removable(fixture, kill, pod);
}

fn remove_pod(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.run(config(fixture));
    let _container = pod.start_shell("main", "exec sleep 1000");
    fixture
        .node
        .cri()
        .stop_pod(pod.id())
        .expect("it can be stopped");
    fixture.killed_during(kill, || fixture.node.cri().remove_pod(pod.id()));
    assert_removable(fixture, kill, pod);
}

/// Afterwards the requested value is reported, whether the request was answered or not.
fn update_pod(fixture: &KillFixture, kill: KillPoint) {
    let pod = fixture.node.run(config(fixture));
    let request = || cri::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: pod.id().to_owned(),
        overhead: None,
        resources: Some(cri::LinuxContainerResources {
            cpu_shares: 700,
            ..Default::default()
        }),
    };
    let amend = || {
        fixture
            .node
            .cri()
            .runtime(async |mut client| client.update_pod_sandbox_resources(request()).await)
    };
    fixture.killed_during(kill, amend);
    assert!(
        fixture
            .node
            .cri()
            .pod_info(pod.id())
            .contains("\"cpu_shares\":700"),
        "{kill:?}"
    );
    amend().expect("it can be sent again");
    assert_removable(fixture, kill, pod);
}

/// Afterwards the names in the request are known, whether it was answered or not, once they are on disk.
fn set_pod_cidr(fixture: &KillFixture, kill: KillPoint) {
    // Each request has new names, since names that are known already are not written again.
    let ranges = format!(
        "10.9.{}.0/24",
        CrashPoint::ALL
            .iter()
            .position(|step| *step == kill.step)
            .expect("it is one")
            % 256
    );
    let name = || fixture.node.cri().set_pod_cidr(&ranges);
    let known = || {
        fixture
            .node
            .cri()
            .node_info("config")
            .contains(&format!("kubernetes: {ranges}"))
    };
    fixture.killed_during(kill, name);
    assert_eq!(known(), kill.step != FileDrafted, "{kill:?}");
    name().expect("it can be sent again");
    assert!(known(), "{kill:?}");
    fixture.assert_nothing_left(kill);
}

#[track_caller]
fn assert_removable(fixture: &KillFixture, kill: KillPoint, pod: TestPod<'_>) {
    fixture
        .node
        .cri()
        .remove_pod(pod.id())
        .expect("it can be sent again");
    fixture
        .node
        .cri()
        .remove_pod(pod.id())
        .expect("a removal is idempotent");
    drop(pod);
    fixture.assert_nothing_left(kill);
}
