//! One client: creates, uses and removes pods and containers, and checks each answer against the earlier
//! ones.
//!
//! Longer than 500 lines because each action of one client checks and changes the same model.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use switchyard_proto::cri::v1 as cri;

use super::calls::{FinalAnswer, RetryingCalls};
use super::evidence;
use super::expected_state::ObjectState;
use super::random::Random;
use crate::cri::{Cri, namespaces};
use crate::host::free_port;
use crate::node::TestNode;

mod checks;

/// The most pods that one client has at a time.
const MAX_PODS: usize = 3;
/// The ports that one client publishes, one after the other: a port is used again when its pod is gone.
const PORTS: usize = MAX_PODS + 1;
/// The port of a container to which they lead.
const CONTAINER_PORT: i32 = 80;
/// The most containers of one pod.
const MAX_CONTAINERS: usize = 2;
/// The exit code of a container that exits by itself, and of one that exits on its stop signal.
const OWN_CODE: i32 = 7;
const SIGTERM_HANDLED_CODE: i32 = 3;
/// The exit code of a container that was killed, that was stopped before it had installed its signal handler,
/// or that never ran.
const KILLED_CODE: i32 = 137;
const SIGTERM_UNHANDLED_CODE: i32 = 143;
const FAILED_START_CODE: i32 = 128;
/// The number of lines that a container writes which exits by itself.
const LINES: u64 = 60;
/// Limit until an exit, or the rest of a log, is visible.
const END_VISIBLE_LIMIT: Duration = Duration::from_secs(40);
/// The same for the rest of a log that may be lost for an excused reason.
const EXCUSED_LOG_LIMIT: Duration = Duration::from_secs(3);
/// Limit until the network of a pod is what was said of it. Plugins end that of a former pod behind the answer to its stop, one process after
/// the other, and the next daemon runs them again where a kill cut them off: until then the rules of both lead from the port.
const NETWORK_LIMIT: Duration = Duration::from_secs(40);

/// A pod of this client.
#[derive(Debug)]
struct ClientPod {
    id: String,
    config: cri::PodSandboxConfig,
    /// Its address; `None` if its shim was killed before it said which.
    address: Option<IpAddr>,
    /// Its published port.
    port: u16,
    stopped: bool,
    containers: Vec<ClientContainer>,
    containers_created: u32,
}

/// A container of this client.
#[derive(Debug)]
struct ClientContainer {
    id: String,
    name: String,
    /// True if it exits by itself.
    exits_by_itself: bool,
    started: bool,
    /// Time at which its stop was requested or its exit was first seen.
    ending_since: Option<Instant>,
    code: Option<i32>,
}

/// A client.
#[derive(Debug)]
pub(super) struct ChaosClient<'r> {
    number: u32,
    node: &'r TestNode,
    cri: Cri,
    calls: RetryingCalls<'r>,
    random: Random,
    pods: Vec<ClientPod>,
    pods_created: u32,
    ports: [u16; PORTS],
}

impl<'r> ChaosClient<'r> {
    pub(super) fn new(
        number: u32,
        node: &'r TestNode,
        calls: RetryingCalls<'r>,
        random: Random,
    ) -> Self {
        let cri = Cri::new(&node.root().cri_socket());
        Self {
            number,
            node,
            cri,
            calls,
            random,
            pods: Vec::new(),
            pods_created: 0,
            ports: std::array::from_fn(|_| free_port()),
        }
    }

    /// Does one random action that the seed chooses.
    pub(super) fn act(&mut self) {
        if self.pods.is_empty() || (self.pods.len() < MAX_PODS && self.random.percent(25)) {
            self.run_pod();
            return;
        }
        let at = self.random.index(self.pods.len());
        let choice = self.random.below(100);
        if self.pods[at].stopped || self.is_shim_killed(&self.pods[at].id) {
            self.remove_pod(at);
            return;
        }
        if self.random.percent(10) {
            self.check_network(at);
            return;
        }
        let containers = self.pods[at].containers.len();
        if containers == 0 || (containers < MAX_CONTAINERS && choice < 35) {
            self.create(at);
            return;
        }
        let which = self.random.index(containers);
        match choice {
            0..50 => self.exec(at, which),
            50..65 => self.check_status(at, which),
            65..78 => self.stop(at, which),
            78..88 => self.remove(at, which),
            88..93 => self.stop_pod(at),
            _ => self.remove_pod(at),
        }
    }

