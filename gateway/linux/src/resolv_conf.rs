//! The DNS servers of the node, and which of them a container with another network namespace than the node's can ask.

use std::net::IpAddr;

/// The files of a node that name DNS servers, in the order in which they are looked at: its own; that of systemd-resolved and
/// that of NetworkManager, which name the upstream servers where the first one names a local cache.
pub const FILES: [&str; 3] = [
    "/etc/resolv.conf",
    "/run/systemd/resolve/resolv.conf",
    "/run/NetworkManager/no-stub-resolv.conf",
];

/// Maximum number of servers that a text names.
const NAMED_MAX: usize = 4;

/// The address families in which a network namespace reaches others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Families {
    /// IPv4.
    pub four: bool,
    /// IPv6.
    pub six: bool,
}

/// Reason why a server cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreachable {
    /// Its address is that of the node itself, and in another network namespace that of the container.
    Loopback,
    /// Its address counts on one interface of the node: it is link-local, or has a zone.
    Zone,
    /// The container has no address of its family.
    Family,
}

/// The part of a resolver configuration that a container can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reachable {
    /// The configuration without the lines of servers that cannot be asked, else byte for byte.
    pub text: Vec<u8>,
    /// The servers that can be asked.
    pub servers: Vec<String>,
    /// Those that cannot, with the reason.
    pub left_out: Vec<(String, Unreachable)>,
}

// === impl Families ===

impl Families {
    /// Those of a namespace with these addresses. Without any nothing is known, and all count.
    #[must_use]
    pub fn of(addresses: &[IpAddr]) -> Self {
        let has = |six: bool| {
            addresses.is_empty() || addresses.iter().any(|address| address.is_ipv6() == six)
        };
        Self {
            four: has(false),
            six: has(true),
        }
    }
}

// === impl Unreachable ===

impl Unreachable {
    /// Text for people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Loopback => "is an address of the node's own loopback",
            Self::Zone => "belongs to one interface of the node",
            Self::Family => "is of a family of which the container has no address",
        }
    }
}

// === impl Reachable ===

impl Reachable {
    /// Text for people about a configuration none of whose servers can be asked.
    #[must_use]
    pub fn explain(&self) -> String {
        let [own, ..] = FILES;
        if self.left_out.is_empty() {
            return format!("{own} names no server");
        }
        let named = self.left_out.iter().take(NAMED_MAX);
        let named: Vec<String> = named
            .map(|(server, why)| format!("{server} {}", why.as_str()))
            .collect();
        let more = match self.left_out.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{own} names no other server: {}{more}", named.join(", "))
    }
}

/// The reason why a namespace with these families cannot ask a server, if it cannot. What is no address is no server.
#[must_use]
pub fn unreachable(server: &str, families: Families) -> Option<Unreachable> {
    let (text, zone) = match server.split_once('%') {
        Some((text, zone)) => (text, Some(zone)),
        None => (server, None),
    };
    let address = text.parse::<IpAddr>().ok()?.to_canonical();
    // The C library takes the unspecified address for this host.
    if address.is_loopback() || address.is_unspecified() {
        return Some(Unreachable::Loopback);
    }
    let has_family = match address {
        IpAddr::V4(_) => families.four,
        IpAddr::V6(address) => {
            if zone.is_some() || address.is_unicast_link_local() {
                return Some(Unreachable::Zone);
            }
            families.six
        }
    };
    (!has_family).then_some(Unreachable::Family)
}

/// The part of a resolver configuration that a namespace with these families can use.
#[must_use]
pub fn reachable(resolv_conf: &[u8], families: Families) -> Reachable {
    let mut found = Reachable {
        text: Vec::with_capacity(resolv_conf.len()),
        servers: Vec::new(),
        left_out: Vec::new(),
    };
    for line in resolv_conf.split_inclusive(|byte| *byte == b'\n') {
        let server = server(line);
        let why = server
            .as_deref()
            .and_then(|server| unreachable(server, families));
        match (server, why) {
            (Some(server), Some(why)) => found.left_out.push((server, why)),
            (server, _) => {
                found.text.extend_from_slice(line);
                found.servers.extend(server);
            }
        }
    }
    found
}

/// The first of these configurations with a server that can be asked; without any the first one, with none.
#[must_use]
pub fn choose(configurations: &[Vec<u8>], families: Families) -> Reachable {
    let mut usable = configurations
        .iter()
        .map(|text| reachable(text, families))
        .filter(|found| !found.servers.is_empty());
    usable.next().unwrap_or_else(|| {
        let first = configurations.first().map_or(&[][..], Vec::as_slice);
        reachable(first, families)
    })
}

