//! The `info` of verbose answers: JSON for people and scripts, with the keys that containerd's users know.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use switchyard_core::backend::{
    BackendStatus, CgroupDriver, Condition, Handler, Inspection, Trouble,
};
use switchyard_core::id::Owner;
use switchyard_core::image::{Image, Right};
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::state::{SandboxState, TaskState};

use super::stats::DEFAULT_INTERFACE;
use crate::record::{ContainerRecord, SandboxRecord, note};

mod config;

use config::{container_config, pod_config};

/// The fact of the backend that says how many bytes of output a line of a log has at most.
const LOG_LINE_SIZE: &str = "maxContainerLogLineSize";

/// The `info` map of an answer, with one entry.
type Info = BTreeMap<String, String>;

/// The verbose information of a sandbox.
pub(crate) fn sandbox_info(
    sandbox: &Sandbox,
    record: Option<&SandboxRecord>,
    inspection: &Inspection,
) -> Info {
    let mut info = inspected(inspection);
    info.insert("processStatus".to_owned(), json!(sandbox.state.as_str()));
    info.insert("runtimeHandler".to_owned(), json!(sandbox.handler));
    info.insert(
        "netNamespaceClosed".to_owned(),
        json!(inspection.netns_closed),
    );
    info.insert(
        "config".to_owned(),
        record
            .and_then(|record| record.config.as_ref())
            .map_or(Value::Null, |config| pod_config(config, &note(sandbox))),
    );
    if let SandboxState::Unknown { reason } = &sandbox.state {
        info.insert("reason".to_owned(), json!(reason));
    }
    if !inspection.cni_result.is_empty() {
        let result = parsed(&inspection.cni_result);
        info.insert("cniResult".to_owned(), cni_result(&result));
    }
    wrapped("info", info)
}

/// The verbose information of a container.
pub(crate) fn container_info(
    task: &Task,
    record: Option<&ContainerRecord>,
    inspection: &Inspection,
) -> Info {
    let mut info = inspected(inspection);
    info.insert("sandboxID".to_owned(), json!(task.sandbox.to_string()));
    info.insert(
        "removing".to_owned(),
        json!(matches!(task.state, TaskState::Removing { .. })),
    );
    info.insert(
        "config".to_owned(),
        record
            .and_then(|record| record.config.as_ref())
            .map_or(Value::Null, container_config),
    );
    wrapped("info", info)
}

/// The verbose information of an image: its configuration as published, and its holders.
pub(crate) fn image_info(image: &Image, config: &str) -> Info {
    let holder = |(owner, right): (&Owner, &Right)| {
        let right = match right {
            Right::Open => "open",
            Right::Private => "private",
        };
        (owner.as_str().to_owned(), json!(right))
    };
    let holders: Map<String, Value> = image.holders.iter().map(holder).collect();
    wrapped(
        "info",
        Map::from_iter([
            ("imageSpec".to_owned(), parsed(config)),
            ("holders".to_owned(), Value::Object(holders)),
        ]),
    )
}

/// The verbose information of the node.
pub(crate) fn status_info(backend: &BackendStatus, handlers: &[Handler]) -> Info {
    let driver = match backend.cgroup_driver {
        CgroupDriver::Systemd => "systemd",
        CgroupDriver::Cgroupfs => "cgroupfs",
    };
    let handlers: Vec<_> = handlers.iter().map(|handler| &handler.name).collect();
    let mut config: Map<String, Value> = backend
        .facts
        .iter()
        .map(|(name, fact)| (name.clone(), json!(fact)))
        .collect();
    let troubles = backend.troubles.iter();
    config.extend(
        troubles.map(|(kind, objects)| (fact_of(*kind).to_owned(), json!(objects.join(", ")))),
    );
    // Containerd's tools read it as a number.
    if let Some(size) = backend
        .facts
        .get(LOG_LINE_SIZE)
        .and_then(|size| size.parse::<u64>().ok())
    {
        config.insert(LOG_LINE_SIZE.to_owned(), json!(size));
    }
    config.insert("backend".to_owned(), json!(backend.version));
    config.insert("cgroupDriver".to_owned(), json!(driver));
    config.insert("handlers".to_owned(), json!(handlers));
    let loaded = match &backend.network {
        Condition::True => "OK".to_owned(),
        Condition::False { reason: _, message } => message.clone(),
    };
    let mut info = wrapped("config", config);
    info.insert("lastCNILoadStatus".to_owned(), loaded);
    info.insert(
        "cniconfig".to_owned(),
        cni_config(&backend.network_config).to_string(),
    );
    info
}

