//! The parameters of an attachment (CNI specification, section 3, "Attachment Parameters").

use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::conf::is_name;
use crate::error::Error;

/// The longest interface name that Linux allows, in bytes.
const IFNAME_MAX: usize = 15;

/// One container on one network through one interface.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attachment {
    /// The container or sandbox, CNI_CONTAINERID.
    pub container_id: String,
    /// The network namespace, CNI_NETNS; `None` if it does not exist any more, which only DEL accepts.
    pub netns: Option<PathBuf>,
    /// The interface to create inside, CNI_IFNAME.
    pub ifname: String,
    /// CNI_ARGS, in order.
    pub args: Vec<(String, String)>,
    /// The capability arguments, which are passed only to plugins that declare the capability.
    pub capabilities: Capabilities,
}

/// Capability arguments of the CNI conventions; empty parts are not passed on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Capabilities {
    /// `portMappings`; those with host port 0 are not passed on.
    pub port_mappings: Vec<PortMapping>,
    /// `bandwidth`.
    pub bandwidth: Option<Bandwidth>,
    /// `dns`.
    pub dns: Option<Dns>,
    /// `ipRanges`: for each address to be assigned, the pools to take it from.
    pub ip_ranges: Vec<Vec<IpRange>>,
    /// `ips`: addresses to assign, with or without a prefix length. All plugins get them, those without the
    /// capability in `args`.
    pub ips: Vec<String>,
    /// `mac`: the hardware address to assign.
    pub mac: Option<String>,
    /// `cgroupPath`.
    pub cgroup_path: Option<String>,
    /// Any other capability, such as `io.kubernetes.cri.pod-annotations`; overrides the parts above.
    pub extra: Map<String, Value>,
}

/// A port of the host that is forwarded to the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMapping {
    /// Port of the host.
    pub host_port: u16,
    /// Port in the container.
    pub container_port: u16,
    /// Transport.
    pub protocol: Protocol,
    /// The host's address on which it is published; `None` for all.
    pub host_ip: Option<IpAddr>,
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// Limits in bits per second, and bursts in bits; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// Into the container, bit/s.
    pub ingress_rate: u64,
    /// Into the container, bit.
    pub ingress_burst: u64,
    /// Out of the container, bit/s.
    pub egress_rate: u64,
    /// Out of the container, bit.
    pub egress_burst: u64,
}

/// The resolver configuration, as far as a plugin needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Servers, in order.
    pub servers: Vec<String>,
    /// Search domains, in order.
    pub searches: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

/// A pool of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpRange {
    /// The subnet, with its prefix length.
    pub subnet: String,
    /// First address of the pool.
    pub range_start: Option<IpAddr>,
    /// Last address of the pool.
    pub range_end: Option<IpAddr>,
    /// Gateway of the subnet.
    pub gateway: Option<IpAddr>,
}

impl Protocol {
    /// Its name in the conventions.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl Attachment {
    /// Refuses values that plugins would refuse or misread.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let bad = |what, value: &str, why| {
            Err(Error::Attachment {
                what,
                value: value.to_owned(),
                why,
            })
        };
        if !is_name(&self.container_id) {
            return bad(
                "container id",
                &self.container_id,
                "has characters that CNI does not allow",
            );
        }
        if self.ifname.is_empty() || self.ifname.len() > IFNAME_MAX {
            return bad("interface name", &self.ifname, "must have 1 to 15 bytes");
        }
        if matches!(self.ifname.as_str(), "." | "..")
            || self
                .ifname
                .contains(|c| matches!(c, '/' | ':') || c.is_whitespace() || c.is_control())
        {
            return bad(
                "interface name",
                &self.ifname,
                "has characters that Linux does not allow",
            );
        }
        for (key, value) in &self.args {
            if key.is_empty() || key.contains(['=', ';', '\0']) {
                return bad("CNI argument", key, "is not a key");
            }
            if value.contains([';', '\0']) {
                return bad(
                    "value of a CNI argument",
                    value,
                    "contains a semicolon or a zero byte",
                );
            }
        }
        Ok(())
    }

    /// The value of CNI_ARGS.
    pub(crate) fn args_text(&self) -> String {
        let pairs: Vec<_> = self
            .args
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        pairs.join(";")
    }
}

impl Capabilities {
    /// The arguments by the name of their capability.
    #[must_use]
    pub fn to_map(&self) -> Map<String, Value> {
        let mut map = Map::new();
        let ports: Vec<_> = self
            .port_mappings
            .iter()
            .filter(|port| port.host_port > 0)
            .map(PortMapping::to_json)
            .collect();
        if !ports.is_empty() {
            map.insert("portMappings".to_owned(), Value::Array(ports));
        }
        if let Some(limits) = self.bandwidth {
            map.insert("bandwidth".to_owned(), limits.to_json());
        }
        if let Some(dns) = &self.dns {
            let dns =
                json!({"servers": dns.servers, "searches": dns.searches, "options": dns.options});
            map.insert("dns".to_owned(), dns);
        }
        if !self.ip_ranges.is_empty() {
            let ranges = self
                .ip_ranges
                .iter()
                .map(|pools| pools.iter().map(IpRange::to_json).collect::<Value>())
                .collect();
            map.insert("ipRanges".to_owned(), ranges);
        }
        if !self.ips.is_empty() {
            map.insert("ips".to_owned(), json!(self.ips));
        }
        if let Some(mac) = &self.mac {
            map.insert("mac".to_owned(), json!(mac));
        }
        if let Some(path) = &self.cgroup_path {
            map.insert("cgroupPath".to_owned(), json!(path));
        }
        map.extend(self.extra.clone());
        map
    }
}

impl PortMapping {
    fn to_json(&self) -> Value {
        let mut value = json!({
            "hostPort": self.host_port,
            "containerPort": self.container_port,
            "protocol": self.protocol.as_str(),
        });
        if let Some(ip) = self.host_ip {
            value["hostIP"] = json!(ip);
        }
        value
    }
}

impl Bandwidth {
    /// A direction without a rate is left out together with its burst: plugins refuse one without the other.
    fn to_json(self) -> Value {
        let mut map = Map::new();
        if self.ingress_rate > 0 {
            map.insert("ingressRate".to_owned(), json!(self.ingress_rate));
            map.insert("ingressBurst".to_owned(), json!(self.ingress_burst));
        }
        if self.egress_rate > 0 {
            map.insert("egressRate".to_owned(), json!(self.egress_rate));
            map.insert("egressBurst".to_owned(), json!(self.egress_burst));
        }
        Value::Object(map)
    }
}

impl IpRange {
    fn to_json(&self) -> Value {
        let mut value = json!({"subnet": self.subnet});
        for (key, ip) in [
            ("rangeStart", self.range_start),
            ("rangeEnd", self.range_end),
            ("gateway", self.gateway),
        ] {
            if let Some(ip) = ip {
                value[key] = json!(ip);
            }
        }
        value
    }
}
