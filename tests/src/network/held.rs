//! Holders of addresses, and destinations of published ports: what files, tables and packet rules say of each other.

use std::fs;
use std::net::IpAddr;

use switchyard_network::nft::Element;

use super::TestNetwork;
use super::packet_rules::PacketRules;

impl TestNetwork {
    /// The ids that have this address, of each network whose addresses are in the directory of this one.
    #[must_use]
    pub fn holders(&self, address: IpAddr) -> Vec<String> {
        let holder = |directory: fs::DirEntry| {
            let text = fs::read_to_string(directory.path().join(address.to_string())).ok()?;
            text.lines().next().map(str::to_owned)
        };
        let directories = fs::read_dir(self.data_dir()).into_iter().flatten();
        directories.flatten().filter_map(holder).collect()
    }

    /// Lists the addresses to which this published port leads, by the tables of this bridge and by rules of plugins: one
    /// for each element or rule.
    ///
    /// # Panics
    /// When `iptables-save` is missing, or either cannot be read.
    #[must_use]
    pub fn targets(&self, port: u16) -> Vec<IpAddr> {
        let elements = self.elements_of_sandboxes().into_iter();
        let by_elements = elements.filter_map(|(_, element)| {
            let Element::Port {
                port: published,
                to,
                ..
            } = element
            else {
                return None;
            };
            (published == port).then_some(to)
        });
        let rules = PacketRules::read("iptables").nat.into_iter();
        by_elements
            .chain(rules.filter_map(|rule| target(&rule, port)))
            .collect()
    }

    /// Lists the elements of the tables of this bridge for addresses that nobody holds. A port is withdrawn before its address is released,
    /// so that there is no such element at any time, whoever is killed.
    #[must_use]
    pub fn stray_elements(&self) -> Vec<String> {
        let look = || {
            let mut found = self.elements_of_sandboxes();
            found.retain(|(_, element)| {
                let (Element::Port { to, .. } | Element::Hairpin(to)) = element else {
                    return false;
                };
                self.holders(*to).is_empty()
            });
            found
        };
        // An element may be withdrawn, and its address released, after it was read: it is gone at the second look.
        let first = look();
        let mut found = look();
        found.retain(|one| first.contains(one));
        let texts = found.into_iter();
        texts.map(|(_, element)| element.to_string()).collect()
    }
}

/// Returns the address to which a rule of the plugin `portmap` for one container leads this port.
fn target(rule: &str, port: u16) -> Option<IpAddr> {
    let (_, rest) = rule.split_once(&format!(" --dport {port} "))?;
    let (_, target) = rest.split_once("--to-destination ")?;
    let (address, _) = target.split(' ').next()?.rsplit_once(':')?;
    address.parse().ok()
}

/// The rules of the nat table by which packets to this port of the host go elsewhere, of all networks.
///
/// # Panics
/// When `iptables-save` is missing or fails.
#[track_caller]
#[must_use]
pub fn port_rules(port: u16) -> Vec<String> {
    let port = port.to_string();
    let mut rules = PacketRules::read("iptables").nat;
    rules.retain(|rule| {
        let listed = rule
            .split_once("--dports ")
            .map(|(_, rest)| rest.split(' ').next().unwrap_or_default());
        rule.starts_with("-A CNI-HOSTPORT-DNAT ")
            && listed.is_some_and(|ports| ports.split(',').any(|one| one == port))
    });
    rules
}
