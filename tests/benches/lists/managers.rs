//! The lists that the managers of a swarm send.

use prost::Message;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_swarm::test_util::service_task;

use crate::host::build_spec;
use crate::lists::{FEW, Fill, List, MANY, addresses, entries, texts};

pub(crate) fn services() -> Vec<List> {
    let request = |fill: fn(&mut swarm::ContainerSpec, usize)| -> Box<dyn Fn(usize) -> Vec<u8>> {
        Box::new(move |count| {
            let mut container = container();
            fill(&mut container, count);
            service_task("t1", container).encode_to_vec()
        })
    };
    let convert = |bytes: &[u8]| build_spec(&switchyard_swarm::fuzzing::task_spec(bytes)?);
    let of_containers = of_container().into_iter().chain(of_names());
    let mut lists: Vec<List> = of_containers
        .map(|(name, length, fill)| List {
            name,
            length,
            request: request(fill),
            convert,
        })
        .collect();
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
            let endpoint = Some(swarm::Endpoint {
                ports,
                ..Default::default()
            });
            swarm::Task {
                endpoint,
                ..service_task("t1", container())
            }
            .encode_to_vec()
        }),
        convert,
    });
    lists.push(List {
        name: "Swarm, generic resources",
        length: FEW,
        request: Box::new(|count| {
            let resource = |value| {
                let named = swarm::NamedGenericResource {
                    kind: "tpu".to_owned(),
                    value,
                };
                let resource = Some(swarm::generic_resource::Resource::NamedResourceSpec(named));
                swarm::GenericResource { resource }
            };
            let assigned_generic_resources = texts(count, "t#").into_iter().map(resource).collect();
            swarm::Task {
                assigned_generic_resources,
                ..service_task("t1", container())
            }
            .encode_to_vec()
        }),
        convert,
    });
    lists
}

/// A container without lists.
fn container() -> swarm::ContainerSpec {
    swarm::ContainerSpec {
        image: "busybox:1".to_owned(),
        ..Default::default()
    }
}

fn of_container() -> [Fill<swarm::ContainerSpec>; 8] {
    [
        ("Swarm, env", MANY, |container, count| {
            container.env = texts(count, "N#=1")
        }),
        ("Swarm, env with templates", FEW, |container, count| {
            container.env = texts(count, "N#={{.Task.ID}}")
        }),
        ("Swarm, command", MANY, |container, count| {
            container.command = texts(count, "#")
        }),
        ("Swarm, args", MANY, |container, count| {
            container.args = texts(count, "#")
        }),
        ("Swarm, labels", FEW, |container, count| {
            container.labels = entries(count, "l#")
        }),
        ("Swarm, mounts", FEW, |container, count| {
            let mount = |path: String| swarm::Mount {
                source: path.clone(),
                target: path,
                ..Default::default()
            };
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
    ]
}

/// The lists of names: of hosts and name servers, of parameters, groups and capabilities.
fn of_names() -> [Fill<swarm::ContainerSpec>; 8] {
    [
        ("Swarm, hosts", FEW, |container, count| {
            container.hosts = texts(count, "10.0.0.1 h#")
        }),
        ("Swarm, DNS servers", FEW, |container, count| {
            container.dns_config.get_or_insert_default().nameservers = addresses(count);
        }),
        ("Swarm, DNS options", FEW, |container, count| {
            container.dns_config.get_or_insert_default().options = texts(count, "o:#");
        }),
        ("Swarm, DNS searches", FEW, |container, count| {
            container.dns_config.get_or_insert_default().search = texts(count, "s#.test");
        }),
        ("Swarm, sysctls", FEW, |container, count| {
            container.sysctls = entries(count, "net.core.s#")
        }),
        ("Swarm, groups", MANY, |container, count| {
            container.groups = (1..=count).map(|number| number.to_string()).collect();
        }),
        // One name again and again: there are 41, and others are refused. A set of them stays small, so that a cost that
        // grows with the square of the length does not show here.
        ("Swarm, capabilities to add", FEW, |container, count| {
            container.capability_add = vec!["CAP_NET_ADMIN".to_owned(); count];
        }),
        ("Swarm, capabilities to drop", FEW, |container, count| {
            container.capability_drop = texts(count, "C#");
        }),
    ]
}

fn file(name: String) -> swarm::FileTarget {
    swarm::FileTarget {
        name,
        ..Default::default()
    }
}
