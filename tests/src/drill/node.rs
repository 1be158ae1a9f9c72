//! The node of a drill: a real one that a Prometheus with the shipped rules scrapes, with a quiet kubelet and pods that
//! have nothing to do with the incident.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchyard_proto::cri::v1 as cri;

use super::incident::Setup;
use super::load::Load;
use super::report::OrchestratorReport;
use crate::cri::Cri;
use crate::host::{eventually, random_name};
use crate::node::TestNode;
use crate::prometheus::Prometheus;
use crate::root::PrivateRoot;
use crate::scraped_node::ScrapedTestNode;
use crate::swarm::SwarmCluster;

/// Time until the node is scraped.
const SCRAPE_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two lists of a quiet kubelet.
const RELIST: Duration = Duration::from_millis(800);
/// Time for a call of a load that is answered at once on a node that is well.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Time for a call that stops a pod.
const STOP_LIMIT: Duration = Duration::from_secs(120);

/// A swarm that a node may join.
pub(super) type SharedCluster = Arc<Mutex<SwarmCluster>>;

/// A node for one incident.
#[derive(Debug)]
pub struct DrillNode {
    // These end in this order.
    _kubelet: Load,
    prometheus: Prometheus,
    scraped: ScrapedTestNode,
    report: OrchestratorReport,
    cluster: Option<SharedCluster>,
}

/// A pod with one container.
#[derive(Debug, Clone)]
pub(super) struct DrillPod {
    /// Its name with its namespace, as users know it.
    pub(super) name: String,
    /// The id of the sandbox.
    pub(super) id: String,
    /// Its configuration.
    pub(super) config: cri::PodSandboxConfig,
    /// The id of its container.
    pub(super) container: String,
    /// The configuration of its container.
    pub(super) app: cri::ContainerConfig,
}

// === impl DrillNode ===

impl DrillNode {
    /// Starts the node of an incident, and waits until it is scraped. The thread is in the namespace of the swarm, if there is one.
    ///
    /// # Panics
    /// When a prerequisite is missing, or something does not start.
    #[must_use]
    pub(super) fn start(setup: &Setup, cluster: Option<SharedCluster>) -> Self {
        let scraped = ScrapedTestNode::start_beside(setup.containerd, setup.prepare);
        // What an incident leaves is no fault here: it is killed with the root.
        scraped.node.skip_leak_check();
        let root = scraped.node.root();
        let report = OrchestratorReport::new(&root.path().join("orchestrator.log"));
        fs::write(root.path().join("crictl.yaml"), crictl_config(root))
            .expect("the root can be written");
        let prometheus = scraped.prometheus();
        let cri = scraped.node.cri().with_timeout(CALL_LIMIT);
        let kubelet = Load::start(RELIST, move || {
            // The state of the node is not its concern.
            drop(cri.pods());
            drop(cri.containers());
        });
        let node = Self {
            _kubelet: kubelet,
            prometheus,
            scraped,
            report,
            cluster,
        };
        for name in ["web-1", "cache-1"] {
            let _ = node.app("shop", name, "while :; do echo served; sleep 1; done");
        }
        node.wait_scraped("up{job=\"switchyard\"} == 1");
        node
    }

    /// Waits until an expression has a result: a state before the incident has been scraped.
    ///
    /// # Panics
    /// When it has none in time.
    #[track_caller]
    pub(super) fn wait_scraped(&self, expression: &str) {
        let is_scraped = || {
            let found = self.prometheus.query(expression);
            !found.expect("the query is valid").is_empty()
        };
        assert!(
            eventually(SCRAPE_LIMIT, is_scraped),
            "{expression} has no result:\n{}",
            self.prometheus.log()
        );
    }

    /// The node itself.
    #[must_use]
    pub const fn test_node(&self) -> &TestNode {
        &self.scraped.node
    }

    /// Its root.
    #[must_use]
    pub const fn root(&self) -> &PrivateRoot {
        self.scraped.node.root()
    }

    /// Its Prometheus.
    #[must_use]
    pub const fn prometheus(&self) -> &Prometheus {
        &self.prometheus
    }

    /// The report of its orchestrators.
    #[must_use]
    pub const fn report(&self) -> &OrchestratorReport {
        &self.report
    }

    /// The swarm that it may join.
    pub(super) const fn cluster(&self) -> Option<&SharedCluster> {
        self.cluster.as_ref()
    }

    /// A client of its CRI socket.
    pub(super) const fn cri(&self) -> &Cri {
        self.scraped.node.cri()
    }

    /// The address of its metrics listener.
    pub(super) fn metrics_address(&self) -> SocketAddr {
        self.scraped.address()
    }

    /// Lets Prometheus reach the metrics listener by another address.
    pub(super) fn scrape_by(&self, address: SocketAddr) {
        self.scraped.adapt_by(address);
    }

    /// Restarts the daemon, as an upgrade does.
    pub(super) fn restart_daemon(&self) {
        self.scraped.node.daemon().restart();
        // Its metrics listener has another port.
        self.scraped.adapt();
    }

    /// The configuration of a pod in a namespace.
    pub(super) fn pod_config(&self, team: &str, name: &str) -> cri::PodSandboxConfig {
        let mut config = self.scraped.node.pod_config(name);
        if let Some(metadata) = &mut config.metadata {
            metadata.namespace = team.to_owned();
        }
        config
    }

    /// Runs a pod whose container runs a script.
    #[track_caller]
    pub(super) fn app(&self, team: &str, name: &str, script: &str) -> DrillPod {
        self.app_with(team, name, script, |_| {})
    }

