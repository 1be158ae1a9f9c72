//! The sources of the admin pages, and the peers that can reach each of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use switchyard_linux::host_features::HostFeature;
use switchyard_operator_api::text::rfc3339;
use switchyard_operator_api::{FeatureView, LimitView, PartView, StatusReport, count_views};
use switchyard_operator_api::{REVISION, VERSION};
use switchyard_telemetry::LogLevel;

use crate::config::ContainerMetrics;

use super::reading::LatestReading;
use crate::control::ConfigControl;
use crate::history::History;
use crate::metrics::Metrics;
use crate::node::Node;
use crate::page::StatusPage;
use crate::status::Part;

/// The timeout for counting images and for a query to the logkeeper; after it the page omits the value.
pub(super) const COUNT_LIMIT: Duration = Duration::from_secs(2);

/// Replaces the reason why a part fails, for clients on the network.
pub(super) const WITHHELD: &str = "reason withheld: run `switchyard status` as root";

/// The peers that can reach a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Every user of the node, and possibly remote clients: they get no names of objects and no text from
    /// logs.
    Network,
    /// Root and the members of `admin.socket_group`, by the unix socket.
    Local,
}

/// The sources of the pages.
#[derive(Clone)]
pub struct AdminPages {
    pub(super) node: Arc<Node>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) config: Arc<dyn ConfigControl>,
    pub(super) log_level: LogLevel,
    pub(super) history: History,
    container_metrics: ContainerMetrics,
    pub(super) containers: LatestReading,
    pub(super) page: StatusPage,
    started: SystemTime,
}

/// The pages for one listener.
#[derive(Clone)]
pub(super) struct ListenerPages {
    pub(super) admin: AdminPages,
    pub(super) reach: Reach,
}

impl std::fmt::Debug for AdminPages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin")
            .field("started", &self.started)
            .finish_non_exhaustive()
    }
}

// === impl AdminPages ===

impl AdminPages {
    /// Pages about this node, about the daemon's configuration and log, and about what happens; the start time of the daemon is
    /// now.
    #[must_use]
    pub fn new(
        node: Arc<Node>,
        metrics: Arc<Metrics>,
        config: Arc<dyn ConfigControl>,
        log_level: LogLevel,
        history: History,
        container_metrics: ContainerMetrics,
        page: StatusPage,
    ) -> Self {
        Self {
            node,
            metrics,
            config,
            log_level,
            history,
            container_metrics,
            containers: LatestReading::default(),
            page,
            started: SystemTime::now(),
        }
    }

    /// Sets the address of the listener for the network, once, for links to it.
    pub fn set_address(&self, address: SocketAddr) {
        self.page.set_address(address);
    }

    /// The content of `/statusz`.
    pub async fn report(&self, reach: Reach) -> StatusReport {
        let local = async {
            match reach {
                Reach::Network => (Vec::new(), Vec::new(), Vec::new()),
                Reach::Local => tokio::join!(
                    self.node.programs(),
                    self.node.limits(),
                    self.node.named_troubles()
                ),
            }
        };
        let (parts, images, (programs, limits, troubles)) =
            tokio::join!(self.node.parts(), self.images(), local);
        StatusReport {
            version: VERSION.into(),
            revision: REVISION.into(),
            pid: match reach {
                Reach::Network => None,
                Reach::Local => Some(std::process::id()),
            },
            started_at: rfc3339(self.started),
            ready: !parts.iter().any(Part::blocks_readiness),
            parts: parts.iter().map(|part| part_view(part, reach)).collect(),
            sandboxes: count_views(&self.node.count_sandboxes()),
            tasks: count_views(&self.node.count_tasks()),
            images,
            advisories: self
                .node
                .status()
                .advisories
                .into_iter()
                .map(Into::into)
                .collect(),
            config: match reach {
                // Files may be named, and values shown.
                Reach::Network => None,
                Reach::Local => Some(self.config.view()),
            },
            nomad_launchers: self.node.figures().launchers,
            troubles: match reach {
                // Errors name images and paths.
                Reach::Network => troubles,
                Reach::Local => {
                    let failing = self.history.failing_operations();
                    troubles.into_iter().chain(failing).collect()
                }
            },
            facts: match reach {
                // Paths are named.
                Reach::Network => BTreeMap::new(),
                Reach::Local => self.node.facts(),
            },
            limits: limits
                .iter()
                .map(|limit| LimitView::new(limit.name, limit.used, limit.most))
                .collect(),
            features: match reach {
                // Paths are named.
                Reach::Network => Vec::new(),
                Reach::Local => self.node.features().iter().map(feature_view).collect(),
            },
            programs,
        }
    }

    pub(super) const fn serves_containers(&self, reach: Reach) -> bool {
        is_served(self.container_metrics, reach)
    }

    pub(super) async fn images(&self) -> Option<u64> {
        tokio::time::timeout(COUNT_LIMIT, self.node.count_images())
            .await
            .ok()
            .flatten()
    }
}

/// Returns whether the page is served on listeners of this reach.
const fn is_served(exposure: ContainerMetrics, reach: Reach) -> bool {
    match (exposure, reach) {
        (ContainerMetrics::Off, _) | (ContainerMetrics::Local, Reach::Network) => false,
        (ContainerMetrics::Local, Reach::Local) | (ContainerMetrics::Network, _) => true,
    }
}

fn feature_view(HostFeature { name, fault }: &HostFeature) -> FeatureView {
    FeatureView {
        name: (*name).to_owned(),
        fault: fault.clone(),
    }
}

fn part_view(part: &Part, reach: Reach) -> PartView {
    let detail = detail(part, reach).into();
    PartView {
        name: part.name.into(),
        up: part.is_up(),
        needed: part.needed,
        detail,
    }
}

/// The detail of a part's condition that a listener's clients may see.
pub(super) fn detail(part: &Part, reach: Reach) -> &str {
    match (reach, part.is_up()) {
        (Reach::Local, _) => part.detail(),
        (Reach::Network, true) => "",
        (Reach::Network, false) => WITHHELD,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposure_decides_which_listeners_serve_the_page() {
        for (exposure, local, network) in [
            (ContainerMetrics::Off, false, false),
            (ContainerMetrics::Local, true, false),
            (ContainerMetrics::Network, true, true),
        ] {
            let served = [Reach::Local, Reach::Network].map(|reach| is_served(exposure, reach));
            assert_eq!(served, [local, network], "{exposure:?}");
        }
    }
}
