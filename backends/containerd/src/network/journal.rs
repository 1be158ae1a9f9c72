//! Ports in the journal of a sandbox's network.

use std::path::Path;

use serde_json::Value;
use switchyard_cni as cni;
use switchyard_core::Result;
use switchyard_core::spec::{HOST_PORTS_MAX, HostPort, HostPorts, PortMapping, Protocol};

use crate::base::error::from_cni;

/// A port of the node in a journal.
struct SavedPort {
    host: HostPort,
    /// `None` if it is missing, or no port: then it is a port of the node all the same.
    container_port: Option<u16>,
}

/// The host ports that a journal maps; entries that cannot be parsed are skipped. None without a journal.
/// Blocks on the file system.
///
/// # Errors
/// Those of [`cni::Saved::read`].
pub(crate) fn ports_of_journal(path: &Path) -> Result<HostPorts> {
    let Some(saved) = cni::Saved::read(path).map_err(from_cni)? else {
        return Ok(HostPorts::default());
    };
    let ports = ports(&saved).into_iter().map(|port| port.host).collect();
    // The journal does not have the group: the ports are shared with no other sandbox.
    Ok(HostPorts {
        group: String::new(),
        ports,
    })
}

/// Returns whether a journal may be of an attachment to the network of this name: not if it names another one. One that is gone, as behind a
/// release, or that cannot be understood, may be of any. Blocks on the file system.
pub(crate) fn may_be_of_network(path: &Path, network: &str) -> bool {
    let saved = cni::Saved::read(path).ok().flatten();
    let list = saved.and_then(|saved| saved.list(path).ok());
    list.is_none_or(|list| list.name == network)
}

/// The mappings that are read of a journal; entries that cannot be parsed are skipped.
pub(super) fn mappings(saved: &cni::Saved) -> Vec<PortMapping> {
    let mapping = |port: SavedPort| {
        let HostPort {
            protocol,
            port: host_port,
            ip,
        } = port.host;
        Some(PortMapping {
            protocol,
            container_port: port.container_port?,
            host_port,
            host_ip: ip,
        })
    };
    ports(saved).into_iter().filter_map(mapping).collect()
}

fn ports(saved: &cni::Saved) -> Vec<SavedPort> {
    let attachment = saved.attachment();
    let mappings = attachment
        .capabilities
        .extra
        .get("portMappings")
        .and_then(Value::as_array);
    mappings
        .into_iter()
        .flatten()
        .filter_map(SavedPort::read)
        .take(HOST_PORTS_MAX)
        .collect()
}

// === impl SavedPort ===

impl SavedPort {
    /// Reads an entry; `None` if it has no port or no known protocol.
    fn read(mapping: &Value) -> Option<Self> {
        let number = |key: &str| {
            let number = mapping.get(key)?.as_u64()?;
            u16::try_from(number).ok().filter(|port| *port != 0)
        };
        let protocol = mapping
            .get("protocol")
            .and_then(Value::as_str)
            .map(str::to_ascii_lowercase);
        let ip = mapping
            .get("hostIP")
            .and_then(Value::as_str)
            .and_then(|ip| ip.parse().ok());
        Some(Self {
            host: HostPort {
                protocol: Protocol::parse(protocol.as_deref().unwrap_or("tcp"))?,
                port: number("hostPort")?,
                ip,
            },
            container_port: number("containerPort"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod that waits for an address of one network has nothing to expect of another one.
    #[test]
    fn journal_names_its_network_or_may_be_of_any() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let path = dir.path().join("cni.json");
        let of = |name: &str| {
            let journal = serde_json::json!({
                "version": 2,
                "network": { "name": name, "cniVersion": "1.0.0", "plugins": [{ "type": "bridge" }] },
                "attachment": {
                    "containerId": "x", "netns": null, "ifname": "eth0", "args": [], "capabilities": {},
                },
            });
            Some(journal.to_string())
        };
        for (journal, expected) in [
            (of("net"), true),
            (of("net2"), false),
            (of("switchyard0"), false),
            (None, true),
            (Some("nonsense".to_owned()), true),
            (Some(String::new()), true),
        ] {
            match &journal {
                Some(text) => std::fs::write(&path, text).expect("it can be written"),
                None => drop(std::fs::remove_file(&path)),
            }
            assert_eq!(may_be_of_network(&path, "net"), expected, "{journal:?}");
        }
    }

    #[test]
    fn the_ports_of_an_older_record_are_those_that_its_journal_maps() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let path = dir.path().join("cni.json");
        assert_eq!(
            ports_of_journal(&path).expect("there is none"),
            HostPorts::default()
        );
        let mappings = serde_json::json!([
            { "hostPort": 8080, "containerPort": 80, "protocol": "tcp" },
            { "hostPort": 53, "protocol": "udp", "hostIP": "127.0.0.9" },
            { "hostPort": 70_000, "protocol": "tcp" },
            { "hostPort": 0, "protocol": "tcp" },
            { "hostPort": 1, "protocol": "quic" },
            "no mapping",
        ]);
        let journal = serde_json::json!({
            "version": 2,
            "network": { "name": "net", "cniVersion": "1.0.0", "plugins": [{ "type": "bridge" }] },
            "attachment": {
                "containerId": "x", "netns": null, "ifname": "eth0", "args": [],
                "capabilities": { "portMappings": mappings },
            },
        });
        std::fs::write(&path, journal.to_string()).expect("it can be written");
        let found = ports_of_journal(&path).expect("it can be read");
        let port = |protocol, port, ip| HostPort { protocol, port, ip };
        let expected = [
            port(Protocol::Tcp, 8080, None),
            port(Protocol::Udp, 53, Some([127, 0, 0, 9].into())),
        ];
        assert_eq!(
            (found.group.as_str(), found.ports.as_slice()),
            ("", &expected[..])
        );
        let saved = cni::Saved::read(&path).expect("it can be read");
        let mapped = super::mappings(&saved.expect("it was written"));
        // The second one has no port of the container.
        let whole = PortMapping {
            protocol: Protocol::Tcp,
            container_port: 80,
            host_port: 8080,
            host_ip: None,
        };
        assert_eq!(mapped, [whole]);
        std::fs::write(&path, "nonsense").expect("it can be written");
        assert!(ports_of_journal(&path).is_err());
    }
}
