//! A network that a service names.

use std::collections::BTreeMap;
use std::net::IpAddr;

use swarm::network_spec::ConfigFrom;
use switchyard_core::spec::{
    BridgeAddresses, ClusterBridge, Ipv6BridgeAddresses, Link, NetworkName, Subnet,
};
use switchyard_core::{Error, Result};
use switchyard_proto::docker::swarmkit::v1 as swarm;

/// The label of networks that every node has.
const PREDEFINED: &str = "com.docker.swarm.predefined";

/// Field that errors name: a task has one network.
const FIELD: &str = "networks[0]";

/// The supported networks, for errors.
const SUPPORTED: &str = "there are the host's network, \"bridge\", bridge networks of the swarm, and networks with the configuration of one of the node's own (--config-from)";

/// The options of bridge networks that have an effect.
const MTU: &str = "com.docker.network.driver.mtu";
const MASQUERADE: &str = "com.docker.network.bridge.enable_ip_masquerade";
/// Option that lets containers of the network reach each other, which they always do here.
const COMMUNICATION: &str = "com.docker.network.bridge.enable_icc";

/// The longest text that becomes an address or a range.
const ADDRESS_MAX: usize = 64;

/// The longest name of a network that is kept, in characters: it is for people.
const NAME_MAX: usize = 64;

/// The kernel's limits of an MTU.
const MTU_RANGE: std::ops::RangeInclusive<u16> = 68..=65_535;

/// The smallest MTU with which the kernel takes addresses of IPv6.
const IPV6_MTU_MIN: u16 = 1280;

/// The addresses of each family that the swarm specifies.
type Addresses = (Option<BridgeAddresses>, Option<Ipv6BridgeAddresses>);

/// A network, as its specification describes it.
struct Named<'a> {
    name: &'a str,
    spec: &'a swarm::NetworkSpec,
    options: BTreeMap<&'a str, &'a str>,
}

/// The network that a task is attached to.
#[derive(Debug)]
pub(super) enum AttachedNetwork {
    /// The network of the host.
    Host,
    /// A network of this node.
    Link(Link),
}

/// The network of this node that a network of the swarm is.
pub(super) fn network(attachment: &swarm::NetworkAttachment) -> Result<AttachedNetwork> {
    let swarm::NetworkAttachment {
        network,
        addresses,
        // Names for other tasks, which need a resolver of the network.
        aliases: _,
        driver_attachment_opts,
    } = attachment;
    let network = network
        .as_ref()
        .ok_or_else(|| Error::invalid(FIELD, "it is missing"))?;
    let swarm::Network {
        id,
        meta: _,
        spec,
        driver_state,
        ipam,
        pending_delete: _,
        extra: _,
    } = network;
    let none = swarm::NetworkSpec::default();
    let spec = spec.as_ref().unwrap_or(&none);
    let annotations = spec.annotations.clone().unwrap_or_default();
    if let Some(ConfigFrom::Network(config)) = &spec.config_from {
        // Whatever driver it names: the configuration says which plugins there are.
        let name = NetworkName::parse(
            format_args!(
                "{FIELD}: the configuration of network {:?}",
                annotations.name
            ),
            config,
        )?;
        return Ok(AttachedNetwork::Link(Link::Named(name)));
    }
    let is_predefined = annotations
        .labels
        .get(PREDEFINED)
        .is_some_and(|value| value == "true");
    let drivers = [spec.driver_config.as_ref(), driver_state.as_ref()];
    let options = drivers
        .into_iter()
        .flatten()
        .flat_map(|driver| &driver.options);
    let named = Named {
        name: annotations.name.as_str(),
        spec,
        options: options
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect(),
    };
    let driver = driver_state.as_ref().or(spec.driver_config.as_ref());
    match driver
        .map(|driver| driver.name.as_str())
        .unwrap_or_default()
    {
        "host" if is_predefined => return Ok(AttachedNetwork::Host),
        "bridge" if is_predefined => return Ok(AttachedNetwork::Link(Link::Bridge)),
        _ if spec.ingress => return Err(named.refused("for ports of the whole cluster (ingress)")),
        "bridge" => {}
        driver => return Err(named.refused(&format!("with driver {driver:?}"))),
    }
    if !addresses.is_empty() {
        return Err(named.refused(&format!(
            "with an address that is chosen for the task ({})",
            addresses.len()
        )));
    }
    if let Some(key) = driver_attachment_opts.keys().next() {
        return Err(named.refused(&format!("with the option {key:?} of the service")));
    }
    let id = NetworkName::parse(format_args!("{FIELD}.network.id"), id)?;
    let of_state = ipam.as_ref().filter(|ipam| !ipam.configs.is_empty());
    named
        .bridge(id, of_state.or(spec.ipam.as_ref()))
        .map(AttachedNetwork::Link)
}

