//! This node as a worker of a Docker swarm.

use std::sync::Arc;
use std::time::Duration;

use switchyard_config::{Config, JoinAvailability, SwarmConfig};
use switchyard_core::gateway::Scope;
use switchyard_core::operation::Operations;
use switchyard_logkeeper as logkeeper;
use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use switchyard_swarm::{
    Executor, JoinByFile, MakeExecutor, NodeActor, NodeFacts, NodeParts, Reports, SwarmNode,
    TaskExecutor, TaskExecutorSettings, WaitingServices, engine_labels,
};

use super::LiveSettings;

/// The kinds of networks that tasks may have: none but those of the node, and the gateway's own bridge. The
/// scheduler places nothing here that wants another one, such as an overlay network.
const NETWORKS: [&str; 2] = ["host", "bridge"];

/// The drivers of logs that tasks may have.
const LOGS: [&str; 2] = ["json-file", "local"];

/// The drivers of volumes that tasks may have.
const VOLUMES: [&str; 1] = ["local"];

/// Limit for a pull: an image of some gigabytes over a slow link.
const PULL_LIMIT: Duration = Duration::from_secs(1800);

/// Makes executors that run tasks by the gateway.
struct RunTasks {
    scope: Scope,
    facts: NodeFacts,
    settings: TaskExecutorSettings,
}

impl MakeExecutor for RunTasks {
    fn make(&self, reports: Arc<Reports>) -> Arc<dyn Executor> {
        let settings = self.settings.clone();
        Arc::new(TaskExecutor::offering(
            self.scope.clone(),
            settings,
            self.facts.clone(),
            reports,
        ))
    }
}

/// The node's part in a swarm over this scope, under the version of this program: the handle, and the actor that
/// has to be run.
#[must_use]
pub fn swarm(
    config: &Config,
    settings: &LiveSettings,
    version: &str,
    scope: Scope,
    operations: Operations,
) -> (SwarmNode, NodeActor) {
    let SwarmConfig {
        enabled: _,
        join_token_file,
        managers,
        availability,
        labels,
        port_range: [first, last],
        // Of the settings, which a reload replaces.
        allow_devices: _,
        image_retention: _,
    } = config.swarm.clone();
    let join_by_file = join_token_file.map(|token_file| JoinByFile {
        token_file,
        managers,
        availability: proto_availability(availability),
    });
    let waiting = WaitingServices::default();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let maker = Arc::new(RunTasks {
        scope: scope.clone(),
        facts: NodeFacts {
            hostname: hostname(),
            architecture: std::env::consts::ARCH.to_owned(),
            version: format!("switchyard {version}"),
            labels: engine_labels(labels),
            networks: words(&NETWORKS),
            logs: words(&LOGS),
            volumes: words(&VOLUMES),
            ..NodeFacts::default()
        },
        settings: TaskExecutorSettings {
            log_dir: config.paths.state.join("swarm-logs"),
            // The backend's layout has it too: of the daemon's own files, SELinux labels these for containers.
            files_dir: config.paths.run.join("swarm"),
            port_range: first..=last,
            pull_timeout: PULL_LIMIT,
            logkeeper: Some(Arc::new(logkeeper::Client::new(config.logkeeper_socket()))),
            allowed_devices: settings.swarm_devices.clone(),
            device_kinds: settings.swarm_device_kinds.clone(),
            waiting: waiting.clone(),
        },
    });
    SwarmNode::new(NodeParts {
        dir: config.paths.state.join("swarm"),
        join_by_file,
        scope,
        operations,
        maker,
        image_retention: settings.swarm_image_retention.clone(),
        waiting,
    })
}

/// The availability as managers have it.
#[must_use]
pub fn proto_availability(availability: JoinAvailability) -> Availability {
    match availability {
        JoinAvailability::Active => Availability::Active,
        JoinAvailability::Pause => Availability::Pause,
        JoinAvailability::Drain => Availability::Drain,
    }
}

/// The name of the node, as `docker node ls` shows it.
fn hostname() -> String {
    let name = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|error| {
        tracing::warn!(%error, "the name of this host is not known");
        "unknown".to_owned()
    })
}
