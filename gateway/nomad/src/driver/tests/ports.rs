//! Tests of host ports that both a task and a pod claim: one of them gets the port, and the other is refused
//! with the name of the holder.

use nomad::network_isolation_spec::NetworkIsolationMode;
use switchyard_fake::Method;
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use tonic::service::Routes;

use super::*;

/// A client of the CRI services, as a kubelet uses them for sandboxes.
type Kubelet = RuntimeServiceClient<Routes>;

/// Number of races of each of the three pairs.
const RACES: usize = 334;

const PORT: u16 = 23_456;

/// The network that a task is on.
#[derive(Debug, Clone, Copy)]
enum Network {
    Bridge,
    Host,
    Group,
}

impl DriverFixture {
    /// The request of a task that claims the port.
    fn with_port(&self, network: Network) -> nomad::TaskConfig {
        let text = |text: &str| rmpv::Value::from(text);
        let mut config = vec![
            (text("image"), text(BUSYBOX)),
            (text("command"), text("serve")),
        ];
        match network {
            Network::Bridge => config.push((text("ports"), rmpv::Value::Array(vec![text("http")]))),
            Network::Host => config.push((text("network_mode"), text("host"))),
            Network::Group => {}
        }
        let mut request = self.request("00000001", &["serve"]);
        request.msgpack_driver_config.clear();
        rmpv::encode::write_value(
            &mut request.msgpack_driver_config,
            &rmpv::Value::Map(config),
        )
        .expect("a vector grows as it must");
        let port = nomad::PortMapping {
            label: "http".into(),
            value: PORT.into(),
            to: 8080,
            host_ip: "192.168.1.2".into(),
        };
        request.resources = Some(nomad::Resources {
            ports: vec![port],
            ..Default::default()
        });
        request.network_isolation_spec =
            matches!(network, Network::Group).then(|| nomad::NetworkIsolationSpec {
                mode: NetworkIsolationMode::Group.into(),
                path: "/var/run/netns/group".into(),
                ..Default::default()
            });
        request
    }

    fn kubelet(&self) -> Kubelet {
        let scope = self.gateway.scope(Owner::Kubernetes);
        let services =
            switchyard_cri::services(scope, switchyard_cri::Config::default().into(), None, None);
        RuntimeServiceClient::new(Routes::new(services.runtime))
    }
}

/// A pod that claims the port, with a network of its own or the host's.
fn pod(host_network: bool) -> cri::PodSandboxConfig {
    let metadata = cri::PodSandboxMetadata {
        name: "web-0".into(),
        uid: "u-1".into(),
        namespace: "shop".into(),
        attempt: 0,
    };
    let mapping = cri::PortMapping {
        container_port: PORT.into(),
        host_port: PORT.into(),
        ..Default::default()
    };
    let namespaces = cri::NamespaceOption {
        network: if host_network {
            cri::NamespaceMode::Node
        } else {
            cri::NamespaceMode::Pod
        }
        .into(),
        ..Default::default()
    };
    let security_context = Some(cri::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces),
        ..Default::default()
    });
    cri::PodSandboxConfig {
        metadata: Some(metadata),
        port_mappings: vec![mapping],
        linux: Some(cri::LinuxPodSandboxConfig {
            security_context,
            ..Default::default()
        }),
        ..Default::default()
    }
}

async fn run(kubelet: &Kubelet, host_network: bool) -> Result<String, Status> {
    let request = cri::RunPodSandboxRequest {
        config: Some(pod(host_network)),
        ..Default::default()
    };
    Ok(kubelet
        .clone()
        .run_pod_sandbox(request)
        .await?
        .into_inner()
        .pod_sandbox_id)
}

async fn remove(kubelet: &Kubelet, pod_sandbox_id: String) {
    let request = cri::RemovePodSandboxRequest { pod_sandbox_id };
    kubelet
        .clone()
        .remove_pod_sandbox(request)
        .await
        .expect("it can be removed");
}

/// Asserts that a refusal names the port and its holder.
#[track_caller]
fn names(refused: &Status, holder: &[&str]) {
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let port = format!("{PORT}/tcp is held by ");
    assert!(
        refused.message().contains("host port ") && refused.message().contains(&port),
        "{refused:?}"
    );
    for word in holder {
        assert!(refused.message().contains(word), "{refused:?}");
    }
}

