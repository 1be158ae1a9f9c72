//! The network of a task, and the host ports that are forwarded to it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use switchyard_core::spec::{
    HostPort, HostPorts, Link, MacAddress, PodNetwork, PortMapping, Protocol, SandboxNetwork,
};
use switchyard_core::text::first_names;
use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::{ITEMS_MAX, absolute};
use switchyard_proto::nomad::drivers::proto as nomad;

use super::request::TaskRequest;
use super::security;
use super::sibling::is_network_of_sibling;
use crate::plan::NamedPort;

/// The network of a task, and its description for the agent.
#[derive(Debug)]
pub(super) struct TaskNetwork {
    /// The network.
    pub(super) network: SandboxNetwork,
    /// Its ports by label; only with a network of its own.
    pub(super) ports: Vec<NamedPort>,
    /// The host ports that it claims, whoever forwards them.
    pub(super) host_ports: HostPorts,
    /// The variables of the task that say where its ports are, which replace the agent's.
    pub(super) variables: BTreeMap<String, String>,
    /// Warnings for people.
    pub(super) warnings: Vec<String>,
}

/// A port is assigned for both protocols: Nomad does not distinguish them.
const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

/// A port that the agent has assigned.
struct AssignedPort<'a> {
    label: &'a str,
    host: i32,
    to: i32,
    host_ip: &'a str,
}

/// The network of a task.
///
/// The task's config takes precedence over its group's network. Without a `network_mode` the task joins the
/// namespace that the agent made for its group, or, if it made none, is on the gateway's bridge.
pub(super) fn network(request: &TaskRequest<'_>) -> Result<TaskNetwork> {
    let options = request.options;
    for (field, count) in [
        ("ports", options.ports.len()),
        ("port_map", options.port_map.len()),
    ] {
        if count > ITEMS_MAX {
            return Err(Error::invalid(
                field,
                format!("it has {count} entries, and may have {ITEMS_MAX}"),
            ));
        }
    }
    match options.network_mode.as_str() {
        "" => match group_namespace(request)? {
            Some(joined) => without_interface(request, joined),
            None => with_interface(request),
        },
        "bridge" | "default" => with_interface(request),
        "host" => {
            security::require_host_mode_allowed(
                request,
                "network_mode",
                &request.session.config.allowed_modes.network,
            )?;
            without_interface(request, SandboxNetwork::Host)
        }
        "none" => without_interface(request, SandboxNetwork::Isolated),
        // Until the namespace is known, when the task is started.
        mode if is_network_of_sibling(mode) => without_interface(request, SandboxNetwork::Isolated),
        other => {
            let why = "expected bridge, host, none or container:TASK; for a network of CNI give the group a network block with mode \"cni/…\"";
            Err(Error::unimplemented(format!(
                "network_mode: {other:?} is not supported: {why}"
            )))
        }
    }
}

/// The network of a task with an interface of its own, on the gateway's bridge.
fn with_interface(request: &TaskRequest<'_>) -> Result<TaskNetwork> {
    let mut warnings = Vec::new();
    let ports = named_ports(request)?;
    let network = own(request, &ports, &mut warnings)?;
    let host_ports = host_ports(request, &network, &ports)?;
    Ok(TaskNetwork {
        network,
        variables: port_variables(request, &ports),
        ports,
        host_ports,
        warnings,
    })
}

/// The network of a task that has no interface of its own: this one.
fn without_interface(request: &TaskRequest<'_>, network: SandboxNetwork) -> Result<TaskNetwork> {
    let options = request.options;
    for (name, value) in [
        ("ipv4_address", &options.ipv4_address),
        ("mac_address", &options.mac_address),
    ] {
        if !value.is_empty() {
            return Err(Error::invalid(
                name,
                "the task has no network interface of its own",
            ));
        }
    }
    let mut warnings = Vec::new();
    if matches!(network, SandboxNetwork::Joined(_)) && !options.ports.is_empty() {
        // The agent publishes the ports of the group, whatever the task says about them.
        warnings.extend(unknown_ports(request));
    } else {
        named_ports(request)?;
    }
    let host_ports = host_ports(request, &network, &[])?;
    Ok(TaskNetwork {
        network,
        variables: port_variables(request, &[]),
        ports: Vec::new(),
        host_ports,
        warnings,
    })
}

/// The variables `NOMAD_PORT_LABEL`, by which a task learns the port that it has to listen on: the agent knows
/// nothing of `port_map`, and gives the port of the host. As Docker's driver, this one also sets those of labels in
/// `port_map` that are not published, for instance on the host's network. Where a task is reached from outside,
/// `NOMAD_ADDR_LABEL` and `NOMAD_HOST_PORT_LABEL`, remains as the agent gives it.
fn port_variables(request: &TaskRequest<'_>, published: &[NamedPort]) -> BTreeMap<String, String> {
    let mapped = request
        .options
        .port_map
        .iter()
        .filter_map(|(label, text)| Some((label.as_str(), text.parse::<u16>().ok()?)))
        .filter(|(_, port)| *port != 0);
    let published = published
        .iter()
        .map(|port| (port.label.as_str(), port.container_port));
    // Of equal labels the last is used: that of what is published.
    mapped
        .chain(published)
        .map(|(label, port)| (port_variable(label), port.to_string()))
        .collect()
}

