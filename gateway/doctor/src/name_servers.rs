//! The check of the DNS servers that tasks get from the node.

use std::net::IpAddr;
use std::path::Path;

use switchyard_core::spec::Subnet;
use switchyard_linux::resolv_conf::{FILES, Families, Reachable, choose};

use super::codes::runtime::NO_NAME_SERVER;
use super::facts::Facts;
use super::finding::Finding;
use super::text::first_of;
use super::view::FILE_MAX;

/// Maximum number of servers that a finding names.
const NAMED_MAX: usize = 4;

/// The servers of the node, if a task on the gateway's bridge can ask none of them. Kubelets send servers with each pod.
pub(super) fn check(facts: &Facts) -> Option<Finding> {
    let config = &facts.config;
    let has_tasks = config.nomad.enabled || config.swarm.enabled;
    if !has_tasks || !config.network.dns.is_empty() {
        return None;
    }
    let ranges = config.network.bridge.subnets.iter();
    let addresses: Vec<IpAddr> = ranges
        .filter_map(|text| text.parse::<Subnet>().ok())
        .map(|range| range.first())
        .collect();
    let texts = FILES.map(|path| {
        let text = facts.view.read(Path::new(path), FILE_MAX);
        text.unwrap_or_default()
    });
    let Reachable {
        text: _,
        servers,
        left_out,
    } = choose(&texts, Families::of(&addresses));
    if !servers.is_empty() {
        return None;
    }
    let why: Vec<String> = left_out
        .iter()
        .map(|(server, why)| format!("{server} {}", why.as_str()))
        .collect();
    let [own, ..] = FILES;
    let found = if why.is_empty() {
        format!("{own} names no server")
    } else {
        format!("{own} names no other server: {}", first_of(&why, NAMED_MAX))
    };
    Some(Finding::new(&NO_NAME_SERVER, found).command(format!("cat {own}")))
}