    /// Checks all objects of this client, then removes them.
    pub(super) fn finish(&mut self) {
        for at in 0..self.pods.len() {
            self.check_network(at);
            for which in 0..self.pods[at].containers.len() {
                self.check_status(at, which);
            }
        }
        while !self.pods.is_empty() {
            self.remove_pod(0);
        }
    }

    fn is_shim_killed(&self, id: &str) -> bool {
        self.calls.expected.is_shim_killed(id)
    }

    fn report_violation(&self, what: impl std::fmt::Display) {
        self.calls
            .recorder
            .violation(format_args!("client {}: {what}", self.number));
    }

    /// Reports a violation about a container, with everything that was logged about it.
    fn report_container_violation(&self, at: usize, which: usize, what: impl std::fmt::Display) {
        let evidence = evidence::collect(
            self.node,
            self.calls.recorder,
            &self.pods[at].containers[which].id,
            &self.log_path(at, which),
        );
        self.report_violation(format_args!("{what}{evidence}"));
    }

    fn log_path(&self, at: usize, which: usize) -> PathBuf {
        let pod = &self.pods[at];
        Path::new(&pod.config.log_directory).join(format!("{}.log", pod.containers[which].name))
    }

    fn run_pod(&mut self) {
        self.pods_created += 1;
        let mut config = self
            .node
            .pod_config(&format!("c{}-p{}", self.number, self.pods_created));
        // Some pods have a pause process, which has a shim.
        if self.random.percent(25) {
            namespaces(&mut config).set_pid(cri::NamespaceMode::Pod);
        }
        let port = self.next_port();
        config.port_mappings = vec![cri::PortMapping {
            container_port: CONTAINER_PORT,
            host_port: i32::from(port),
            ..Default::default()
        }];
        // Some have limits, for which the daemon makes another device.
        if self.random.percent(25) {
            for direction in ["ingress", "egress"] {
                let limit = format!("kubernetes.io/{direction}-bandwidth");
                config.annotations.insert(limit, "100M".to_owned());
            }
        }
        let name = config.metadata.clone().unwrap_or_default().name;
        let Some(id) = self
            .calls
            .call_expecting_ok("RunPodSandbox", &name, || self.cri.run_pod(&config))
        else {
            return;
        };
        self.calls.expected.add(&id, None);
        let address = self.address(&id);
        self.pods.push(ClientPod {
            id,
            config,
            address,
            port,
            stopped: false,
            containers: Vec::new(),
            containers_created: 0,
        });
    }

    /// The one of the client's ports that is not in use, and was not for the longest time.
    fn next_port(&mut self) -> u16 {
        let pods = &self.pods;
        let is_free = |port: &u16| !pods.iter().any(|pod| pod.port == *port);
        let free = self.ports.iter().position(is_free);
        let free = free.expect("there are more ports than pods");
        // It becomes the last one.
        self.ports[free..].rotate_left(1);
        self.ports[PORTS - 1]
    }

    fn create(&mut self, at: usize) {
        let ends = self.random.percent(25);
        let script = if ends {
            format!(
                "n=0; while [ $n -lt {LINES} ]; do for i in 1 2 3 4; do n=$((n+1)); echo $n; done; sleep 0.1; done; exit {OWN_CODE}"
            )
        } else {
            format!(
                "n=1; trap 'echo end $n; exit {SIGTERM_HANDLED_CODE}' TERM; while :; do for i in 1 2 3 4 5; do echo $n; n=$((n+1)); done; sleep 0.1; done"
            )
        };
        let pod = &mut self.pods[at];
        pod.containers_created += 1;
        let name = format!("main{}", pod.containers_created);
        let config = self.node.container(&name, &["sh", "-c", &script]);
        let pod_id = pod.id.clone();
        let pod_config = pod.config.clone();
        let made = self.calls.call("CreateContainer", &name, || {
            self.cri.create(&pod_id, &config, &pod_config)
        });
        let id = match made.map(|answer| (answer.result, answer.first_sent)) {
            Some((Ok(id), _)) => id,
            Some((Err(status), asked)) => {
                if !self.calls.is_excused(asked) && !self.is_shim_killed(&pod_id) {
                    self.report_violation(format_args!(
                        "CreateContainer {name} in {pod_id}: {status}"
                    ));
                }
                return;
            }
            None => return,
        };
        self.calls.expected.add(&id, Some(&pod_id));
        let container = ClientContainer {
            id,
            name,
            exits_by_itself: ends,
            started: false,
            ending_since: None,
            code: None,
        };
        self.pods[at].containers.push(container);
        // Some containers stay in the state created for a while.
        if !self.random.percent(15) {
            let which = self.pods[at].containers.len() - 1;
            self.start(at, which);
        }
    }

