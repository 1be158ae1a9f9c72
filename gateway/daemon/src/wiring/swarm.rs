//! This node as a worker of a Docker swarm.

use std::collections::BTreeMap;
use std::sync::Arc;

use switchyard_core::gateway::Scope;
use switchyard_core::operation::Operations;
use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use switchyard_swarm::{
    Executor, JoinByFile, MakeExecutor, MemberName, NodeActor, NodeFacts, NodeParts, RejectingExecutor,
    Reports, SwarmNode,
};

use crate::config::{Config, JoinAvailability, SwarmConfig};
use crate::metrics::VERSION;

/// What managers and operators read of a task that is assigned nevertheless.
const REJECTION: &str = "this version of switchyard runs no tasks of a swarm";

/// Makes executors that run no tasks: the scheduler is told of no network and no resources, so that nothing can be
/// placed here.
#[derive(Debug)]
struct RejectAll {
    labels: BTreeMap<String, String>,
}

impl MakeExecutor for RejectAll {
    fn runs_tasks(&self) -> bool {
        false
    }

    fn make(&self, _member: Option<&MemberName>, reports: Arc<Reports>) -> Arc<dyn Executor> {
        let facts = NodeFacts {
            hostname: hostname(),
            architecture: std::env::consts::ARCH.to_owned(),
            version: format!("switchyard {VERSION}"),
            labels: self.labels.clone(),
            ..NodeFacts::default()
        };
        Arc::new(RejectingExecutor::new(facts, reports, REJECTION))
    }
}

/// The node's part in a swarm over this scope: the handle, and the actor that has to be run.
#[must_use]
pub fn swarm(config: &Config, scope: Scope, operations: Operations) -> (SwarmNode, NodeActor) {
    let SwarmConfig { enabled: _, join_token_file, managers, availability, labels } = config.swarm.clone();
    let join_by_file = join_token_file.map(|token_file| JoinByFile {
        token_file,
        managers,
        availability: proto_availability(availability),
    });
    let maker = Arc::new(RejectAll { labels });
    SwarmNode::new(NodeParts {
        dir: config.paths.state.join("swarm"),
        join_by_file,
        scope,
        operations,
        maker,
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
