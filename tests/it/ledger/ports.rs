//! One host port that both a pod and a task want, or that a program of the node has.

use std::net::{Ipv4Addr, TcpListener};
use std::thread;
use std::time::Duration;

use serde_json::json;
use switchyard_proto::cri::v1::PortMapping;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_proto::nomad::drivers::proto::network_isolation_spec::NetworkIsolationMode;
use switchyard_tests::host::{eventually, free_port, random_name};
use switchyard_tests::network::port_rules;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};
use tonic::{Code, Status};

/// Number of races of each pair.
const ROUNDS: u64 = 8;

/// The network of the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RacedNetwork {
    Bridge,
    Host,
    Group,
}

/// A task to which its agent has assigned a host port.
fn task(node: &TestNode, agent: &Agent, network: RacedNetwork, port: u16) -> TaskSetup {
    let mode = if network == RacedNetwork::Host {
        "host"
    } else {
        ""
    };
    let mut config = json!({
        "image": node.image(), "command": "sleep", "args": ["1000"], "network_mode": mode, "ports": ["http"],
    });
    if network == RacedNetwork::Group {
        config["ports"] = json!([]);
    }
    let mut task = TaskSetup::new(node.root(), agent, "web", &config);
    let given = nomad::PortMapping {
        label: "http".into(),
        value: port.into(),
        to: 80,
        host_ip: String::new(),
    };
    task.config
        .resources
        .as_mut()
        .expect("it has some")
        .ports
        .push(given);
    if network == RacedNetwork::Group {
        let made = agent
            .driver()
            .create_network(&task.config.alloc_id, "web")
            .expect("a network can be made");
        task.config.network_isolation_spec = made.isolation_spec;
        assert_eq!(
            task.config
                .network_isolation_spec
                .as_ref()
                .map(|spec| spec.mode()),
            Some(NetworkIsolationMode::Group)
        );
    }
    task
}

fn end(agent: &Agent, mut task: TaskSetup) {
    // What was refused is not there.
    let _ = agent.driver().stop(task.id(), Duration::ZERO, "");
    let _ = agent.driver().destroy(task.id(), true);
    if let Some(spec) = task.config.network_isolation_spec.take() {
        agent
            .driver()
            .destroy_network(&task.config.alloc_id, spec)
            .expect("its network is removed");
    }
    task.remove_cgroups();
}