    /// Runs such a pod with a container that `change` changes.
    #[track_caller]
    pub(super) fn app_with(
        &self,
        team: &str,
        name: &str,
        script: &str,
        change: impl FnOnce(&mut cri::ContainerConfig),
    ) -> DrillPod {
        let config = self.pod_config(team, name);
        let mut app = self.scraped.node.container("app", &["sh", "-c", script]);
        change(&mut app);
        self.run(config, app)
    }

    /// Runs a pod with a container.
    #[track_caller]
    pub(super) fn run(&self, config: cri::PodSandboxConfig, app: cri::ContainerConfig) -> DrillPod {
        let id = self.cri().run_pod(&config).expect("the pod runs");
        let created = self.cri().create(&id, &app, &config);
        let container = created.expect("the container is created");
        self.cri().start(&container).expect("the container starts");
        DrillPod {
            name: name_of(&config),
            id,
            config,
            container,
            app,
        }
    }

    /// Pods that are run, and removed when they run, one after the other. Failures are reported.
    pub(super) fn running_pods(&self, team: &str, prefix: &str, pause: Duration) -> Load {
        let cri = self.cri().with_timeout(CALL_LIMIT);
        let report = self.report.clone();
        let template = self.pod_config(team, prefix);
        let prefix = prefix.to_owned();
        let mut number = 0_u32;
        Load::start(pause, move || {
            number += 1;
            let mut config = template.clone();
            if let Some(metadata) = &mut config.metadata {
                metadata.name = format!("{prefix}-{number}");
                metadata.uid = random_name();
            }
            match cri.run_pod(&config) {
                Ok(id) => {
                    drop(cri.stop_pod(&id));
                    drop(cri.remove_pod(&id));
                }
                Err(status) => {
                    let what = "Failed to create pod sandbox";
                    report.say_failure(&name_of(&config), what, &status);
                }
            }
        })
    }

    /// A container of a pod that is created and started, and removed when it runs, again and again. Failures are reported.
    pub(super) fn starting(
        &self,
        pod: &DrillPod,
        app: cri::ContainerConfig,
        pause: Duration,
    ) -> Load {
        let cri = self.cri().with_timeout(STOP_LIMIT);
        let report = self.report.clone();
        let pod = pod.clone();
        let mut app = app;
        Load::start(pause, move || {
            if let Some(metadata) = &mut app.metadata {
                metadata.attempt += 1;
            }
            match cri.create(&pod.id, &app, &pod.config) {
                Ok(id) => {
                    if let Err(status) = cri.start(&id) {
                        report.say_failure(&pod.name, "Error: failed to start container", &status);
                    }
                    drop(cri.stop(&id, 0));
                    drop(cri.remove(&id));
                }
                Err(status) => {
                    report.say_failure(&pod.name, "Error: failed to create container", &status);
                }
            }
        })
    }

    /// Stops a pod, again after each failure, which is reported.
    pub(super) fn stopping(&self, pod: &DrillPod) -> Load {
        let cri = self.cri().with_timeout(STOP_LIMIT);
        let report = self.report.clone();
        let DrillPod { name, id, .. } = pod.clone();
        Load::start(Duration::from_secs(5), move || {
            if let Err(status) = cri.stop_pod(&id) {
                report.say_failure(&name, "FailedKillPod: error killing pod", &status);
            }
        })
    }

    /// Probes a pod by a command, which has a second. Failures are reported.
    pub(super) fn probing(&self, pod: &DrillPod, pause: Duration) -> Load {
        let cri = self.cri().with_timeout(CALL_LIMIT);
        let report = self.report.clone();
        let DrillPod {
            name, container, ..
        } = pod.clone();
        Load::start(pause, move || match cri.exec(&container, &["true"], 1) {
            Ok(answer) if answer.exit_code == 0 => {}
            Ok(answer) => {
                let text = format!("Readiness probe failed: exit code {}", answer.exit_code);
                report.say(&name, &text);
            }
            Err(status) => report.say_failure(&name, "Readiness probe errored", &status),
        })
    }

    /// Pulls an image, and removes it when it is there, again and again. Failures are reported.
    pub(super) fn pulling(
        &self,
        pod: &str,
        image: &str,
        auth: Option<cri::AuthConfig>,
        limit: Duration,
    ) -> Load {
        let cri = self.cri().with_timeout(limit);
        let report = self.report.clone();
        let pod = pod.to_owned();
        let image = image.to_owned();
        Load::start(Duration::from_secs(3), move || {
            report.say(&pod, &format!("Pulling image \"{image}\""));
            match cri.pull(&image, auth.clone()) {
                Ok(_) => {
                    report.say(&pod, &format!("Successfully pulled image \"{image}\""));
                    drop(cri.remove_image(&image));
                }
                Err(status) => {
                    let what = format!("Failed to pull image \"{image}\"");
                    report.say_failure(&pod, &what, &status);
                }
            }
        })
    }
}

/// The name of a pod with its namespace.
fn name_of(config: &cri::PodSandboxConfig) -> String {
    let metadata = config.metadata.clone().unwrap_or_default();
    format!("{}/{}", metadata.namespace, metadata.name)
}

/// The configuration of crictl for a node.
fn crictl_config(root: &PrivateRoot) -> String {
    let socket = root.cri_socket();
    format!(
        "runtime-endpoint: unix://{0}\nimage-endpoint: unix://{0}\ntimeout: 30\n",
        socket.display()
    )
}