    fn start(&mut self, at: usize, which: usize) {
        let (id, ends) = {
            let container = &self.pods[at].containers[which];
            (container.id.clone(), container.exits_by_itself)
        };
        self.calls.expected.set_state(&id, ObjectState::Changing);
        let Some(FinalAnswer {
            result,
            first_sent: asked,
            repeated,
        }) = self
            .calls
            .call("StartContainer", &id, || self.cri.start(&id))
        else {
            return;
        };
        let Some(status) = self.status(&id) else {
            return;
        };
        let state = status.state();
        let refused = result.err();
        match state {
            cri::ContainerState::ContainerRunning => {
                // A start that got no answer may have been carried out; then its repetition is refused.
                if let Some(refusal) = refused
                    && !repeated
                {
                    self.report_container_violation(
                        at,
                        which,
                        format_args!("StartContainer {id}: {refusal}, but it runs"),
                    );
                }
                self.pods[at].containers[which].started = true;
                self.calls
                    .expected
                    .set_state(&id, ObjectState::Running { ends });
            }
            cri::ContainerState::ContainerExited if status.exit_code == FAILED_START_CODE => {
                if self.calls.is_excused(asked) {
                    self.calls.recorder.outcome().failed_starts += 1;
                } else {
                    self.report_container_violation(
                        at,
                        which,
                        format_args!("a start of {id} failed: {refused:?}, {status:?}"),
                    );
                }
                self.record_end(at, which, FAILED_START_CODE);
            }
            cri::ContainerState::ContainerExited => {
                self.pods[at].containers[which].started = true;
                self.check_end(at, which, &status);
            }
            // In a pod that was stopped or whose shim was killed, no container can be started.
            cri::ContainerState::ContainerCreated
                if self.pods[at].stopped || self.is_shim_killed(&self.pods[at].id) =>
            {
                self.calls.expected.set_state(&id, ObjectState::Present);
            }
            cri::ContainerState::ContainerCreated | cri::ContainerState::ContainerUnknown => {
                self.report_container_violation(
                    at,
                    which,
                    format_args!("after its start {id} is {state:?}: {refused:?}"),
                );
            }
        }
    }

    fn exec(&mut self, at: usize, which: usize) {
        let (id, usable) = {
            let container = &self.pods[at].containers[which];
            (
                container.id.clone(),
                container.started && !container.exits_by_itself && container.code.is_none(),
            )
        };
        if !usable {
            self.check_status(at, which);
            return;
        }
        let word = format!("word{}", self.random.below(1_000_000));
        let Some(FinalAnswer {
            result,
            first_sent: asked,
            ..
        }) = self
            .calls
            .call("ExecSync", &id, || self.cri.exec(&id, &["echo", &word], 20))
        else {
            return;
        };
        match result {
            Ok(said) if said.exit_code == 0 && said.stdout == format!("{word}\n").as_bytes() => {}
            _ if self.is_shim_killed(&id) || self.calls.is_excused(asked) => {}
            other => self.report_violation(format_args!("ExecSync {word} in {id}: {other:?}")),
        }
    }

    /// Checks that the status of a container agrees with the answers so far.
    fn check_status(&mut self, at: usize, which: usize) {
        let container = &self.pods[at].containers[which];
        let id = container.id.clone();
        let code = container.code;
        let started = container.started;
        let ends = container.exits_by_itself;
        if !started && code.is_none() {
            self.start(at, which);
            return;
        }
        let Some(status) = self.status(&id) else {
            return;
        };
        match (status.state(), code) {
            (cri::ContainerState::ContainerExited, Some(code)) => {
                if status.exit_code != code {
                    self.report_container_violation(
                        at,
                        which,
                        format_args!(
                            "the exit code of {id} was {code} and is {}",
                            status.exit_code
                        ),
                    );
                }
            }
            (cri::ContainerState::ContainerExited, None) if ends || self.is_shim_killed(&id) => {
                self.check_end(at, which, &status);
            }
            (cri::ContainerState::ContainerRunning, None) => self.check_log(at, which),
            (state, code) => self.report_container_violation(
                at,
                which,
                format_args!("{id} is {state:?}, its code was {code:?}: {status:?}"),
            ),
        }
    }

