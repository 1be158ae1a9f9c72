//! The lists that a kubelet sends.

use std::collections::BTreeMap;

use prost::Message;
use switchyard_cri::fuzzing::{container_spec, pod_spec};
use switchyard_proto::cri::v1 as cri;

use crate::host::build_spec;
use crate::lists::{FEW, Fill, List, MANY, addresses, entries, texts};

pub(crate) fn containers() -> Vec<List> {
    let request = |fill: fn(&mut cri::ContainerConfig, usize)| -> Box<dyn Fn(usize) -> Vec<u8>> {
        Box::new(move |count| {
            let mut config = container();
            fill(&mut config, count);
            request(config).encode_to_vec()
        })
    };
    let convert = |bytes: &[u8]| build_spec(&container_spec(bytes)?);
    of_container()
        .into_iter()
        .chain(of_limits())
        .map(|(name, length, fill)| List {
            name,
            length,
            request: request(fill),
            convert,
        })
        .collect()
}

/// A container without lists.
pub(crate) fn container() -> cri::ContainerConfig {
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: "c".to_owned(),
            attempt: 0,
        }),
        image: Some(cri::ImageSpec {
            image: "i".to_owned(),
            ..Default::default()
        }),
        command: vec!["true".to_owned()],
        ..Default::default()
    }
}

pub(crate) fn request(config: cri::ContainerConfig) -> cri::CreateContainerRequest {
    cri::CreateContainerRequest {
        pod_sandbox_id: "p".to_owned(),
        config: Some(config),
        sandbox_config: Some(pod()),
    }
}

fn of_container() -> [Fill<cri::ContainerConfig>; 10] {
    [
        ("CRI, envs", MANY, |config, count| {
            config.envs = texts(count, "N#")
                .into_iter()
                .map(|key| cri::KeyValue {
                    key,
                    ..Default::default()
                })
                .collect();
        }),
        ("CRI, command", MANY, |config, count| {
            config.command.extend(texts(count, "#"))
        }),
        ("CRI, args", MANY, |config, count| {
            config.args = texts(count, "#")
        }),
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
        ("CRI, labels", MANY, |config, count| {
            config.labels = entries(count, "l#")
        }),
        ("CRI, annotations", MANY, |config, count| {
            config.annotations = entries(count, "a#")
        }),
        // One is there in any case: to read the vendor's file is no part of what a list costs.
        ("CRI, CDI devices", FEW, |config, count| {
            let names = texts(count.max(1), "v/c=d#");
            config.cdi_devices = names
                .into_iter()
                .map(|name| cri::CdiDevice { name })
                .collect();
        }),
        ("CRI, CDI devices of an annotation", FEW, |config, count| {
            let names = texts(count.max(1), "v/c=d#").join(",");
            config.annotations = BTreeMap::from([("cdi.k8s.io/a".to_owned(), names)]);
        }),
    ]
}

/// The lists among the limits and in the security context.
fn of_limits() -> [Fill<cri::ContainerConfig>; 7] {
    [
        ("CRI, limits on huge pages", MANY, |config, count| {
            // There may be 64 sizes.
            let limit = |number| cri::HugepageLimit {
                page_size: format!("{}KB", 1 + number % 64),
                limit: 1,
            };
            resources(config).hugepage_limits = (0..count).map(limit).collect();
        }),
        ("CRI, unified", MANY, |config, count| {
            resources(config).unified = entries(count, "memory.#")
        }),
        ("CRI, supplemental groups", MANY, |config, count| {
            context(config).supplemental_groups = (1..).take(count).collect();
        }),
        ("CRI, capabilities to add", MANY, |config, count| {
            context(config)
                .capabilities
                .get_or_insert_default()
                .add_capabilities = texts(count, "C#");
        }),
        ("CRI, capabilities to drop", MANY, |config, count| {
            context(config)
                .capabilities
                .get_or_insert_default()
                .drop_capabilities = texts(count, "C#");
        }),
        ("CRI, masked paths", MANY, |config, count| {
            context(config).masked_paths = texts(count, "/m#")
        }),
        ("CRI, read-only paths", MANY, |config, count| {
            context(config).readonly_paths = texts(count, "/r#")
        }),
    ]
}

fn resources(config: &mut cri::ContainerConfig) -> &mut cri::LinuxContainerResources {
    config
        .linux
        .get_or_insert_default()
        .resources
        .get_or_insert_default()
}

fn context(config: &mut cri::ContainerConfig) -> &mut cri::LinuxContainerSecurityContext {
    config
        .linux
        .get_or_insert_default()
        .security_context
        .get_or_insert_default()
}

fn pod() -> cri::PodSandboxConfig {
    let metadata = cri::PodSandboxMetadata {
        name: "p".to_owned(),
        uid: "u".to_owned(),
        namespace: "n".to_owned(),
        attempt: 0,
    };
    // Each container has its own process namespace.
    let options = cri::NamespaceOption {
        pid: cri::NamespaceMode::Container.into(),
        ..Default::default()
    };
    let context = cri::LinuxSandboxSecurityContext {
        namespace_options: Some(options),
        ..Default::default()
    };
    let linux = cri::LinuxPodSandboxConfig {
        security_context: Some(context),
        ..Default::default()
    };
    cri::PodSandboxConfig {
        metadata: Some(metadata),
        log_directory: "/logs".to_owned(),
        linux: Some(linux),
        ..Default::default()
    }
}

pub(crate) fn pods() -> Vec<List> {
    let fills: [Fill<cri::PodSandboxConfig>; 7] = [
        ("CRI, labels of a pod", MANY, |config, count| {
            config.labels = entries(count, "l#")
        }),
        ("CRI, annotations of a pod", MANY, |config, count| {
            config.annotations = entries(count, "a#")
        }),
        ("CRI, port mappings", FEW, |config, count| {
            let port = |number| cri::PortMapping {
                container_port: number,
                host_port: number,
                ..Default::default()
            };
            config.port_mappings = (1..).take(count).map(port).collect();
        }),
        ("CRI, DNS servers", FEW, |config, count| {
            config.dns_config.get_or_insert_default().servers = addresses(count);
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
            cri::RunPodSandboxRequest {
                config: Some(config),
                ..Default::default()
            }
            .encode_to_vec()
        })
    };
    let convert = |bytes: &[u8]| pod_spec(bytes).map(drop);
    fills
        .into_iter()
        .map(|(name, length, fill)| List {
            name,
            length,
            request: request(fill),
            convert,
        })
        .collect()
}
