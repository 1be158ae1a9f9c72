//! The lists that a Nomad agent sends, of its own and of the job's configuration.

use std::collections::BTreeMap;

use prost::Message;
use switchyard_proto::nomad::drivers::proto as nomad;

use crate::host::build_spec;
use crate::lists::{FEW, Fill, List, MANY, entries, texts};

pub(crate) fn tasks() -> Vec<List> {
    let request = |fill: fn(&mut nomad::TaskConfig, usize)| -> Box<dyn Fn(usize) -> Vec<u8>> {
        Box::new(move |count| {
            let mut task = nomad::TaskConfig {
                id: "a1/web/1".to_owned(),
                name: "web".to_owned(),
                alloc_id: "a1".to_owned(),
                alloc_dir: "/alloc".to_owned(),
                ..Default::default()
            };
            options(&mut task, "command", "true".into());
            fill(&mut task, count);
            task.encode_to_vec()
        })
    };
    let convert = |bytes: &[u8]| build_spec(&switchyard_nomad::fuzzing::task_spec(bytes)?);
    of_task()
        .into_iter()
        .chain(of_options())
        .map(|(name, length, fill)| List {
            name,
            length,
            request: request(fill),
            convert,
        })
        .collect()
}

/// The agent's lists.
fn of_task() -> [Fill<nomad::TaskConfig>; 5] {
    [
        ("Nomad, env", MANY, |task, count| {
            task.env = entries(count, "N#")
        }),
        ("Nomad, device_env", MANY, |task, count| {
            task.device_env = entries(count, "N#")
        }),
        ("Nomad, mounts", FEW, |task, count| {
            let mount = |path: String| nomad::Mount {
                task_path: path.clone(),
                host_path: path,
                ..Default::default()
            };
            task.mounts = texts(count, "/m#").into_iter().map(mount).collect();
        }),
        ("Nomad, devices", FEW, |task, count| {
            let device = |path: String| nomad::Device {
                task_path: path.clone(),
                host_path: path,
                cgroup_permissions: "rw".to_owned(),
            };
            task.devices = texts(count, "/dev/d#").into_iter().map(device).collect();
        }),
        ("Nomad, ports", FEW, |task, count| {
            let port = |label| nomad::PortMapping {
                label,
                value: 8080,
                ..Default::default()
            };
            let ports = texts(count, "p#").into_iter().map(port).collect();
            task.resources = Some(nomad::Resources {
                ports,
                ..Default::default()
            });
            options(task, "ports", list_of(texts(count, "p#")));
        }),
    ]
}

/// The job's lists.
fn of_options() -> [Fill<nomad::TaskConfig>; 8] {
    [
        ("Nomad, args", MANY, |task, count| {
            options(task, "args", list_of(texts(count, "#")))
        }),
        ("Nomad, labels", FEW, |task, count| {
            options(task, "labels", map_of(entries(count, "l#")))
        }),
        ("Nomad, extra_hosts", FEW, |task, count| {
            options(task, "extra_hosts", list_of(texts(count, "h#:10.0.0.1")))
        }),
        ("Nomad, sysctl", FEW, |task, count| {
            options(task, "sysctl", map_of(entries(count, "net.core.s#")))
        }),
        // One name again and again: there are 41, and others are refused. A set of them stays small, so that a cost that
        // grows with the square of the length does not show here.
        ("Nomad, cap_add", MANY, |task, count| {
            options(task, "cap_add", list_of(vec!["CHOWN".to_owned(); count]))
        }),
        ("Nomad, cap_drop", MANY, |task, count| {
            options(task, "cap_drop", list_of(texts(count, "C#")))
        }),
        ("Nomad, volumes", FEW, |task, count| {
            options(task, "volumes", list_of(texts(count, "local/m#:/m#")))
        }),
        ("Nomad, tmpfs", FEW, |task, count| {
            options(task, "tmpfs", list_of(texts(count, "/t#")))
        }),
    ]
}

fn list_of(texts: Vec<String>) -> rmpv::Value {
    rmpv::Value::Array(texts.into_iter().map(Into::into).collect())
}

/// A block of a job is a list of maps.
fn map_of(entries: BTreeMap<String, String>) -> rmpv::Value {
    let map = entries
        .into_iter()
        .map(|(key, value)| (key.into(), value.into()))
        .collect();
    rmpv::Value::Array(vec![rmpv::Value::Map(map)])
}

/// Sets the configuration of a task: its image, and one key.
fn options(task: &mut nomad::TaskConfig, key: &str, value: rmpv::Value) {
    let map = rmpv::Value::Map(vec![
        ("image".into(), "busybox:1".into()),
        (key.into(), value),
    ]);
    task.msgpack_driver_config.clear();
    rmpv::encode::write_value(&mut task.msgpack_driver_config, &map).expect("memory is there");
}
