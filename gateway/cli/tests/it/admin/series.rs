//! The number of series of a node with 110 pods and 500 allocations, which is what Prometheus pays for. `docs/monitoring.md` has these
//! numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

use switchyard_core::id::Owner;
use switchyard_core::spec::{CpuPeriod, CpuQuota, CpuShares, MemoryLimit, Resources, TaskSpec};

use super::Pages;
use super::node::{TestNode, endless};

const PODS: usize = 110;
const ALLOCATIONS: usize = 500;

/// Runs pods, or allocations, of one container with a network and limits each.
async fn fill(node: &TestNode, owner: Owner, numbers: Range<usize>) {
    let resources = Resources {
        cpu_period_us: CpuPeriod::new(100_000).ok(),
        cpu_quota_us: CpuQuota::new(50_000).ok(),
        cpu_shares: Some(CpuShares::clamped(512)),
        memory_limit_bytes: MemoryLimit::new(64 << 20).ok(),
        ..Resources::default()
    };
    for number in numbers {
        let name = format!("{owner}-{number}");
        node.run(TaskSpec {
            resources: resources.clone(),
            ..endless(owner, &name)
        })
        .await;
    }
}

/// The number of samples of each family.
fn families(text: &str) -> BTreeMap<&str, usize> {
    let mut families = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let end = line.find(['{', ' ']).unwrap_or(line.len());
        *families.entry(&line[..end]).or_default() += 1;
    }
    families
}

fn repository(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of metrics of containers that the example for Prometheus keeps.
fn kept() -> BTreeSet<String> {
    let text = repository("deploy/prometheus/prometheus.yaml");
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.contains("container_"))
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn series_of_the_daemon_do_not_grow_with_containers_and_those_are_as_documented() {
    let pages = Pages::serve(TestNode::new().await).await;
    fill(&pages.node, Owner::Kubernetes, 0..1).await;
    fill(&pages.node, Owner::Nomad, 0..1).await;
    let few = pages.get("/metrics").await.1;
    fill(&pages.node, Owner::Kubernetes, 1..PODS).await;
    fill(&pages.node, Owner::Nomad, 1..ALLOCATIONS).await;
    let many = pages.get("/metrics").await.1;
    assert_eq!(families(&few), families(&many));

    let text = pages.get("/metrics/containers").await.1;
    let families = families(&text);
    let all: usize = families.values().sum();
    let kept_names = kept();
    let of_example: usize = families
        .iter()
        .filter(|(name, _)| kept_names.contains(**name))
        .map(|(_, count)| count)
        .sum();
    println!(
        "{all} series of {PODS} pods and {ALLOCATIONS} allocations, {} bytes; the example for Prometheus keeps {of_example}",
        text.len()
    );
    let documented = repository("docs/monitoring.md").replace(',', "");
    for number in [all, of_example] {
        assert!(
            documented.contains(&format!("| {number} ")),
            "docs/monitoring.md lacks {number}: {families:?}"
        );
    }
}