async fn race(network: Network, host_network: bool) {
    let fixture = fixture().await;
    let kubelet = fixture.kubelet();
    let request = fixture.with_port(network);
    let mut tasks = 0;
    for round in 0..RACES {
        let driver = fixture.driver.clone();
        let pods = kubelet.clone();
        let message = nomad::StartTaskRequest {
            task: Some(request.clone()),
        };
        // The task has to pull an image first: start the pod when that is done.
        let pulls = fixture.fake.count(Method::Pull);
        let held = fixture.fake.hold(Method::Pull);
        let start = tokio::spawn(async move { driver.start_task(call(message)).await });
        while fixture.fake.count(Method::Pull) == pulls {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let run = tokio::spawn(async move {
            for _ in 0..round % 64 {
                tokio::task::yield_now().await;
            }
            run(&pods, host_network).await
        });
        drop(held);
        let started = start.await.expect("it ends");
        let ran = run.await.expect("it ends");
        match (started, ran) {
            (Ok(_), Err(refused)) => {
                names(&refused, &["nomad", &request.id]);
                assert_eq!(
                    fixture.fake.sandboxes().len(),
                    1,
                    "nothing is left of what was refused"
                );
                fixture
                    .destroy(&request.id, true)
                    .await
                    .expect("it is killed");
                tasks += 1;
            }
            (Err(refused), Ok(pod)) => {
                names(&refused, &["kubernetes", "web-0_shop_u-1_0"]);
                assert!(!refused.details().is_empty(), "an agent may try again");
                assert_eq!(
                    fixture.fake.sandboxes().len(),
                    1,
                    "nothing is left of what was refused"
                );
                remove(&kubelet, pod).await;
            }
            both => panic!("one has it: {both:?}"),
        }
        assert_eq!(fixture.fake.remaining_objects(), Vec::<String>::new());
    }
    assert!(
        (1..RACES).contains(&tasks),
        "{tasks} of {RACES} are Nomad's: that is no race"
    );
    assert_eq!(fixture.fake.breaches(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bridge_task_and_pod_never_share_the_last_port() {
    race(Network::Bridge, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_network_task_and_pod_never_share_the_last_port() {
    race(Network::Host, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_network_task_and_pod_never_share_the_last_port() {
    race(Network::Group, false).await;
}

#[tokio::test]
async fn port_is_free_after_its_holder_and_shared_within_an_allocation() {
    let fixture = fixture().await;
    let kubelet = fixture.kubelet();
    for network in [Network::Bridge, Network::Host, Network::Group] {
        let request = fixture.with_port(network);
        let pod = run(&kubelet, true).await.expect("it is free");
        names(
            &fixture.start(&request).await.expect_err("the pod has it"),
            &["web-0"],
        );
        remove(&kubelet, pod).await;
        fixture.start(&request).await.expect("it is free");
        let mut sidecar = request.clone();
        (sidecar.name, sidecar.id) = ("log".into(), format!("{ALLOC}/log/00000001"));
        for part in ["local", "secrets"] {
            std::fs::create_dir_all(fixture.dir.path().join(ALLOC).join("log").join(part))
                .expect("there is room");
        }
        let beside = fixture.start(&sidecar).await;
        let destroyed = fixture.destroy(&request.id, true).await;
        destroyed.expect("it is killed");
        if let Network::Bridge = network {
            // Of two that publish it, one would get all connections.
            names(
                &beside.expect_err("the other task publishes it"),
                &["nomad", &request.id],
            );
            continue;
        }
        beside.expect("its allocation has it");
        names(
            &run(&kubelet, false)
                .await
                .expect_err("the allocation has it"),
            &["nomad", &sidecar.id],
        );
        let destroyed = fixture.destroy(&sidecar.id, true).await;
        destroyed.expect("it is killed");
    }
    let first = pod(false);
    let mut next = pod(true);
    next.metadata.as_mut().expect("it is set").attempt = 1;
    for config in [first, next] {
        let request = cri::RunPodSandboxRequest {
            config: Some(config),
            ..Default::default()
        };
        kubelet
            .clone()
            .run_pod_sandbox(request)
            .await
            .expect("both are attempts of one pod");
    }
}

#[tokio::test]
async fn port_claim_survives_daemon_restart() {
    let fixture = fixture().await;
    let request = fixture.with_port(Network::Group);
    fixture.start(&request).await.expect("it is free");
    let fixture = fixture.restarted().await;
    names(
        &run(&fixture.kubelet(), true)
            .await
            .expect_err("the task has it"),
        &["nomad", &request.id],
    );
}
