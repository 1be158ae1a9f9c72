//! Host ports that plugins forward to a sandbox: in which form they get them, and which of them they leave out.

use std::net::IpAddr;

use switchyard_cni as cni;
use switchyard_core::spec::{HostPort, PortMapping, Protocol};

/// The first host port that does not lead to a sandbox with these addresses, and why: plugins leave it out, without an error.
pub(super) fn not_forwarded(
    ports: &[PortMapping],
    ips: &[IpAddr],
) -> Option<(HostPort, &'static str)> {
    ports.iter().find_map(|mapping| {
        let host = mapping.host_ip?.to_canonical();
        let has_family = ips.iter().any(|ip| ip.is_ipv6() == host.is_ipv6());
        let why = match (host.is_ipv6(), has_family) {
            (true, _) if host.is_loopback() => {
                "the kernel forwards nothing that comes from the loopback address of IPv6: publish it on another address"
            }
            (true, false) => {
                "its network has no addresses of IPv6 (on the gateway's own bridge by network.bridge.subnets): publish it on an address of IPv4"
            }
            (false, false) => {
                "its network has no addresses of IPv4 (on the gateway's own bridge by network.bridge.subnets): publish it on an address of IPv6"
            }
            (_, true) => return None,
        };
        Some((HostPort::of(mapping), why))
    })
}

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
    fn port_is_not_forwarded_from_an_address_of_a_family_that_the_sandbox_lacks() {
        let four: IpAddr = [10, 0, 0, 2].into();
        let six: IpAddr = "fd00::2".parse().unwrap();
        for (host, ips, expected) in [
            (Some("::1"), vec![four], false),
            (Some("::1"), vec![four, six], false),
            (Some("fd00::1"), vec![four], false),
            (Some("::"), vec![four], false),
            (Some("10.0.0.1"), vec![six], false),
            (Some("0.0.0.0"), vec![six], false),
            (Some("fd00::1"), vec![four, six], true),
            (Some("::"), vec![six], true),
            (Some("::ffff:10.0.0.1"), vec![four], true),
            (Some("127.0.0.1"), vec![four], true),
            (None, vec![four], true),
            (None, vec![six], true),
        ] {
            let mapping = PortMapping {
                protocol: Protocol::Tcp,
                container_port: 80,
                host_port: 8080,
                host_ip: host.map(|ip| ip.parse().unwrap()),
            };
            let found = not_forwarded(std::slice::from_ref(&mapping), &ips);
            let found = found.map(|(port, _)| port);
            let all_well = (!expected).then(|| HostPort::of(&mapping));
            assert_eq!(found, all_well, "{host:?} {ips:?}");
        }
    }

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
