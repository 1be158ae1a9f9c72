//! containerd and its shims.

use std::time::Duration;

use crate::drill::incident::{Incident, Sign};
use crate::drill::node::DrillNode;
use crate::host::SuspendedProcess;

/// containerd hangs. It is not the daemon's own, so that nobody kills it.
pub(crate) fn hangs(node: &DrillNode) -> Incident {
    let stopped = SuspendedProcess::new(node.test_node().containerd_pid().as_raw());
    let pods = node.running_pods("shop", "checkout", Duration::from_secs(5));
    Incident::new("checkout", Sign::Alert("SwitchyardContainerdDown"))
        .with(pods)
        .with(stopped)
}

/// containerd is restarted, as an upgrade of its package does.
///
/// # Panics
/// When the node has no containerd of its own.
pub(crate) fn restarts(node: &DrillNode) -> Incident {
    let pod = node.app("shop", "orders-1", "exec sleep 100000");
    let probes = node.probing(&pod, Duration::from_millis(100));
    let mut containerd = node
        .test_node()
        .external_containerd()
        .expect("it is external");
    containerd.restart();
    drop(containerd);
    Incident::new("orders-1", Sign::Lasts(Duration::from_secs(10))).with(probes)
}

/// The shim of one pod hangs.
pub(crate) fn shim_hangs(node: &DrillNode) -> Incident {
    let pod = node.app("shop", "orders-1", "while :; do echo order; sleep 1; done");
    let stopped = SuspendedProcess::new(node.test_node().shim(&pod.container).as_raw());
    Incident::new("orders-1", Sign::Reported(1))
        .with(node.stopping(&pod))
        .with(stopped)
}
