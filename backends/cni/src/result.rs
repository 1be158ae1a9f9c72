//! The result of a chain of plugins: interfaces, addresses, routes, name servers (CNI specification, section
//! 5).

use std::fmt;
use std::net::IpAddr;

use serde::Deserialize;
use serde_json::{Value, json};
use switchyard_linux::beginning;

use crate::error::ResultError;
use crate::version::SpecVersion;

/// Size of an unreadable output in an error, in characters.
const SHOWN: usize = 200;

/// The result of an attachment.
#[derive(Clone, Debug, PartialEq)]
pub struct CniResult {
    /// Interfaces, inside the container and on the host.
    pub interfaces: Vec<Interface>,
    /// Addresses, in the order of the plugins: the first is the primary one.
    pub ips: Vec<IpConfig>,
    /// Routes inside the container.
    pub routes: Vec<Route>,
    /// Name servers that come with the network.
    pub dns: ResultDns,
    /// The result as it goes back into plugins, in the version of the network.
    pub raw: Value,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its hardware address.
    #[serde(default)]
    pub mac: Option<String>,
    /// The network namespace it is in; `None` or empty on the host.
    #[serde(default)]
    pub sandbox: Option<String>,
}

/// An address with its subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpConfig {
    /// The address.
    pub address: IpNet,
    /// The gateway of its subnet.
    pub gateway: Option<IpAddr>,
    /// Index of the interface that has it; always within [`CniResult::interfaces`].
    pub interface: Option<usize>,
}

/// An IP address and the length of its network prefix, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpNet {
    /// The address, including its host bits.
    pub ip: IpAddr,
    /// Length of the prefix: at most 32 or 128.
    pub prefix: u8,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination.
    pub dst: IpNet,
    /// The next hop, if the plugin names one.
    pub gw: Option<IpAddr>,
}

/// Name servers that come with a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultDns {
    /// Servers, in order.
    pub nameservers: Vec<String>,
    /// The local domain.
    pub domain: Option<String>,
    /// Search domains, in order.
    pub search: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

// The wire format. Lists may be null, because many plugins are written in Go.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireResult {
    cni_version: Option<String>,
    interfaces: Option<Vec<Interface>>,
    ips: Option<Vec<WireIp>>,
    routes: Option<Vec<WireRoute>>,
    dns: Option<WireDns>,
}

#[derive(Deserialize)]
struct WireIp {
    address: String,
    gateway: Option<String>,
    interface: Option<usize>,
}

#[derive(Deserialize)]
struct WireRoute {
    dst: String,
    gw: Option<String>,
}

#[derive(Deserialize)]
struct WireDns {
    nameservers: Option<Vec<String>>,
    domain: Option<String>,
    search: Option<Vec<String>>,
    options: Option<Vec<String>>,
}

impl CniResult {
    /// Parses the output of a plugin that was called with version `wanted`.
    ///
    /// A result in another version from 0.3.0 on is converted; one without a version counts as `wanted`.
    ///
    /// # Errors
    /// [`ResultError`], also for a version before 0.3.0, whose results have another form.
    pub fn parse(output: &[u8], wanted: SpecVersion) -> Result<Self, ResultError> {
        if output.iter().all(u8::is_ascii_whitespace) {
            return Err(ResultError::Empty);
        }
        let start = || beginning(&String::from_utf8_lossy(output), SHOWN).to_owned();
        let raw: Value = serde_json::from_slice(output).map_err(|source| ResultError::Json {
            start: start(),
            source,
        })?;
        Self::from_value(raw, wanted)
    }

    /// As [`CniResult::parse`], for a result that is parsed JSON already, such as a stored one.
    ///
    /// # Errors
    /// [`ResultError`].
    pub fn from_value(mut raw: Value, wanted: SpecVersion) -> Result<Self, ResultError> {
        let unreadable = |raw: &Value, source| ResultError::Json {
            start: beginning(&raw.to_string(), SHOWN).to_owned(),
            source,
        };
        if !has_objects_only(&raw) {
            return Err(unreadable(
                &raw,
                serde::de::Error::custom("a result and its parts are objects"),
            ));
        }
        let wire = WireResult::deserialize(&raw).map_err(|source| unreadable(&raw, source))?;
        let found = match wire.cni_version.as_deref() {
            None | Some("") => wanted,
            Some(text) => {
                SpecVersion::parse(text).ok_or_else(|| ResultError::Version(text.to_owned()))?
            }
        };
        let interfaces = wire.interfaces.unwrap_or_default();
        let ips = read_all(wire.ips, |ip| ip.read(interfaces.len()))?;
        let routes = read_all(wire.routes, WireRoute::read)?;
        convert(&mut raw, found, wanted, &ips);
        let dns = wire.dns.map(WireDns::read).unwrap_or_default();
        Ok(Self {
            interfaces,
            ips,
            routes,
            dns,
            raw,
        })
    }