/// The name of the variable with the port of this label: where the agent has none of its characters in names of
/// variables, it writes `_`.
fn port_variable(label: &str) -> String {
    let name = format!("NOMAD_PORT_{label}");
    // By bytes, as the agent does.
    let clean = name.bytes().map(|byte| match byte {
        b'_' | b'.' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte),
        _ => '_',
    });
    clean.collect()
}

/// The host ports that a task claims; shared with the other tasks of its allocation, unless two publish the same.
fn host_ports(
    request: &TaskRequest<'_>,
    network: &SandboxNetwork,
    published: &[NamedPort],
) -> Result<HostPorts> {
    let alloc = request.task.alloc_id.clone();
    let ports: Vec<HostPort> = match network {
        // They lead into this task, and so into no other one of the allocation.
        SandboxNetwork::Pod(_) => {
            let ports = published
                .iter()
                .flat_map(|port| both_protocols(port.host_port, port.host_ip));
            let claims = HostPorts::new(alloc, ports, "task.resources")?;
            return Ok(claims.forwarded_to(&request.task.name));
        }
        SandboxNetwork::Host => given_ports(request)
            .map(|HostPort { protocol, port, ip }| HostPort::bound(protocol, port, ip))
            .collect(),
        // The agent has published them for the whole group.
        SandboxNetwork::Joined(_) => given_ports(request).collect(),
        SandboxNetwork::Isolated => Vec::new(),
    };
    HostPorts::new(alloc, ports, "task.resources")
}

/// The ports that the agent has assigned to the task's group, and in jobs of the old form to the task.
/// Invalid port numbers are left out: the gateway does nothing with these ports, and no process can bind such
/// a number.
fn given_ports<'a>(request: &TaskRequest<'a>) -> impl Iterator<Item = HostPort> + use<'a> {
    let resources = request.task.resources.as_ref();
    let group = resources.into_iter().flat_map(|resources| &resources.ports);
    let group = group.map(|port| (port.value, port.host_ip.as_str()));
    let allocated = resources.and_then(|resources| resources.allocated_resources.as_ref());
    let own = allocated
        .into_iter()
        .flat_map(|allocated| &allocated.networks)
        .flat_map(|network| {
            let ports = network.reserved_ports.iter().chain(&network.dynamic_ports);
            ports.map(|port| (port.value, network.ip.as_str()))
        });
    group.chain(own).flat_map(|(number, ip)| {
        let port = u16::try_from(number).ok().filter(|port| *port != 0);
        // If the address cannot be parsed, the port may be bound at any address.
        port.into_iter()
            .flat_map(move |port| both_protocols(port, ip.parse().ok()))
    })
}

fn both_protocols(port: u16, ip: Option<IpAddr>) -> [HostPort; 2] {
    PROTOCOLS.map(|protocol| HostPort { protocol, port, ip })
}

/// The namespace that the agent has created for the task's group.
fn group_namespace(request: &TaskRequest<'_>) -> Result<Option<SandboxNetwork>> {
    use nomad::network_isolation_spec::NetworkIsolationMode as Mode;
    let field = "task.network_isolation_spec";
    let Some(spec) = &request.task.network_isolation_spec else {
        return Ok(None);
    };
    let known = Mode::try_from(spec.mode).map_err(|_| {
        Error::invalid(
            format_args!("{field}.mode"),
            format!("{} is none of its values", spec.mode),
        )
    })?;
    Ok(match known {
        Mode::Group => Some(SandboxNetwork::Joined(absolute(
            format_args!("{field}.path"),
            &spec.path,
        )?)),
        Mode::None => Some(SandboxNetwork::Isolated),
        // A group without a network of its own leaves the network to its tasks.
        Mode::Host | Mode::Task => None,
    })
}

/// A network of its own, on the gateway's bridge.
fn own(
    request: &TaskRequest<'_>,
    named: &[NamedPort],
    warnings: &mut Vec<String>,
) -> Result<SandboxNetwork> {
    let options = request.options;
    let mut args = Vec::new();
    if !options.ipv4_address.is_empty() {
        let address: Ipv4Addr = options.ipv4_address.parse().map_err(|_| {
            Error::invalid(
                "ipv4_address",
                format!("{:?} is no address", options.ipv4_address),
            )
        })?;
        args = vec![
            ("IgnoreUnknown".to_owned(), "1".to_owned()),
            ("IP".to_owned(), address.to_string()),
        ];
    }
    let mac = Some(options.mac_address.as_str()).filter(|mac| !mac.is_empty());
    if options.ports.is_empty() {
        let known: HashSet<&str> = named.iter().map(|port| port.label.as_str()).collect();
        let unknown = options
            .port_map
            .keys()
            .map(String::as_str)
            .filter(|label| !known.contains(label));
        warnings.extend(without_effect(
            "port_map",
            unknown,
            "the job has no such port",
        ));
    } else if !options.port_map.is_empty() {
        warnings.push("port_map has no effect: ports says which are published".to_owned());
    }
    let publish = |port: &NamedPort| {
        PROTOCOLS.map(|protocol| PortMapping {
            protocol,
            container_port: port.container_port,
            host_port: port.host_port,
            host_ip: port.host_ip,
        })
    };
    Ok(SandboxNetwork::Pod(PodNetwork {
        link: Link::Bridge,
        mac: mac.map(MacAddress::parse).transpose()?,
        ports: named.iter().flat_map(publish).collect(),
        bandwidth: None,
        args,
        capabilities: BTreeMap::new(),
    }))
}

