//! Processors and memory: a kubelet with a static CPU manager and a Nomad agent that reserve more than one
//! node has.

use std::time::Duration;

use serde_json::{Value, json};
use switchyard_kubelet::{Kubelet, Options};
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::nomad::{Agent, TaskSetup};
use tokio::runtime::Runtime;
use tonic::{Code, Status};

/// A processor that every node has.
const CPU: &str = "0";
const MIB: i64 = 1 << 20;

/// A node that refuses reservations beyond its capacity, and a kubelet that has assigned a processor
/// exclusively.
struct ComputeNode {
    node: TestNode,
    _runtime: Runtime,
    _kubelet: Kubelet,
}

impl ComputeNode {
    fn start() -> Self {
        let node = TestNode::start_configured(|root| {
            let kubelet = root.path().join("kubelet");
            format!(
                "[ledger]\novercommit = \"enforce\"\n[devices.kubelet]\ndirectory = \"{0}/device-plugins\"\n\
                 pod_resources_socket = \"{0}/pod-resources/kubelet.sock\"\n",
                kubelet.display()
            )
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime can be made");
        let kubelet = {
            let _runtime = runtime.enter();
            let dir = node.root().path().join("kubelet");
            let options = Options {
                pod_resources_socket: Some(dir.join("pod-resources/kubelet.sock")),
                exclusive_cpus: vec![CPU.parse().expect("it is a number")],
                ..Options::default()
            };
            Kubelet::start(&dir.join("device-plugins"), options)
        };
        Self {
            node,
            _runtime: runtime,
            _kubelet: kubelet,
        }
    }

    /// The request of a kubelet for a container to which it has assigned the processor.
    fn pinned(&self, pod: &TestPod) -> Result<String, Status> {
        self.container(pod, |limits| {
            limits.cpuset_cpus = CPU.to_owned();
            limits.cpu_shares = 102;
        })
    }

    fn container(
        &self,
        pod: &TestPod,
        change: impl FnOnce(&mut cri::LinuxContainerResources),
    ) -> Result<String, Status> {
        let mut config = self.node.container("main", &["sleep", "1000"]);
        change(
            config
                .linux
                .get_or_insert_default()
                .resources
                .get_or_insert_default(),
        );
        pod.try_create(&config)
    }

    /// Processors and memory in the output of `switchyard devices`.
    fn compute(&self) -> Value {
        let (_, body) = self.node.daemon().get("/v1/devices");
        let report: Value =
            serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
        report["compute"].clone()
    }

    #[track_caller]
    fn assert_held_by(&self, owner: &str) {
        let compute = self.compute();
        let own = compute["exclusive"].as_array().expect("it is a list");
        assert_eq!(own.len(), 1, "{compute:#}");
        assert_eq!(
            (&own[0]["cpus"], &own[0]["owner"]),
            (&json!(CPU), &json!(owner))
        );
    }
}

/// A task to which its agent has assigned the processor and 64 MiB.
fn task(node: &TestNode, agent: &Agent) -> TaskSetup {
    let config = json!({ "image": node.image(), "command": "sleep", "args": ["1000"] });
    let mut task = TaskSetup::new(node.root(), agent, "web", &config);
    let resources = task.config.resources.as_mut().expect("it has some");
    let linux = resources.linux_resources.get_or_insert_default();
    linux.cpuset_cpus = CPU.to_owned();
    linux.cpuset_cgroup = String::new();
    let allocated = resources.allocated_resources.get_or_insert_default();
    allocated.memory = Some(nomad::AllocatedMemoryResources {
        memory_mb: 64,
        memory_max_mb: 0,
    });
    task
}

fn end(agent: &Agent, mut task: TaskSetup) {
    let _ = agent.driver().stop(task.id(), Duration::ZERO, "");
    let _ = agent.driver().destroy(task.id(), true);
    task.remove_cgroups();
}

#[track_caller]
fn assert_mentions(refused: &Status, words: &[&str]) {
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    for word in words {
        assert!(
            refused.message().contains(word),
            "{word:?} is not in {:?}",
            refused.message()
        );
    }
}

#[test]
fn exclusive_core_has_one_holder_across_protocols_and_daemon_kill() {
    let fixture = ComputeNode::start();
    let agent = Agent::start(fixture.node.root(), &json!({}));
    let own = task(&fixture.node, &agent);
    agent.driver().start(&own.config).expect("it is free");
    fixture.assert_held_by("nomad");
    let pod = fixture.node.pod("pod");
    let held = ["the set 0 of processors is held by", own.id(), "of nomad"];
    assert_mentions(&fixture.pinned(&pod).expect_err("it is held"), &held);
    fixture.node.daemon().kill9();
    fixture.node.daemon().restart();
    fixture.assert_held_by("nomad");
    assert_mentions(&fixture.pinned(&pod).expect_err("it is held"), &held);
    let agent = Agent::start(fixture.node.root(), &json!({}));
    end(&agent, own);
    let container = fixture.pinned(&pod).expect("it is free");
    fixture
        .node
        .cri()
        .start(&container)
        .expect("it can be started");
    fixture.assert_held_by("kubernetes");
    let own = task(&fixture.node, &agent);
    assert_mentions(
        &agent.driver().start(&own.config).expect_err("it is held"),
        &["of kubernetes (sandbox"],
    );
    drop(pod);
    agent
        .driver()
        .start(&own.config)
        .expect("it is free, and a start that was refused may be tried again");
    fixture.assert_held_by("nomad");
    end(&agent, own);
    assert_eq!(fixture.compute()["exclusive"], json!([]));
}

#[test]
fn enforced_compute_is_never_overcommitted() {
    let fixture = ComputeNode::start();
    let agent = Agent::start(fixture.node.root(), &json!({}));
    let capacity = fixture.compute()["capacity"].clone();
    let bytes = capacity["memory_bytes"].as_i64().expect("it is known");
    let pod = fixture.node.pod("pod");
    let too_much = fixture.container(&pod, |limits| limits.memory_limit_in_bytes = bytes + MIB);
    assert_mentions(
        &too_much.expect_err("there is not so much"),
        &[
            "MiB of memory is more than is left of",
            "nothing is reserved",
        ],
    );
    let most = fixture.container(&pod, |limits| {
        limits.memory_limit_in_bytes = bytes - 32 * MIB
    });
    most.expect("there is so much");
    let own = task(&fixture.node, &agent);
    assert_mentions(
        &agent
            .driver()
            .start(&own.config)
            .expect_err("64 MiB are too much now"),
        &[
            "64 MiB of memory is more than is left of",
            "kubernetes has reserved",
        ],
    );
    drop(pod);
    agent.driver().start(&own.config).expect("there is enough");
    let reserved = fixture.compute()["reserved"].clone();
    assert_eq!(reserved[0]["owner"], "nomad");
    assert_eq!(reserved[0]["memory_bytes"], json!(64 * MIB));
    end(&agent, own);
    assert_eq!(fixture.compute()["reserved"], json!([]));
    let (_, metrics) = fixture.node.daemon().get("/metrics");
    for line in [
        format!("switchyard_ledger_memory_capacity_bytes {bytes}"),
        "switchyard_ledger_refusals_total{owner=\"nomad\",reason=\"overcommitted\",resource=\"memory\"} 1"
            .to_owned(),
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line:?} is not in\n{metrics}");
    }
}
