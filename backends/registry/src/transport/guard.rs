//! Restricts the URLs that registries may name: not link-local addresses, at which clouds serve the
//! credentials of the machine.

use std::error::Error as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

use crate::BoxError;

/// The addresses of cloud metadata services that are not link-local: of AWS and of Google, over IPv6.
const METADATA: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// A host that a registry has named and that must not be connected to.
#[derive(Debug, thiserror::Error)]
#[error("{host} is link-local ({address}), which a registry may not refer to")]
pub(super) struct LinkLocal {
    host: String,
    address: IpAddr,
}

/// Resolves names with the system's resolver, and leaves link-local addresses out.
#[derive(Debug)]
pub(super) struct Guarded;

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            Ok(Box::new(permitted(name.as_str(), found)?.into_iter()) as Addrs)
        })
    }
}

/// The addresses that may be connected to.
///
/// # Errors
/// [`LinkLocal`] if the name has only link-local addresses.
fn permitted(name: &str, mut found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, BoxError> {
    let refused = found
        .iter()
        .map(SocketAddr::ip)
        .find(|address| is_link_local(*address));
    found.retain(|address| !is_link_local(address.ip()));
    match refused {
        Some(address) if found.is_empty() => Err(LinkLocal {
            host: name.to_owned(),
            address,
        }
        .into()),
        Some(_) | None => Ok(found),
    }
}

/// Checks a URL with an address instead of a name, which the resolver does not see.
///
/// # Errors
/// [`LinkLocal`].
pub(super) fn check_address(url: &Url) -> Result<(), LinkLocal> {
    let address = match url.host() {
        Some(Host::Ipv4(address)) => IpAddr::V4(address),
        Some(Host::Ipv6(address)) => IpAddr::V6(address),
        Some(Host::Domain(_)) | None => return Ok(()),
    };
    if is_link_local(address) {
        Err(LinkLocal {
            host: url.authority().to_owned(),
            address,
        })
    } else {
        Ok(())
    }
}

/// The refusal that made a request fail, if one did.
pub(super) fn refusal(error: &reqwest::Error) -> Option<&LinkLocal> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(refusal) = error.downcast_ref() {
            return Some(refusal);
        }
        cause = error.source();
    }
    None
}

/// Returns whether an address is link-local, also if it is an IPv6 address with an embedded IPv4 address.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => {
            address.is_unicast_link_local()
                || METADATA.contains(&address)
                || embedded(address).is_some_and(|address| address.is_link_local())
        }
    }
}

/// The IPv4 address that is embedded in an IPv6 address: mapped, compatible, NAT64, or 6to4.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let of = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match address.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(of(high, low))
        }
        [0x2002, high, low, _, _, _, _, _] => Some(of(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_link_local_address_is_rejected() {
        for host in [
            "169.254.169.254",
            "169.254.0.1:8080",
            "2852039166",
            "0xa9fea9fe",
            "0251.0376.0251.0376",
            "169.254.43518",
            "%31%36%39.254.169.254",
            "[::ffff:169.254.169.254]",
            "[::ffff:a9fe:a9fe]",
            "[::a9fe:a9fe]",
            "[64:ff9b::a9fe:a9fe]",
            "[2002:a9fe:a9fe::1]",
            "[fe80::1]",
            "[febf:ffff::1]",
            "[fd00:ec2::254]",
        ] {
            let url = Url::parse(&format!("http://{host}/latest/meta-data")).expect(host);
            let error = check_address(&url).expect_err(host);
            assert!(error.to_string().contains("link-local"), "{error}");
        }
    }

    #[test]
    fn hosts_that_are_not_ascii_are_no_address() {
        for host in [
            "169\u{3002}254.169.254",
            "\u{ff11}69.254.169.254",
            "registry.b\u{fc}cher.example",
        ] {
            Url::parse(&format!("http://{host}/")).expect_err(host);
        }
        Url::parse("https://xn--bcher-kva.example/").expect("it is ASCII");
    }

    #[test]
    fn non_link_local_addresses_are_permitted() {
        for host in [
            "127.0.0.1",
            "10.0.0.1",
            "192.168.1.1:5000",
            "172.16.0.1",
            "[::1]",
            "[fd00::1]",
            "[fec0::1]",
            "1.1.1.1",
            "[2606:4700::1111]",
            "[::ffff:10.0.0.1]",
            "169-254-169-254.example",
        ] {
            check_address(&Url::parse(&format!("https://{host}/")).expect(host)).expect(host);
        }
    }

    #[test]
    fn host_is_reached_only_at_its_permitted_addresses() {
        let at = |address: &str| SocketAddr::new(address.parse().expect("an address"), 0);
        let both = vec![at("169.254.169.254"), at("192.0.2.1"), at("fe80::1")];
        assert_eq!(
            permitted("n", both).expect("it has another"),
            [at("192.0.2.1")]
        );
        let error = permitted("metadata.example", vec![at("::ffff:169.254.169.254")])
            .expect_err("it has none");
        assert!(
            error.to_string().contains("metadata.example is link-local"),
            "{error}"
        );
        assert_eq!(
            permitted("nowhere", Vec::new()).expect("as the system says"),
            []
        );
    }

    #[tokio::test]
    async fn guard_rejection_is_found_in_a_failed_request() {
        struct Metadata;
        impl Resolve for Metadata {
            fn resolve(&self, name: Name) -> Resolving {
                let found = vec![SocketAddr::from(([169, 254, 169, 254], 0))];
                let refused = permitted(name.as_str(), found).expect_err("it is link-local");
                Box::pin(async move { Err(refused) })
            }
        }
        // The provider of cryptography may have been chosen by another test.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let resolver = std::sync::Arc::new(Metadata);
        let client = reqwest::Client::builder()
            .no_proxy()
            .dns_resolver(resolver)
            .build()
            .expect("a client");
        let error = client
            .get("http://metadata.example/")
            .send()
            .await
            .expect_err("it is refused");
        assert!(refusal(&error).is_some(), "{error:?}");
    }
}
