//! The network of a task, and the ports of the node that lead to it.

use swarm::network_spec::ConfigFrom;
use swarm::port_config;
use switchyard_core::spec::{
    HostPort, HostPorts, Link, NetworkName, PodNetwork, PortMapping, Protocol, SandboxNetwork,
};
use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::check_count;
use switchyard_proto::docker::swarmkit::v1 as swarm;

use super::request::TaskRequest;
use crate::plan::PublishedPort;

/// The label of networks that every node has.
const PREDEFINED: &str = "com.docker.swarm.predefined";

/// What a service can ask for, for errors.
const SUPPORTED: &str = "there are the host's network, \"bridge\", and networks with the configuration of one of the node's own (--config-from)";

/// What a task is attached to.
#[derive(Debug)]
enum AttachedNetwork {
    /// The network of the host.
    Host,
    /// A network of this node.
    Link(Link),
}

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
        [attachment] => attached(attachment)?,
        [_, ..] => {
            let names: Vec<&str> = asked.task.networks.iter().map(name).collect();
            let why = "a task has one network here";
            return Err(Error::unimplemented(format!("networks: {} of them, {names:?}: {why}", names.len())));
        }
    };
    let ports = ports(asked.task.endpoint.as_ref())?;
    let spec = match attached {
        AttachedNetwork::Host => SandboxNetwork::Host,
        AttachedNetwork::Link(link) => {
            SandboxNetwork::Pod(PodNetwork { link, ports: mappings(&ports), ..PodNetwork::default() })
        }
    };
    let host_ports = host_ports(asked.task, &spec, &ports)?;
    Ok(TaskNetwork { spec, host_ports, ports })
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
fn host_ports(task: &swarm::Task, network: &SandboxNetwork, ports: &[PublishedPort]) -> Result<HostPorts> {
    claims(&task.id, *network == SandboxNetwork::Host, ports)
}

/// As [`host_ports`], of a task with this id.
pub(crate) fn claims(task_id: &str, is_host: bool, ports: &[PublishedPort]) -> Result<HostPorts> {
    let claim = |port: &PublishedPort| {
        let number = if is_host { Some(port.target) } else { port.published };
        number.map(|number| HostPort { protocol: port.protocol, port: number, ip: None })
    };
    HostPorts::new(task_id.to_owned(), ports.iter().filter_map(claim), "endpoint.ports")
}

fn name(attachment: &swarm::NetworkAttachment) -> &str {
    let spec = attachment.network.as_ref().and_then(|network| network.spec.as_ref());
    spec.and_then(|spec| spec.annotations.as_ref())
        .map(|annotations| annotations.name.as_str())
        .unwrap_or_default()
}

/// The network of this node that a network of the swarm is.
fn attached(attachment: &swarm::NetworkAttachment) -> Result<AttachedNetwork> {
    let swarm::NetworkAttachment {
        network,
        // Of overlay networks; aliases need a resolver of the network.
        addresses: _,
        aliases: _,
        driver_attachment_opts: _,
    } = attachment;
    let field = "networks[0]";
    let network = network.as_ref().ok_or_else(|| Error::invalid(field, "it is missing"))?;
    let swarm::Network { id: _, meta: _, spec, driver_state, ipam: _, pending_delete: _, extra: _ } = network;
    let spec = spec.clone().unwrap_or_default();
    let swarm::NetworkSpec {
        annotations,
        driver_config,
        ipv6_enabled: _,
        internal: _,
        ipam: _,
        attachable: _,
        ingress,
        config_from,
    } = spec;
    let annotations = annotations.unwrap_or_default();
    let driver = driver_state.as_ref().or(driver_config.as_ref()).map(|driver| driver.name.as_str());
    let refused = |what: &str| {
        let network = &annotations.name;
        Err(Error::unimplemented(format!(
            "{field}: network {network:?} {what} is not supported: {SUPPORTED}"
        )))
    };
    if let Some(ConfigFrom::Network(config)) = config_from {
        // Whatever driver it names: the configuration says which plugins there are.
        let name = NetworkName::parse(
            format_args!("{field}: the configuration of network {:?}", annotations.name),
            &config,
        )?;
        return Ok(AttachedNetwork::Link(Link::Named(name)));
    }
    let is_predefined = annotations.labels.get(PREDEFINED).is_some_and(|value| value == "true");
    match driver.unwrap_or_default() {
        "host" if is_predefined => Ok(AttachedNetwork::Host),
        "bridge" if is_predefined => Ok(AttachedNetwork::Link(Link::Bridge)),
        "bridge" => refused("with a bridge of its own"),
        _ if ingress => refused("for ports of the whole cluster (ingress)"),
        driver => refused(&format!("with driver {driver:?}")),
    }
}

fn ports(endpoint: Option<&swarm::Endpoint>) -> Result<Vec<PublishedPort>> {
    // The addresses are of overlay networks, and the specification is what the manager made the ports of.
    let Some(swarm::Endpoint { spec: _, ports: wire, virtual_ips: _ }) = endpoint else {
        return Ok(Vec::new());
    };
    let mut ports: Vec<PublishedPort> = Vec::new();
    for (index, port) in wire.iter().enumerate() {
        let field = format!("endpoint.ports[{index}]");
        check_count(&field, "ports", ports.len())?;
        let swarm::PortConfig { name, protocol, target_port, published_port, publish_mode } = port;
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
            u16::try_from(number)
                .map_err(|_| Error::invalid(format_args!("{field}.{part}"), format!("{number} is no port")))
        };
        let target = number("target_port", *target_port)?;
        if target == 0 {
            return Err(Error::invalid(format_args!("{field}.target_port"), "0 is no port"));
        }
        let published = Some(number("published_port", *published_port)?).filter(|port| *port != 0);
        let protocol = match port_config::Protocol::try_from(*protocol) {
            Ok(port_config::Protocol::Tcp) => Protocol::Tcp,
            Ok(port_config::Protocol::Udp) => Protocol::Udp,
            Ok(port_config::Protocol::Sctp) => Protocol::Sctp,
            Err(_) => {
                return Err(Error::unimplemented(format!("{field}.protocol: {protocol} is not known")));
            }
        };
        ports.push(PublishedPort { name: name.clone(), protocol, target, published });
    }
    Ok(ports)
}
