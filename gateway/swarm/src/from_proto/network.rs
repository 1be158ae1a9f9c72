//! The network of a task, and the ports of the node that lead to it.

use swarm::port_config;
use switchyard_core::spec::{
    HostPort, HostPorts, Link, PodNetwork, PortMapping, Protocol, SandboxNetwork,
};
use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::check_count;
use switchyard_proto::docker::swarmkit::v1 as swarm;

use super::request::TaskRequest;
use crate::plan::PublishedPort;

mod attached;

use attached::AttachedNetwork;

/// The network of a task.
#[derive(Debug)]
pub(super) struct TaskNetwork {
    pub(super) spec: SandboxNetwork,
    /// The ports whose numbers are known.
    pub(super) host_ports: HostPorts,
    /// All ports.
    pub(super) ports: Vec<PublishedPort>,
}

/// The network that a task has: the gateway's own bridge if the service names none.
pub(super) fn network(asked: &TaskRequest<'_>) -> Result<TaskNetwork> {
    let attached = match asked.task.networks.as_slice() {
        [] => AttachedNetwork::Link(Link::Bridge),
        [attachment] => attached::network(attachment)?,
        [_, ..] => {
            let names: Vec<&str> = asked.task.networks.iter().map(name).collect();
            let why = "a task has one network here";
            return Err(Error::unimplemented(format!(
                "networks: {} of them, {names:?}: {why}",
                names.len()
            )));
        }
    };
    let ports = ports(asked.task.endpoint.as_ref())?;
    let spec = match attached {
        AttachedNetwork::Host => SandboxNetwork::Host,
        AttachedNetwork::Link(Link::ClusterBridge(bridge))
            if bridge.is_internal && !ports.is_empty() =>
        {
            let why = "no port of the node leads into an internal network: publish none, or use another network";
            return Err(Error::unimplemented(format!(
                "endpoint.ports: network {:?}: {why}",
                bridge.name
            )));
        }
        AttachedNetwork::Link(link) => SandboxNetwork::Pod(PodNetwork {
            link,
            ports: mappings(&ports),
            ..PodNetwork::default()
        }),
    };
    let host_ports = host_ports(asked.task, &spec, &ports)?;
    Ok(TaskNetwork {
        spec,
        host_ports,
        ports,
    })
}

/// The ports of the node that lead into a task, of those whose numbers are known.
pub(crate) fn mappings(ports: &[PublishedPort]) -> Vec<PortMapping> {
    let mapping = |port: &PublishedPort| {
        Some(PortMapping {
            protocol: port.protocol,
            container_port: port.target,
            host_port: port.published?,
            host_ip: None,
        })
    };
    ports.iter().filter_map(mapping).collect()
}

/// The ports of the node that a task claims: those that lead into it, or with the host's network those that it
/// listens on.
fn host_ports(
    task: &swarm::Task,
    network: &SandboxNetwork,
    ports: &[PublishedPort],
) -> Result<HostPorts> {
    claims(&task.id, *network == SandboxNetwork::Host, ports)
}

/// As [`host_ports`], of a task with this id.
pub(crate) fn claims(task_id: &str, is_host: bool, ports: &[PublishedPort]) -> Result<HostPorts> {
    let claim = |port: &PublishedPort| {
        let number = if is_host {
            Some(port.target)
        } else {
            port.published
        };
        number.map(|number| HostPort {
            protocol: port.protocol,
            port: number,
            ip: None,
        })
    };
    HostPorts::new(
        task_id.to_owned(),
        ports.iter().filter_map(claim),
        "endpoint.ports",
    )
}

fn name(attachment: &swarm::NetworkAttachment) -> &str {
    let spec = attachment
        .network
        .as_ref()
        .and_then(|network| network.spec.as_ref());
    spec.and_then(|spec| spec.annotations.as_ref())
        .map(|annotations| annotations.name.as_str())
        .unwrap_or_default()
}

fn ports(endpoint: Option<&swarm::Endpoint>) -> Result<Vec<PublishedPort>> {
    // The addresses are of overlay networks, and the specification is what the manager made the ports of.
    let Some(swarm::Endpoint {
        spec: _,
        ports: wire,
        virtual_ips: _,
    }) = endpoint
    else {
        return Ok(Vec::new());
    };
    let mut ports: Vec<PublishedPort> = Vec::new();
    for (index, port) in wire.iter().enumerate() {
        let field = format!("endpoint.ports[{index}]");
        check_count(&field, "ports", ports.len())?;
        let swarm::PortConfig {
            name,
            protocol,
            target_port,
            published_port,
            publish_mode,
        } = port;
        match port_config::PublishMode::try_from(*publish_mode) {
            Ok(port_config::PublishMode::Host) => {}
            Ok(port_config::PublishMode::Ingress) => {
                let why = "ports of the whole cluster (ingress) are not supported: publish it with mode=host";
                return Err(Error::unimplemented(format!("{field}: {why}")));
            }
            Err(_) => {
                return Err(Error::unimplemented(format!(
                    "{field}.publish_mode: {publish_mode} is not known"
                )));
            }
        }
        let number = |part: &str, number: u32| {
            u16::try_from(number).map_err(|_| {
                Error::invalid(
                    format_args!("{field}.{part}"),
                    format!("{number} is no port"),
                )
            })
        };
        let target = number("target_port", *target_port)?;
        if target == 0 {
            return Err(Error::invalid(
                format_args!("{field}.target_port"),
                "0 is no port",
            ));
        }
        let published = Some(number("published_port", *published_port)?).filter(|port| *port != 0);
        let protocol = match port_config::Protocol::try_from(*protocol) {
            Ok(port_config::Protocol::Tcp) => Protocol::Tcp,
            Ok(port_config::Protocol::Udp) => Protocol::Udp,
            Ok(port_config::Protocol::Sctp) => Protocol::Sctp,
            Err(_) => {
                return Err(Error::unimplemented(format!(
                    "{field}.protocol: {protocol} is not known"
                )));
            }
        };
        ports.push(PublishedPort {
            name: name.clone(),
            protocol,
            target,
            published,
        });
    }
    Ok(ports)
}