/// Checks that a refusal names what was requested and who holds it.
#[track_caller]
fn assert_names(refused: &Status, port: u16, owner: &str, name: &str) {
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let text = refused.message();
    for word in [&format!("{port}/tcp"), owner, name] {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

fn race(network: RacedNetwork) {
    let node = TestNode::shared();
    let agent = Agent::start(
        node.root(),
        &json!({ "must_create_network": network == RacedNetwork::Group }),
    );
    let mut won = [0, 0];
    for round in 0..ROUNDS {
        let port = free_port();
        let name = format!("race-{}", random_name());
        let mut pod = node.pod_config(&name);
        pod.port_mappings = vec![PortMapping {
            container_port: 80,
            host_port: port.into(),
            ..Default::default()
        }];
        let task = task(&node, &agent, network, port);
        let driver = agent.driver();
        // A task takes longer until it asks: with a head start both win now and then, and in the last round
        // the task has the port first.
        let last = round + 1 == ROUNDS;
        let (of_pod, of_task) = thread::scope(|scope| {
            let tasks = scope.spawn(|| driver.start(&task.config));
            thread::sleep(Duration::from_millis(20 * round));
            if last {
                let of_task = tasks.join().expect("it answers");
                (node.cri().run_pod(&pod), of_task)
            } else {
                (node.cri().run_pod(&pod), tasks.join().expect("it answers"))
            }
        });
        match (of_pod, of_task) {
            (Ok(id), Err(refused)) => {
                won[0] += 1;
                assert_names(&refused, port, "kubernetes", &name);
                let rules = port_rules(port);
                assert!(
                    !rules.is_empty() && rules.iter().all(|rule| rule.contains(&id)),
                    "{rules:#?}"
                );
                node.cri().stop_pod(&id).expect("it can be stopped");
                node.cri().remove_pod(&id).expect("it can be removed");
                driver.start(&task.config).expect("the port is free");
            }
            (Err(refused), Ok(_)) => {
                won[1] += 1;
                assert_names(&refused, port, "nomad", task.id());
                assert_eq!(
                    port_rules(port).is_empty(),
                    network != RacedNetwork::Bridge,
                    "{:#?}",
                    port_rules(port)
                );
                driver
                    .stop(task.id(), Duration::ZERO, "")
                    .expect("it can be stopped");
                driver
                    .destroy(task.id(), true)
                    .expect("it can be destroyed");
                let id = node.cri().run_pod(&pod).expect("the port is free");
                node.cri().stop_pod(&id).expect("it can be stopped");
                node.cri().remove_pod(&id).expect("it can be removed");
            }
            (pod, task) => panic!("one of both must have port {port}: {pod:?}, {task:?}"),
        }
        end(&agent, task);
        assert!(port_rules(port).is_empty(), "{:#?}", port_rules(port));
    }
    assert!(
        won.iter().all(|won| *won > 0),
        "both must have won: {won:?}"
    );
}

#[test]
fn last_bridge_port_goes_to_a_pod_or_a_task_never_both() {
    race(RacedNetwork::Bridge);
}

#[test]
fn last_host_network_port_goes_to_a_pod_or_a_task_never_both() {
    race(RacedNetwork::Host);
}

#[test]
fn last_group_network_port_goes_to_a_pod_or_a_task_never_both() {
    race(RacedNetwork::Group);
}

#[test]
fn port_holder_survives_daemon_kill() {
    let node = TestNode::start();
    let agent = Agent::start(node.root(), &json!({}));
    let port = free_port();
    let other = free_port();
    let pod = node.pod_with("holder", |config| {
        config.port_mappings = vec![PortMapping {
            container_port: 80,
            host_port: port.into(),
            ..Default::default()
        }];
    });
    let holder = task(&node, &agent, RacedNetwork::Host, other);
    agent.driver().start(&holder.config).expect("it starts");
    node.daemon().kill9();
    node.daemon().restart();
    let agent = Agent::start(node.root(), &json!({}));
    let refused_task = task(&node, &agent, RacedNetwork::Host, port);
    assert_names(
        &agent.driver().start(&refused_task.config).unwrap_err(),
        port,
        "kubernetes",
        "holder",
    );
    let mut config = node.pod_config("refused");
    config.port_mappings = vec![PortMapping {
        container_port: 80,
        host_port: other.into(),
        ..Default::default()
    }];
    assert_names(
        &node.cri().run_pod(&config).unwrap_err(),
        other,
        "nomad",
        holder.id(),
    );
    drop(pod);
    agent
        .driver()
        .start(&refused_task.config)
        .expect("the port is free");
    end(&agent, refused_task);
    end(&agent, holder);
}

#[test]
fn port_of_a_listening_program_is_refused_to_a_task_and_given_to_a_pod_with_an_event() {
    let node = TestNode::start();
    let agent = Agent::start(node.root(), &json!({}));
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("the host has a free port");
    let port = listener.local_addr().expect("it listens").port();
    let refused_task = task(&node, &agent, RacedNetwork::Bridge, port);
    let refused = agent.driver().start(&refused_task.config).unwrap_err();
    let process = format!("(pid {})", std::process::id());
    assert_names(&refused, port, "is in use by the process", &process);
    assert!(port_rules(port).is_empty(), "{:#?}", port_rules(port));
    // A task on the host's network binds the port itself.
    let on_host = task(&node, &agent, RacedNetwork::Host, port);
    agent.driver().start(&on_host.config).expect("it starts");
    end(&agent, on_host);
    let mut pod = node.pod_config("taken");
    pod.port_mappings = vec![PortMapping {
        container_port: 80,
        host_port: port.into(),
        ..Default::default()
    }];
    let id = node.cri().run_pod(&pod).expect("it runs on containerd too");
    let is_told = || {
        let events = node.output(&["events"]);
        let word = format!("{port}/tcp is in use by the process");
        let mut lines = events.lines();
        lines.any(|line| line.contains("conflict") && line.contains(&word))
    };
    assert!(eventually(Duration::from_secs(20), is_told), "no event");
    node.cri().stop_pod(&id).expect("it can be stopped");
    node.cri().remove_pod(&id).expect("it can be removed");
    drop(listener);
    agent
        .driver()
        .start(&refused_task.config)
        .expect("nobody listens any more");
    end(&agent, refused_task);
}