    fn stop(&mut self, at: usize, which: usize) {
        let id = self.pods[at].containers[which].id.clone();
        let pod_id = self.pods[at].id.clone();
        if self.pods[at].containers[which].code.is_some()
            || !self.pods[at].containers[which].started
        {
            self.check_status(at, which);
            return;
        }
        let grace = if self.random.percent(70) { 10 } else { 0 };
        self.pods[at].containers[which]
            .ending_since
            .get_or_insert_with(Instant::now);
        self.calls.expected.set_state(&id, ObjectState::Changing);
        if self
            .calls
            .call_expecting_ok("StopContainer", &id, || self.cri.stop(&id, grace))
            .is_none()
        {
            return;
        }
        let Some(status) = self.status(&id) else {
            return;
        };
        if status.state() == cri::ContainerState::ContainerExited {
            self.check_end(at, which, &status);
        } else {
            self.report_container_violation(
                at,
                which,
                format_args!("after its stop {id} of {pod_id} is {:?}", status.state()),
            );
        }
    }

    fn remove(&mut self, at: usize, which: usize) {
        let id = self.pods[at].containers[which].id.clone();
        self.calls.expected.set_state(&id, ObjectState::Changing);
        if self
            .calls
            .call_expecting_ok("RemoveContainer", &id, || self.cri.remove(&id))
            .is_none()
        {
            return;
        }
        self.pods[at].containers.remove(which);
        self.calls.expected.set_state(&id, ObjectState::Gone);
        let answer = self
            .calls
            .call("ContainerStatus", &id, || self.cri.status(&id));
        self.expect_gone(&id, answer.map(|answer| answer.result.map(drop)));
    }

    fn stop_pod(&mut self, at: usize) {
        let id = self.pods[at].id.clone();
        let now = Instant::now();
        self.calls.expected.set_state(&id, ObjectState::Changing);
        for container in &mut self.pods[at].containers {
            container.ending_since.get_or_insert(now);
            self.calls
                .expected
                .set_state(&container.id, ObjectState::Changing);
        }
        if self
            .calls
            .call_expecting_ok("StopPodSandbox", &id, || self.cri.stop_pod(&id))
            .is_none()
        {
            return;
        }
        self.pods[at].stopped = true;
        self.calls.expected.set_state(&id, ObjectState::Ended(0));
        for which in 0..self.pods[at].containers.len() {
            if !self.pods[at].containers[which].started {
                continue;
            }
            let id = self.pods[at].containers[which].id.clone();
            let Some(status) = self.status(&id) else {
                continue;
            };
            if status.state() == cri::ContainerState::ContainerExited {
                self.check_end(at, which, &status);
            } else {
                self.report_container_violation(
                    at,
                    which,
                    format_args!("after the stop of its pod {id} is {:?}", status.state()),
                );
            }
        }
    }

    fn remove_pod(&mut self, at: usize) {
        let pod = self.pods.remove(at);
        self.calls
            .expected
            .set_state(&pod.id, ObjectState::Changing);
        for container in &pod.containers {
            self.calls
                .expected
                .set_state(&container.id, ObjectState::Changing);
        }
        // Kubelets stop a pod before they remove it, crictl need not.
        if self.random.percent(60)
            && self
                .calls
                .call_expecting_ok("StopPodSandbox", &pod.id, || self.cri.stop_pod(&pod.id))
                .is_none()
        {
            return;
        }
        if self
            .calls
            .call_expecting_ok("RemovePodSandbox", &pod.id, || self.cri.remove_pod(&pod.id))
            .is_none()
        {
            return;
        }
        for container in &pod.containers {
            self.calls
                .expected
                .set_state(&container.id, ObjectState::Gone);
        }
        self.calls.expected.set_state(&pod.id, ObjectState::Gone);
        let answer = self
            .calls
            .call("PodSandboxStatus", &pod.id, || self.cri.pod_status(&pod.id));
        self.expect_gone(&pod.id, answer.map(|answer| answer.result.map(drop)));
    }

    fn status(&self, id: &str) -> Option<cri::ContainerStatus> {
        self.calls
            .call_expecting_ok("ContainerStatus", id, || self.cri.status(id))
    }
}