/// The server of a line, if it is one of a server.
fn server(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(line);
    let mut words = text.split_ascii_whitespace();
    let server = words
        .next()
        .filter(|word| *word == "nameserver")
        .and_then(|_| words.next())?;
    let address = server.split_once('%').map_or(server, |(text, _)| text);
    address.parse::<IpAddr>().is_ok().then(|| server.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Families = Families {
        four: true,
        six: true,
    };
    const FOUR: Families = Families {
        four: true,
        six: false,
    };
    const SIX: Families = Families {
        four: false,
        six: true,
    };

    #[test]
    fn server_that_only_the_node_reaches_is_none_of_a_container() {
        use Unreachable::{Family, Loopback, Zone};
        for (server, families, expected) in [
            ("127.0.0.53", BOTH, Some(Loopback)),
            ("127.0.0.1", BOTH, Some(Loopback)),
            ("::1", BOTH, Some(Loopback)),
            ("::ffff:127.0.0.1", BOTH, Some(Loopback)),
            ("0.0.0.0", BOTH, Some(Loopback)),
            ("::", BOTH, Some(Loopback)),
            ("fe80::1%eth0", BOTH, Some(Zone)),
            ("fe80::1", BOTH, Some(Zone)),
            ("fd00::53%2", BOTH, Some(Zone)),
            ("fd00::53", FOUR, Some(Family)),
            ("2001:db8::53", FOUR, Some(Family)),
            ("192.0.2.53", SIX, Some(Family)),
            ("::ffff:192.0.2.53", SIX, Some(Family)),
            ("fd00::53", SIX, None),
            ("fd00::53", BOTH, None),
            ("192.0.2.53", FOUR, None),
            ("::ffff:192.0.2.53", FOUR, None),
            // At AWS, routed by the node.
            ("169.254.169.253", FOUR, None),
            ("dns.example", FOUR, None),
        ] {
            assert_eq!(unreachable(server, families), expected, "{server}");
        }
    }

    #[test]
    fn families_are_those_of_the_addresses_if_there_are_any() {
        let four: IpAddr = [10, 0, 0, 2].into();
        let six: IpAddr = "fd00::2".parse().unwrap();
        for (addresses, expected) in [
            (vec![four], FOUR),
            (vec![six], SIX),
            (vec![six, four], BOTH),
            (vec![], BOTH),
        ] {
            assert_eq!(Families::of(&addresses), expected, "{addresses:?}");
        }
    }

    #[test]
    fn configuration_loses_the_lines_of_these_servers_alone() {
        let text = b"# by dnsmasq\nnameserver 127.0.0.1\nnameserver 192.0.2.1 # office\nsearch a.test\n\
            nameserver\tfe80::1%eth0\nnameserver fd00::53\noptions trust-ad\n\xff\nnameserver not-one";
        let found = reachable(text, FOUR);
        let expected: &[u8] = b"# by dnsmasq\nnameserver 192.0.2.1 # office\nsearch a.test\noptions trust-ad\n\xff\nnameserver not-one";
        assert_eq!(found.text, expected);
        assert_eq!(found.servers, ["192.0.2.1"]);
        let why: Vec<Unreachable> = found.left_out.iter().map(|(_, why)| *why).collect();
        assert_eq!(
            why,
            [
                Unreachable::Loopback,
                Unreachable::Zone,
                Unreachable::Family
            ]
        );
        let alone = reachable(b"nameserver 127.0.0.1\nnameserver ::1\n", BOTH);
        assert_eq!(
            alone.explain(),
            "/etc/resolv.conf names no other server: 127.0.0.1 is an address of the node's own loopback, ::1 is an address of the \
             node's own loopback"
        );
        let many = reachable("nameserver ::1\n".repeat(9).as_bytes(), BOTH);
        assert!(
            many.explain().ends_with(" and 5 more"),
            "{}",
            many.explain()
        );
        assert_eq!(
            reachable(b"", BOTH).explain(),
            "/etc/resolv.conf names no server"
        );
        let all_well = b"nameserver 192.0.2.1\r\n\nnameserver fd00::53\n";
        assert_eq!(reachable(all_well, BOTH).text, all_well);
    }

    #[test]
    fn first_configuration_with_a_server_for_the_container_is_chosen() {
        let list = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| text.as_bytes().to_vec())
                .collect::<Vec<_>>()
        };
        let check = |texts: &[&str], families, expected: &[&str]| {
            assert_eq!(
                choose(&list(texts), families).servers,
                expected,
                "{texts:?}"
            );
        };
        let [stub, upstream] = ["nameserver 127.0.0.53\n", "nameserver 192.0.2.1\n"];
        check(&[upstream, stub], FOUR, &["192.0.2.1"]);
        check(&[stub, upstream], FOUR, &["192.0.2.1"]);
        // Neither systemd-resolved nor a file at all, but NetworkManager.
        check(&["", "", upstream], FOUR, &["192.0.2.1"]);
        check(&["nameserver fd00::1\n", upstream], FOUR, &["192.0.2.1"]);
        check(&["nameserver fd00::1\n", upstream], SIX, &["fd00::1"]);
        check(&["search a\nnameserver ::1\n", "", stub], BOTH, &[]);
        check(&[], BOTH, &[]);
        assert_eq!(
            choose(&list(&["search a\nnameserver ::1\n", "", stub]), BOTH).text,
            b"search a\n"
        );
    }
}
