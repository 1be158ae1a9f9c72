//! The description of this node for managers: the scheduler places only tasks that it can run.

use std::collections::BTreeMap;

use switchyard_proto::docker::swarmkit::v1 as swarm;

/// The label that each node has, with the value `true`: services that this node cannot run are kept away by it. Nodes with
/// dockerd lack it.
const BUILT_IN_LABEL: (&str, &str) = ("switchyard", "true");

/// Properties and resources of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its name.
    pub hostname: String,
    /// Its architecture as uname writes it, such as `x86_64`.
    pub architecture: String,
    /// The version that is shown as that of the engine.
    pub version: String,
    /// Labels that constraints find as `engine.labels.KEY`.
    pub labels: BTreeMap<String, String>,
    /// The kinds of networks that tasks may have. One that is not listed is not placed here.
    pub networks: Vec<String>,
    /// The drivers of logs that tasks may have. If there is one, no other is placed here.
    pub logs: Vec<String>,
    /// The drivers of volumes that tasks may have.
    pub volumes: Vec<String>,
    /// Thousand-millionths of processors for tasks.
    pub nano_cpus: i64,
    /// Bytes of memory for tasks.
    pub memory_bytes: i64,
    /// Devices and the like, each with its kind and name.
    pub named: Vec<(String, String)>,
}

/// The labels of a node with these configured ones: those, and the built-in one unless the configuration gives it another
/// value. Pure.
#[must_use]
pub fn engine_labels(mut configured: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let (key, value) = BUILT_IN_LABEL;
    configured
        .entry(key.to_owned())
        .or_insert_with(|| value.to_owned());
    configured
}

/// The message. The engine is always there: without it, the scheduler would place everything here, and overlay
/// networks too.
pub(crate) fn to_proto(facts: &NodeFacts, tls_info: swarm::NodeTlsInfo) -> swarm::NodeDescription {
    let NodeFacts {
        hostname,
        architecture,
        version,
        labels,
        networks,
        logs,
        volumes,
        nano_cpus,
        memory_bytes,
        named,
    } = facts;
    let plugins = [("Network", networks), ("Log", logs), ("Volume", volumes)]
        .into_iter()
        .flat_map(|(kind, names)| {
            names.iter().map(move |name| swarm::PluginDescription {
                r#type: kind.to_owned(),
                name: name.clone(),
            })
        });
    let generic = named.iter().map(|(kind, value)| {
        let named = swarm::NamedGenericResource {
            kind: kind.clone(),
            value: value.clone(),
        };
        let resource = Some(swarm::generic_resource::Resource::NamedResourceSpec(named));
        swarm::GenericResource { resource }
    });
    swarm::NodeDescription {
        hostname: hostname.clone(),
        platform: Some(swarm::Platform {
            architecture: architecture.clone(),
            os: "linux".to_owned(),
        }),
        resources: Some(swarm::Resources {
            nano_cpus: *nano_cpus,
            memory_bytes: *memory_bytes,
            generic: generic.collect(),
        }),
        engine: Some(swarm::EngineDescription {
            engine_version: version.clone(),
            labels: labels.clone(),
            plugins: plugins.collect(),
        }),
        tls_info: Some(tls_info),
        fips: false,
        // Without a plugin for them the scheduler keeps volumes of the cluster away.
        csi_info: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{NodeFacts, engine_labels, swarm, to_proto};

    #[test]
    fn each_node_has_the_built_in_label_unless_it_is_configured_otherwise() {
        for (configured, expected) in [
            (vec![], vec![("switchyard", "true")]),
            (
                vec![("rack", "7")],
                vec![("rack", "7"), ("switchyard", "true")],
            ),
            (vec![("switchyard", "edge")], vec![("switchyard", "edge")]),
            (
                vec![("Switchyard", "x"), ("switchyard.pool", "a")],
                vec![
                    ("Switchyard", "x"),
                    ("switchyard", "true"),
                    ("switchyard.pool", "a"),
                ],
            ),
        ] {
            let map = |pairs: Vec<(&str, &str)>| -> BTreeMap<String, String> {
                let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
                pairs.into_iter().map(owned).collect()
            };
            assert_eq!(engine_labels(map(configured)), map(expected));
        }
    }

    #[test]
    fn node_without_anything_still_has_an_engine_that_can_run_nothing() {
        let engine = to_proto(&NodeFacts::default(), swarm::NodeTlsInfo::default()).engine;
        assert_eq!(engine.map(|engine| engine.plugins), Some(Vec::new()));
    }

    #[test]
    fn plugins_and_devices_are_listed_by_kind() {
        let facts = NodeFacts {
            networks: vec!["host".to_owned(), "bridge".to_owned()],
            logs: vec!["json-file".to_owned()],
            named: vec![("gpu".to_owned(), "GPU-0".to_owned())],
            ..NodeFacts::default()
        };
        let described = to_proto(&facts, swarm::NodeTlsInfo::default());
        let plugins: Vec<String> = described
            .engine
            .unwrap_or_default()
            .plugins
            .iter()
            .map(|plugin| format!("{}/{}", plugin.r#type, plugin.name))
            .collect();
        assert_eq!(plugins, ["Network/host", "Network/bridge", "Log/json-file"]);
        assert_eq!(described.resources.unwrap_or_default().generic.len(), 1);
        assert_eq!(described.platform.unwrap_or_default().os, "linux");
    }
}
