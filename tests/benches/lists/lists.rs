//! The lists that clients of each protocol send.

use std::collections::BTreeMap;

use prost::Message;
use swarm::task_spec::Runtime;
use switchyard_core::Result;
use switchyard_cri::fuzzing::{container_spec, pod_spec};
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::nomad::drivers::proto as nomad;

use crate::host::{CDI_DEVICES, build_spec};

/// How many times longer the longer list is.
pub(crate) const ONE_TO: usize = 10;

/// A short list where a task may have any number, and where it may have a thousand.
const MANY: usize = 2000;
const FEW: usize = 100;

/// A list of a request.
pub(crate) struct List {
    pub(crate) name: &'static str,
    /// The length of the shorter one.
    pub(crate) length: usize,
    /// A request with a list of this length.
    pub(crate) request: Box<dyn Fn(usize) -> Vec<u8>>,
    /// What is done with it.
    pub(crate) convert: fn(&[u8]) -> Result<()>,
}

pub(crate) fn all() -> Vec<List> {
    const { assert!(CDI_DEVICES >= FEW * ONE_TO, "the vendor has too few devices") };
    let mut lists = containers();
    lists.extend(pods());
    lists.extend(services());
    lists.extend(agents());
    lists
}

/// Texts, each with its number.
fn texts(count: usize, of: &str) -> Vec<String> {
    (0..count).map(|number| of.replace('#', &number.to_string())).collect()
}

fn entries(count: usize, key: &str) -> BTreeMap<String, String> {
    texts(count, key).into_iter().map(|key| (key, "1".to_owned())).collect()
}

// === CRI ===