/// The name of the fact that lists objects with such a trouble.
const fn fact_of(trouble: Trouble) -> &'static str {
    match trouble {
        Trouble::SilentShim => "shims.silent",
        Trouble::UnrecordedExit => "exits.unrecorded",
        Trouble::LeftCgroup => "cgroups.left",
        Trouble::TreeSetAside => "trees.setAside",
        Trouble::DamagedImage => "images.damaged",
    }
}

/// The result of CNI plugins as containerd has it: interfaces by name, each with its addresses. The plugins may leave the
/// default one out.
fn cni_result(result: &Value) -> Value {
    let list = |key: &str| {
        result[key]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut addresses: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for ip in list("ips") {
        let index = ip["interface"].as_u64();
        let interface =
            index.and_then(|index| list("interfaces").get(usize::try_from(index).ok()?));
        let name = interface.and_then(|interface| interface["name"].as_str());
        let address = text(&ip["address"]);
        let address = address.split('/').next().unwrap_or_default();
        addresses
            .entry(name.unwrap_or(DEFAULT_INTERFACE))
            .or_default()
            .push(json!({ "IP": address, "Gateway": text(&ip["gateway"]) }));
    }
    let absent = Value::Null;
    let mut interfaces = BTreeMap::from([(DEFAULT_INTERFACE, &absent)]);
    interfaces.extend(
        list("interfaces")
            .iter()
            .filter_map(|interface| Some((interface["name"].as_str()?, interface))),
    );
    let interfaces = interfaces.into_iter().map(|(name, interface)| {
        let config = json!({
            "IPConfigs": addresses.get(name),
            "Mac": text(&interface["mac"]),
            "Sandbox": text(&interface["sandbox"]),
            "PciID": text(&interface["pciID"]),
            "SocketPath": text(&interface["socketPath"]),
        });
        (name.to_owned(), config)
    });
    let interfaces: Map<String, Value> = interfaces.collect();
    json!({
        "Interfaces": interfaces,
        "DNS": [result["dns"].as_object().cloned().unwrap_or_default()],
        "Routes": list("routes"),
    })
}

/// The network configuration in containerd's format; without a network, the list is empty.
fn cni_config(network: &str) -> Value {
    let config = parsed(network);
    let plugins: Vec<_> = config["plugins"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|plugin| json!({ "Network": plugin, "Source": plugin.to_string() }))
        .collect();
    let networks = match &config {
        Value::Object(_) => vec![json!({
            "Config": {
                "Name": config["name"],
                "CNIVersion": config["cniVersion"],
                "Plugins": plugins,
                "Source": network,
            },
            "IFName": DEFAULT_INTERFACE,
        })],
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Vec::new()
        }
    };
    json!({ "Networks": networks })
}

fn wrapped(key: &str, info: Map<String, Value>) -> Info {
    Info::from([(key.to_owned(), Value::Object(info).to_string())])
}

fn inspected(inspection: &Inspection) -> Map<String, Value> {
    let Inspection {
        pid,
        runtime_type,
        snapshotter,
        snapshot_key,
        runtime_spec,
        runtime_options,
        // Set for sandboxes only.
        cni_result: _,
        netns_closed: _,
    } = inspection;
    let mut info = Map::new();
    info.insert("pid".to_owned(), json!(pid.unwrap_or(0)));
    info.insert("runtimeType".to_owned(), json!(runtime_type));
    info.insert("snapshotter".to_owned(), json!(snapshotter));
    info.insert("snapshotKey".to_owned(), json!(snapshot_key));
    info.insert("runtimeOptions".to_owned(), parsed(runtime_options));
    info.insert("runtimeSpec".to_owned(), parsed(runtime_spec));
    info
}

/// JSON as it is, other text as a string, an empty text as null.
fn parsed(text: &str) -> Value {
    if text.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(text).unwrap_or_else(|_| json!(text))
    }
}
