//! Host ports that do not lead to a sandbox.

use std::net::IpAddr;

use super::{HostPort, PortMapping};

/// The first host port that does not lead to a sandbox with these addresses, and why: plugins leave it out, without an error.
#[must_use]
pub fn not_forwarded(ports: &[PortMapping], ips: &[IpAddr]) -> Option<(HostPort, &'static str)> {
    ports.iter().find_map(|mapping| {
        let host = mapping.host_ip?.to_canonical();
        let has_family = ips.iter().any(|ip| ip.is_ipv6() == host.is_ipv6());
        let why = match (host.is_ipv6(), has_family) {
            (true, _) if host.is_loopback() => {
                "the kernel forwards nothing that comes from the loopback address of IPv6, which would take a proxy: publish it on another address"
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Protocol;

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
}