    /// The addresses of interface `ifname`, in the plugins' order: the first is the primary one, whichever
    /// its family.
    ///
    /// An address that names no interface is counted too, as by other runtimes. Empty if the network gave
    /// none.
    #[must_use]
    pub fn pod_ips(&self, ifname: &str) -> Vec<IpAddr> {
        self.ips
            .iter()
            .filter(|ip| match ip.interface {
                None => true,
                Some(index) => self
                    .interfaces
                    .get(index)
                    .is_some_and(|interface| interface.name == ifname),
            })
            .map(|ip| ip.address.ip)
            .collect()
    }
}

/// Returns whether a result and each of its parts are objects. A derived deserializer also accepts a list for
/// an object, field by field; plugins do not, and neither does [`convert`].
fn has_objects_only(raw: &Value) -> bool {
    let parts = ["interfaces", "ips", "routes"]
        .into_iter()
        .filter_map(|key| raw.get(key)?.as_array());
    let dns = raw.get("dns").filter(|dns| !dns.is_null());
    raw.is_object() && parts.flatten().chain(dns).all(Value::is_object)
}

/// Converts `raw` to the version `wanted`. The versions differ in only one key: up to 0.4.0 an address has
/// its family.
fn convert(raw: &mut Value, found: SpecVersion, wanted: SpecVersion, ips: &[IpConfig]) {
    raw["cniVersion"] = json!(wanted.as_str());
    if found == wanted || !wanted.marks_ip_version() {
        return;
    }
    let entries = raw.get_mut("ips").and_then(Value::as_array_mut);
    for (entry, ip) in entries.into_iter().flatten().zip(ips) {
        entry["version"] = json!(if ip.address.ip.is_ipv4() { "4" } else { "6" });
    }
}

fn read_all<W, T>(
    wire: Option<Vec<W>>,
    read: impl Fn(W) -> Result<T, ResultError>,
) -> Result<Vec<T>, ResultError> {
    wire.unwrap_or_default().into_iter().map(read).collect()
}

fn address(text: Option<String>) -> Result<Option<IpAddr>, ResultError> {
    match text {
        None => Ok(None),
        Some(text) if text.is_empty() => Ok(None),
        Some(text) => text
            .parse()
            .map(Some)
            .map_err(|_| ResultError::Gateway(text)),
    }
}

impl WireIp {
    fn read(self, interfaces: usize) -> Result<IpConfig, ResultError> {
        match self.interface {
            Some(index) if index >= interfaces => Err(ResultError::InterfaceIndex {
                index,
                count: interfaces,
            }),
            interface => Ok(IpConfig {
                address: IpNet::parse(&self.address)?,
                gateway: address(self.gateway)?,
                interface,
            }),
        }
    }
}

impl WireRoute {
    fn read(self) -> Result<Route, ResultError> {
        Ok(Route {
            dst: IpNet::parse(&self.dst)?,
            gw: address(self.gw)?,
        })
    }
}

impl WireDns {
    fn read(self) -> ResultDns {
        ResultDns {
            nameservers: self.nameservers.unwrap_or_default(),
            domain: self.domain.filter(|domain| !domain.is_empty()),
            search: self.search.unwrap_or_default(),
            options: self.options.unwrap_or_default(),
        }
    }
}

impl IpNet {
    /// Parses `address/prefix`.
    ///
    /// # Errors
    /// [`ResultError::Address`].
    pub fn parse(text: &str) -> Result<Self, ResultError> {
        let bad = || ResultError::Address(text.to_owned());
        let (ip, prefix) = text.split_once('/').ok_or_else(bad)?;
        let ip: IpAddr = ip.parse().map_err(|_| bad())?;
        let digits = !prefix.is_empty() && prefix.bytes().all(|b| b.is_ascii_digit());
        let prefix: u8 = prefix.parse().map_err(|_| bad())?;
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        if digits && prefix <= longest {
            Ok(Self { ip, prefix })
        } else {
            Err(bad())
        }
    }
}

impl fmt::Display for IpNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

#[cfg(test)]
mod tests;
