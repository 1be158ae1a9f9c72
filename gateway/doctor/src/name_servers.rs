//! The check of the DNS servers that tasks get from the node.

use std::path::Path;

use switchyard_linux::resolv_conf::{FILES, Families, choose, unreachable};

use super::codes::runtime::NO_NAME_SERVER;
use super::facts::Facts;
use super::families::{has_tasks, of_bridge};
use super::finding::Finding;
use super::view::FILE_MAX;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    missing(facts).into_iter().collect()
}

/// The servers of the node, if a task on the gateway's bridge can ask none of them. Kubelets send servers with each pod.
fn missing(facts: &Facts) -> Option<Finding> {
    let families = Families::of(&of_bridge(facts));
    let configured = &facts.config.network.dns;
    let has_configured = configured
        .iter()
        .any(|server| unreachable(server, families).is_none());
    if !has_tasks(facts) || has_configured {
        return None;
    }
    let texts = FILES.map(|path| {
        let text = facts.view.read(Path::new(path), FILE_MAX);
        text.unwrap_or_default()
    });
    let found = choose(&texts, families);
    let [own, ..] = FILES;
    found.servers.is_empty().then(|| {
        let why = if configured.is_empty() {
            found.explain()
        } else {
            let listed = configured.join(", ");
            format!(
                "the bridge network lacks the family of {listed} (network.dns), and {}",
                found.explain()
            )
        };
        Finding::new(&NO_NAME_SERVER, why).command(format!("cat {own}"))
    })
}
