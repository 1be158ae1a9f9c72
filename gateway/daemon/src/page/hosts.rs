//! The host names under which a browser may ask for the status page.
//!
//! A page of another origin can make a browser ask for it under its own name, if that resolves to this node (DNS
//! rebinding), and would then read the answer. So names have to be known.

use std::net::{IpAddr, SocketAddr};

/// The names of the node for browsers.
#[derive(Debug, Clone)]
pub(crate) struct PageHosts {
    listen: IpAddr,
    names: Vec<String>,
}

// === impl PageHosts ===

impl PageHosts {
    /// For the listener `admin.listen`, and the names of `admin.hosts`.
    #[must_use]
    pub(crate) fn new(listen: SocketAddr, names: &[String]) -> Self {
        Self { listen: listen.ip().to_canonical(), names: names.to_vec() }
    }

    /// Whether a request may have this host, which is without a port: `localhost`, a loopback address, the address of the
    /// listener, or one of the names. A listener on all addresses accepts each address, which is no name of another origin.
    #[must_use]
    pub(crate) fn accepts(&self, host: &str) -> bool {
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        if let Ok(address) = bare.parse::<IpAddr>() {
            let address = address.to_canonical();
            let is_listener = self.listen.is_unspecified() || address == self.listen;
            return address.is_loopback() || is_listener || self.is_named(bare);
        }
        let name = host.strip_suffix('.').unwrap_or(host);
        name.eq_ignore_ascii_case("localhost") || self.is_named(name)
    }

    fn is_named(&self, host: &str) -> bool {
        self.names.iter().any(|name| name.eq_ignore_ascii_case(host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(listen: &str) -> PageHosts {
        PageHosts::new(listen.parse().unwrap(), &["node7.example".to_owned(), "10.9.9.9".to_owned()])
    }

    #[test]
    fn loopback_the_listener_and_configured_names_are_accepted() {
        let hosts = hosts("10.0.0.7:9640");
        for good in [
            "localhost",
            "LOCALHOST.",
            "127.0.0.1",
            "127.8.8.8",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "10.0.0.7",
            "[::ffff:10.0.0.7]",
            "node7.example",
            "Node7.Example.",
            "10.9.9.9",
        ] {
            assert!(hosts.accepts(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "evil.example",
            "localhost.evil.example",
            "xnode7.example",
            "10.0.0.8",
            "[::2]",
            "127.1",
        ] {
            assert!(!hosts.accepts(bad), "{bad}");
        }
    }

    #[test]
    fn listener_on_all_addresses_accepts_addresses_and_no_other_name() {
        for all in ["0.0.0.0:9640", "[::]:9640"] {
            let hosts = hosts(all);
            assert!(hosts.accepts("10.0.0.8") && hosts.accepts("[2001:db8::1]"), "{all}");
            assert!(!hosts.accepts("evil.example"), "{all}");
        }
    }
}