/// The name, the length of the shorter list, and what fills it.
type Fill<T> = (&'static str, usize, fn(&mut T, usize));

fn containers() -> Vec<List> {
    let fills: [Fill<cri::ContainerConfig>; 9] = [
        ("CRI, envs", MANY, |config, count| {
            config.envs = texts(count, "N#")
                .into_iter()
                .map(|key| cri::KeyValue { key, ..Default::default() })
                .collect();
        }),
        ("CRI, args", MANY, |config, count| config.args = texts(count, "#")),
        ("CRI, mounts", FEW, |config, count| {
            let mount = |path: String| cri::Mount {
                container_path: path.clone(),
                host_path: path,
                ..Default::default()
            };
            config.mounts = texts(count, "/m#").into_iter().map(mount).collect();
        }),
        ("CRI, mounts that follow the host", FEW, |config, count| {
            let propagation = cri::MountPropagation::PropagationHostToContainer.into();
            let mount = |path: String| cri::Mount {
                container_path: path.clone(),
                host_path: path,
                propagation,
                ..Default::default()
            };
            config.mounts = texts(count, "/m#").into_iter().map(mount).collect();
        }),
        ("CRI, devices", FEW, |config, count| {
            let device = |path: String| cri::Device {
                container_path: path.clone(),
                host_path: path,
                permissions: "rw".to_owned(),
            };
            config.devices = texts(count, "/dev/d#").into_iter().map(device).collect();
        }),
        ("CRI, labels", MANY, |config, count| config.labels = entries(count, "l#")),
        ("CRI, annotations", MANY, |config, count| config.annotations = entries(count, "a#")),
        ("CRI, CDI devices", FEW, |config, count| {
            config.cdi_devices =
                texts(count, "v/c=d#").into_iter().map(|name| cri::CdiDevice { name }).collect();
        }),
        ("CRI, supplemental groups", MANY, |config, count| {
            let context = config.linux.get_or_insert_default().security_context.get_or_insert_default();
            context.supplemental_groups = (1..).take(count).collect();
        }),
    ];
    let request = |fill: fn(&mut cri::ContainerConfig, usize)| -> Box<dyn Fn(usize) -> Vec<u8>> {
        Box::new(move |count| {
            let mut config = cri::ContainerConfig {
                metadata: Some(cri::ContainerMetadata { name: "c".to_owned(), attempt: 0 }),
                image: Some(cri::ImageSpec { image: "i".to_owned(), ..Default::default() }),
                command: vec!["true".to_owned()],
                ..Default::default()
            };
            fill(&mut config, count);
            let request = cri::CreateContainerRequest {
                pod_sandbox_id: "p".to_owned(),
                config: Some(config),
                sandbox_config: Some(pod()),
            };
            request.encode_to_vec()
        })
    };
    let convert = |bytes: &[u8]| build_spec(&container_spec(bytes)?);
    fills
        .into_iter()
        .map(|(name, length, fill)| List { name, length, request: request(fill), convert })
        .collect()
}

fn pod() -> cri::PodSandboxConfig {
    let metadata = cri::PodSandboxMetadata {
        name: "p".to_owned(),
        uid: "u".to_owned(),
        namespace: "n".to_owned(),
        attempt: 0,
    };
    // Each container has its own process namespace.
    let options = cri::NamespaceOption { pid: cri::NamespaceMode::Container.into(), ..Default::default() };
    let context = cri::LinuxSandboxSecurityContext { namespace_options: Some(options), ..Default::default() };
    let linux = cri::LinuxPodSandboxConfig { security_context: Some(context), ..Default::default() };
    cri::PodSandboxConfig {
        metadata: Some(metadata),
        log_directory: "/logs".to_owned(),
        linux: Some(linux),
        ..Default::default()
    }
}

fn pods() -> Vec<List> {
    let fills: [Fill<cri::PodSandboxConfig>; 7] = [
        ("CRI, labels of a pod", MANY, |config, count| config.labels = entries(count, "l#")),
        ("CRI, annotations of a pod", MANY, |config, count| config.annotations = entries(count, "a#")),
        ("CRI, port mappings", FEW, |config, count| {
            let port =
                |number| cri::PortMapping { container_port: number, host_port: number, ..Default::default() };
            config.port_mappings = (1..).take(count).map(port).collect();
        }),
        ("CRI, DNS servers", FEW, |config, count| {
            let servers =
                (0..count).map(|number| format!("10.0.{}.{}", number / 250, number % 250)).collect();
            config.dns_config.get_or_insert_default().servers = servers;
        }),
        ("CRI, DNS searches", FEW, |config, count| {
            config.dns_config.get_or_insert_default().searches = texts(count, "s#.test");
        }),
        ("CRI, DNS options", FEW, |config, count| {
            config.dns_config.get_or_insert_default().options = texts(count, "o:#");
        }),
        ("CRI, sysctls", FEW, |config, count| {
            config.linux.get_or_insert_default().sysctls = entries(count, "net.core.s#");
        }),
    ];
    let request = |fill: fn(&mut cri::PodSandboxConfig, usize)| -> Box<dyn Fn(usize) -> Vec<u8>> {
        Box::new(move |count| {
            let mut config = pod();
            fill(&mut config, count);
            cri::RunPodSandboxRequest { config: Some(config), ..Default::default() }.encode_to_vec()
        })
    };
    let convert = |bytes: &[u8]| pod_spec(bytes).map(drop);
    fills
        .into_iter()
        .map(|(name, length, fill)| List { name, length, request: request(fill), convert })
        .collect()
}

// === Swarm ===

fn services() -> Vec<List> {
    let fills: [Fill<swarm::ContainerSpec>; 12] = [
        ("Swarm, env", MANY, |container, count| container.env = texts(count, "N#=1")),
        ("Swarm, env with templates", FEW, |container, count| {
            container.env = texts(count, "N#={{.Task.ID}}")
        }),
        ("Swarm, args", MANY, |container, count| container.args = texts(count, "#")),
        ("Swarm, labels", FEW, |container, count| container.labels = entries(count, "l#")),
        ("Swarm, mounts", FEW, |container, count| {
            let mount =
                |path: String| swarm::Mount { source: path.clone(), target: path, ..Default::default() };
            container.mounts = texts(count, "/m#").into_iter().map(mount).collect();
        }),
        ("Swarm, secrets", FEW, |container, count| {
            let secret = |name: String| swarm::SecretReference {
                secret_id: "s".to_owned(),
                target: Some(swarm::secret_reference::Target::File(file(name))),
                ..Default::default()
            };
            container.secrets = texts(count, "s#").into_iter().map(secret).collect();
        }),
        ("Swarm, configs", FEW, |container, count| {
            let config = |name: String| swarm::ConfigReference {
                config_id: "c".to_owned(),
                target: Some(swarm::config_reference::Target::File(file(name))),
                ..Default::default()
            };
            container.configs = texts(count, "c#").into_iter().map(config).collect();
        }),
        ("Swarm, hosts", FEW, |container, count| container.hosts = texts(count, "10.0.0.1 h#")),
        ("Swarm, DNS searches", FEW, |container, count| {
            container.dns_config.get_or_insert_default().search = texts(count, "s#.test");
        }),
        ("Swarm, sysctls", FEW, |container, count| container.sysctls = entries(count, "net.core.s#")),
        ("Swarm, groups", MANY, |container, count| {
            container.groups = (1..=count).map(|number| number.to_string()).collect();
        }),
        ("Swarm, capabilities", FEW, |container, count| {
            container.capability_add = vec!["CAP_NET_ADMIN".to_owned(); count];
        }),
    ];
    let request = |fill: fn(&mut swarm::ContainerSpec, usize)| -> Box<dyn Fn(usize) -> Vec<u8>> {
        Box::new(move |count| {
            let mut container = swarm::ContainerSpec { image: "busybox:1".to_owned(), ..Default::default() };
            fill(&mut container, count);
            service_task(container).encode_to_vec()
        })
    };
    let convert = |bytes: &[u8]| build_spec(&switchyard_swarm::fuzzing::task_spec(bytes)?);
    let list = |(name, length, fill)| List { name, length, request: request(fill), convert };
    let mut lists: Vec<List> = fills.into_iter().map(list).collect();
    lists.push(List {
        name: "Swarm, ports",
        length: FEW,
        request: Box::new(|count| {
            let port = |number| swarm::PortConfig {
                target_port: number,
                published_port: number,
                publish_mode: swarm::port_config::PublishMode::Host.into(),
                ..Default::default()
            };
            let ports = (1..).take(count).map(port).collect();
            let endpoint = Some(swarm::Endpoint { ports, ..Default::default() });
            let container = swarm::ContainerSpec { image: "busybox:1".to_owned(), ..Default::default() };
            swarm::Task { endpoint, ..service_task(container) }.encode_to_vec()
        }),
        convert,
    });
    lists
}

fn file(name: String) -> swarm::FileTarget {
    swarm::FileTarget { name, ..Default::default() }
}

fn service_task(container: swarm::ContainerSpec) -> swarm::Task {
    let runtime = Some(Runtime::Container(Box::new(container)));
    swarm::Task {
        id: "t1".to_owned(),
        service_id: "s1".to_owned(),
        slot: 1,
        spec: Some(swarm::TaskSpec { runtime, ..Default::default() }),
        ..Default::default()
    }
}

// === Nomad ===

fn agents() -> Vec<List> {
    let fills: [Fill<nomad::TaskConfig>; 8] = [
        ("Nomad, env", MANY, |task, count| task.env = entries(count, "N#")),
        ("Nomad, device_env", MANY, |task, count| task.device_env = entries(count, "N#")),
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
        ("Nomad, args", MANY, |task, count| options(task, "args", list_of(texts(count, "#")))),
        ("Nomad, labels", FEW, |task, count| options(task, "labels", map_of(entries(count, "l#")))),
        ("Nomad, extra_hosts", FEW, |task, count| {
            options(task, "extra_hosts", list_of(texts(count, "h#:10.0.0.1")))
        }),
        ("Nomad, sysctl", FEW, |task, count| options(task, "sysctl", map_of(entries(count, "net.core.s#")))),
    ];
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
    fills
        .into_iter()
        .map(|(name, length, fill)| List { name, length, request: request(fill), convert })
        .collect()
}

fn list_of(texts: Vec<String>) -> rmpv::Value {
    rmpv::Value::Array(texts.into_iter().map(Into::into).collect())
}

/// A block of a job is a list of maps.
fn map_of(entries: BTreeMap<String, String>) -> rmpv::Value {
    let map = entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
    rmpv::Value::Array(vec![rmpv::Value::Map(map)])
}

/// Sets the configuration of a task: its image, and one key.
fn options(task: &mut nomad::TaskConfig, key: &str, value: rmpv::Value) {
    let map = rmpv::Value::Map(vec![("image".into(), "busybox:1".into()), (key.into(), value)]);
    task.msgpack_driver_config.clear();
    rmpv::encode::write_value(&mut task.msgpack_driver_config, &map).expect("memory is there");
}