/// The ports of the task's group by label; of several with one label, the first.
fn group_ports<'a>(request: &TaskRequest<'a>) -> HashMap<&'a str, &'a nomad::PortMapping> {
    let resources = request.task.resources.as_ref();
    let ports = resources
        .map(|resources| resources.ports.as_slice())
        .unwrap_or_default();
    // Of equal keys, the last is used.
    ports
        .iter()
        .rev()
        .map(|port| (port.label.as_str(), port))
        .collect()
}

/// A warning about labels that the group does not have.
fn unknown_ports(request: &TaskRequest<'_>) -> Option<String> {
    let mut known: HashSet<&str> = group_ports(request).into_keys().collect();
    // Each once.
    let unknown = request
        .options
        .ports
        .iter()
        .map(String::as_str)
        .filter(|&label| known.insert(label));
    without_effect(
        "ports",
        unknown,
        "the network of the group has no such port",
    )
}

/// A warning about the labels for which an option has no effect, if there are any. It is one for all of them: an agent
/// keeps only the last events of a task.
fn without_effect<'a>(
    option: &str,
    labels: impl Iterator<Item = &'a str>,
    why: &str,
) -> Option<String> {
    let labels = first_names(labels);
    (!labels.is_empty()).then(|| format!("{option} has no effect for {labels}: {why}"))
}

/// The ports of a task by label: those of its group that it names, or, in a job of the old form, all of its
/// own.
fn named_ports(request: &TaskRequest<'_>) -> Result<Vec<NamedPort>> {
    let options = request.options;
    let resources = request.task.resources.as_ref();
    let group = group_ports(request);
    if !options.port_map.is_empty() && options.ports.is_empty() && !group.is_empty() {
        return Err(Error::invalid(
            "port_map",
            "'port_map' cannot map group network ports, use 'ports' instead",
        ));
    }
    let mut ports: Vec<NamedPort> = Vec::new();
    let mut seen = HashSet::new();
    for (index, label) in options.ports.iter().enumerate() {
        let field = format!("ports[{index}]");
        let given = group.get(label.as_str()).ok_or_else(|| {
            Error::invalid(
                &field,
                format!("Port {label:?} not found, check network block"),
            )
        })?;
        if !seen.insert(label) {
            continue;
        }
        let nomad::PortMapping {
            label,
            value,
            to,
            host_ip,
        } = given;
        ports.push(port(
            &field,
            &AssignedPort {
                label,
                host: *value,
                to: *to,
                host_ip,
            },
        )?);
    }
    if options.ports.is_empty() && group.is_empty() {
        let networks = resources.and_then(|resources| resources.allocated_resources.as_ref());
        let network = networks.and_then(|allocated| allocated.networks.first());
        for given in network
            .iter()
            .flat_map(|network| network.reserved_ports.iter().chain(&network.dynamic_ports))
        {
            let host_ip = network
                .map(|network| network.ip.as_str())
                .unwrap_or_default();
            let nomad::NetworkPort { label, value } = given;
            let field = format!("port_map.{label}");
            let to = match options.port_map.get(label) {
                None => 0,
                Some(text) => text
                    .parse()
                    .map_err(|_| Error::invalid(&field, format!("{text:?} is no port")))?,
            };
            ports.push(port(
                &field,
                &AssignedPort {
                    label,
                    host: *value,
                    to,
                    host_ip,
                },
            )?);
        }
    }
    Ok(ports)
}

fn port(field: &str, given: &AssignedPort<'_>) -> Result<NamedPort> {
    let number = |number: i32| {
        let port = u16::try_from(number).ok().filter(|port| *port != 0);
        port.ok_or_else(|| Error::invalid(field, format!("{number} is no port")))
    };
    let host_port = number(given.host)?;
    let host_ip = match given.host_ip {
        "" => None,
        ip => Some(
            ip.parse::<IpAddr>()
                .map_err(|_| Error::invalid(field, format!("{ip:?} is no IP address")))?,
        ),
    };
    // Without another number, the port inside is the same.
    let container_port = if given.to > 0 {
        number(given.to)?
    } else {
        host_port
    };
    Ok(NamedPort {
        label: given.label.to_owned(),
        host_port,
        container_port,
        host_ip,
    })
}
