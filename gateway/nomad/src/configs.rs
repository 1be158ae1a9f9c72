//! Configurations for tests, as agents encode them.

use std::collections::BTreeMap;
use std::sync::Arc;

use rmpv::Value;
use switchyard_core::device::{Device, DeviceGroup, Inventory, node};
use switchyard_core::spec::{MissingSource, Mount, MountSource};
use switchyard_proto::nomad::drivers::proto as nomad;

use crate::plugin_config::PluginConfig;
use crate::session::{Processors, Session};

/// A map with these entries.
pub(crate) fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Map(
        entries
            .into_iter()
            .map(|(key, value)| (key.into(), value))
            .collect(),
    )
}

/// A list.
pub(crate) fn list<const N: usize>(values: [Value; N]) -> Value {
    Value::Array(values.into())
}

/// A list of texts.
pub(crate) fn texts(list: &[&str]) -> Value {
    Value::Array(list.iter().map(|text| (*text).into()).collect())
}

/// A block whose schema is a list of maps.
pub(crate) fn pairs(pairs: &[(&str, &str)]) -> Value {
    list([Value::Map(
        pairs
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect(),
    )])
}

/// The MessagePack encoding of a value.
pub(crate) fn bytes(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

/// A configuration with these keys and an image.
pub(crate) fn config<const N: usize>(entries: [(&str, Value); N]) -> Vec<u8> {
    let Value::Map(mut pairs) = map(entries) else {
        unreachable!("it was made as a map")
    };
    if !pairs.iter().any(|(key, _)| key.as_str() == Some("image")) {
        pairs.push(("image".into(), "busybox:1".into()));
    }
    bytes(&Value::Map(pairs))
}

/// A request with these options.
pub(crate) fn task<const N: usize>(entries: [(&str, Value); N]) -> nomad::TaskConfig {
    nomad::TaskConfig {
        id: "f3a1b2c4-0000-4000-8000-123456789abc/web/1a2b3c4d".to_owned(),
        name: "web".to_owned(),
        alloc_id: "f3a1b2c4-0000-4000-8000-123456789abc".to_owned(),
        alloc_dir: "/var/nomad/alloc/f3a1b2c4".to_owned(),
        msgpack_driver_config: config(entries),
        stdout_path: "/var/nomad/alloc/f3a1b2c4/alloc/logs/.web.stdout.fifo".to_owned(),
        stderr_path: "/var/nomad/alloc/f3a1b2c4/alloc/logs/.web.stderr.fifo".to_owned(),
        env: [
            ("NOMAD_ALLOC_DIR", "/alloc"),
            ("NOMAD_TASK_DIR", "/local"),
            ("NOMAD_SECRETS_DIR", "/secrets"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into(),
        job_name: "shop".to_owned(),
        namespace: "default".to_owned(),
        ..nomad::TaskConfig::default()
    }
}

/// A session with this configuration, on a node with four cores of 2 GHz.
pub(crate) fn session(config: PluginConfig) -> Session {
    Session {
        id: "s".to_owned(),
        driver: "switchyard".to_owned(),
        config: Arc::new(config),
        processors: Processors {
            cores: 4,
            total_mhz: 8000,
        },
        version: String::new(),
    }
}

/// A group of devices with these ids, each for `shares` tasks, and everything that a task can get with them.
pub(crate) fn devices(ids: &[&str], shares: u16) -> Inventory {
    let device = |id: &&str| Device {
        aliases: vec![format!("/dev/{id}")],
        cdi: vec![format!("acme.com/tpu={id}")],
        pci_bus_id: Some("0000:3b:00.0".to_owned()),
        ..Device::new(id, node(format!("/dev/{id}").into(), "rw"))
    };
    let source = MountSource::Host {
        path: "/opt/acme".into(),
        missing: MissingSource::Fail,
    };
    let library = Mount {
        readonly: true,
        ..Mount::new("/opt/acme", source)
    };
    let group = DeviceGroup {
        resource: "acme.com/tpu".to_owned(),
        shares,
        devices: ids.iter().map(device).collect(),
        variable: "ACME_DEVICES".to_owned(),
        env: BTreeMap::from([("ACME_HOME".to_owned(), "/opt/acme".to_owned())]),
        shared: vec![node("/dev/acmectl".into(), "rw")],
        mounts: vec![library],
        ..DeviceGroup::new("acme", "tpu", "v2")
    };
    Inventory::of([group])
}