impl Named<'_> {
    fn refused(&self, what: &str) -> Error {
        let name = self.name;
        Error::unimplemented(format!(
            "{FIELD}: network {name:?} {what} is not supported: {SUPPORTED}"
        ))
    }

    /// A bridge network of the swarm.
    fn bridge(&self, id: NetworkName, ipam: Option<&swarm::IpamOptions>) -> Result<Link> {
        let swarm::NetworkSpec {
            annotations: _,
            // Looked at before.
            driver_config: _,
            // Looked at with the addresses.
            ipv6_enabled: _,
            internal,
            ipam: _,
            // Whether containers beside services may join.
            attachable: _,
            ingress: _,
            config_from: _,
        } = self.spec;
        let (addresses, ipv6) = self.addresses(ipam)?;
        let mut mtu = None;
        let mut has_masquerade = true;
        for (key, value) in &self.options {
            match *key {
                MTU => mtu = Some(self.mtu(value)?),
                MASQUERADE => has_masquerade = self.flag(key, value)?,
                COMMUNICATION if self.flag(key, value)? => {}
                key => return Err(self.refused(&format!("with the option {key:?} as {value:?}"))),
            }
        }
        if let Some(mtu) = mtu.filter(|mtu| ipv6.is_some() && *mtu < IPV6_MTU_MIN) {
            let why = format!(
                "the option {MTU:?} of {:?} is {mtu}: with IPv6 it is at least {IPV6_MTU_MIN}",
                self.name
            );
            return Err(Error::invalid(FIELD, why));
        }
        Ok(Link::ClusterBridge(Box::new(ClusterBridge {
            id,
            name: self
                .name
                .chars()
                .filter(|c| !c.is_control())
                .take(NAME_MAX)
                .collect(),
            addresses,
            ipv6,
            is_internal: *internal,
            has_masquerade,
            mtu,
        })))
    }

    fn mtu(&self, value: &str) -> Result<u16> {
        let mtu = value.parse().ok().filter(|mtu| MTU_RANGE.contains(mtu));
        mtu.ok_or_else(|| {
            let why = format!(
                "the option {MTU:?} of {:?} is no MTU within {MTU_RANGE:?}: {value:?}",
                self.name
            );
            Error::invalid(FIELD, why)
        })
    }

    fn flag(&self, key: &str, value: &str) -> Result<bool> {
        match value {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            value => {
                let why = format!(
                    "the option {key:?} of {:?} is neither true nor false: {value:?}",
                    self.name
                );
                Err(Error::invalid(FIELD, why))
            }
        }
    }

    /// Returns the addresses of each family, if the swarm specifies them.
    fn addresses(&self, ipam: Option<&swarm::IpamOptions>) -> Result<Addresses> {
        let field = || format!("{FIELD}.network.ipam");
        let has_six = self.spec.ipv6_enabled;
        let mut four = None;
        let mut six = None;
        let configs: &[swarm::IpamConfig] = match ipam {
            Some(ipam) => self.configs(ipam)?,
            None => &[],
        };
        for config in configs {
            let Some(subnet) = self.subnet(config)? else {
                continue;
            };
            let range = match config.range.as_str() {
                "" => None,
                text => Some(
                    text.parse::<Subnet>()
                        .map_err(|error| error.context(field()))?,
                ),
            };
            let gateway = match config.gateway.as_str() {
                "" => None,
                text => Some(text.parse::<IpAddr>().map_err(|fault| {
                    Error::invalid(field(), format!("the gateway {text:?} is no address"))
                        .with_source(fault)
                })?),
            };
            let is_six = subnet.first().is_ipv6();
            if is_six && !has_six {
                let what = format!("with the subnet {subnet}, and created without --ipv6,");
                return Err(self.refused(&what));
            }
            let is_second = if is_six {
                if range.is_some() {
                    return Err(self.refused("with a range of IPv6 within its subnet"));
                }
                let made = Ipv6BridgeAddresses::new(subnet, gateway);
                six.replace(made.map_err(|error| error.context(field()))?)
                    .is_some()
            } else {
                let made = BridgeAddresses::new(subnet, range, gateway);
                four.replace(made.map_err(|error| error.context(field()))?)
                    .is_some()
            };
            if is_second {
                return Err(self.refused("with two subnets of one family"));
            }
        }
        if has_six && six.is_none() {
            return Err(self.refused("with IPv6 and without a subnet of it"));
        }
        Ok((four, six))
    }

    /// The configurations of its addresses: of each family at most one.
    fn configs<'a>(&self, ipam: &'a swarm::IpamOptions) -> Result<&'a [swarm::IpamConfig]> {
        let swarm::IpamOptions { driver, configs } = ipam;
        let swarm::Driver { name, options } = driver.clone().unwrap_or_default();
        if !matches!(name.as_str(), "" | "default") || !options.is_empty() {
            return Err(self.refused(&format!(
                "with addresses of the driver {name:?}, or with its options"
            )));
        }
        let most = if self.spec.ipv6_enabled { 2 } else { 1 };
        if configs.len() > most {
            return Err(self.refused(&format!("with {} subnets instead of {most}", configs.len())));
        }
        Ok(configs)
    }

    /// The subnet of a configuration, whose other values are looked at as far as that is possible without it; `None` if it has none.
    fn subnet(&self, config: &swarm::IpamConfig) -> Result<Option<Subnet>> {
        // The family is that of the subnet.
        let swarm::IpamConfig {
            family: _,
            subnet,
            range,
            gateway,
            reserved,
        } = config;
        let refused = |why: String| Err(Error::invalid(format!("{FIELD}.network.ipam"), why));
        if !reserved.is_empty() {
            return Err(self.refused("with reserved addresses"));
        }
        let mut texts = [subnet, range, gateway].into_iter();
        if texts.any(|text| text.len() > ADDRESS_MAX) {
            return refused(format!("an address has more than {ADDRESS_MAX} bytes"));
        }
        match (subnet.as_str(), range.is_empty() && gateway.is_empty()) {
            ("", true) => Ok(None),
            ("", false) => refused("it has a range or a gateway without a subnet".to_owned()),
            (text, _) => {
                let parsed = text.parse::<Subnet>().map(Some);
                parsed.map_err(|error: Error| error.context(format!("{FIELD}.network.ipam")))
            }
        }
    }
}
