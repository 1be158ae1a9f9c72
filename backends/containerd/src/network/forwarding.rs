//! Host ports that plugins forward to a sandbox: in which form they get them.

use switchyard_cni as cni;
use switchyard_core::spec::{PortMapping, Protocol};

/// The mapping as plugins get it.
pub(super) fn port_mapping(port: &PortMapping) -> cni::PortMapping {
    let PortMapping {
        protocol,
        container_port,
        host_port,
        host_ip,
    } = port;
    cni::PortMapping {
        host_port: *host_port,
        container_port: *container_port,
        protocol: match protocol {
            Protocol::Tcp => cni::Protocol::Tcp,
            Protocol::Udp => cni::Protocol::Udp,
            Protocol::Sctp => cni::Protocol::Sctp,
        },
        // Plugins put it into rules of its family as it is written.
        host_ip: host_ip.map(|ip| ip.to_canonical()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_address_reaches_plugins_in_the_form_of_its_family() {
        let mapped = |ip: &str| {
            let mapping = PortMapping {
                protocol: Protocol::Udp,
                container_port: 53,
                host_port: 53,
                host_ip: Some(ip.parse().unwrap()),
            };
            port_mapping(&mapping).host_ip.map(|ip| ip.to_string())
        };
        for (ip, expected) in [
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("10.0.0.1", "10.0.0.1"),
            ("fd00::1", "fd00::1"),
            ("::", "::"),
        ] {
            assert_eq!(mapped(ip).as_deref(), Some(expected));
        }
    }
}
