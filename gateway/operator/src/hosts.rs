//! The host names under which clients may ask for pages: the one place that decides it.
//!
//! A web page of another origin can make a browser ask for a page of this node under its own name, if that resolves to
//! this node (DNS rebinding), and then reads the answer. So names have to be known; an address is no name of another origin.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The host that a request names, without its port.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Address(IpAddr),
    /// In lower case, without a dot at its end.
    Name(String),
}

/// The names and addresses of the node. Clones share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownHosts {
    listener: IpAddr,
    configured: Arc<[Host]>,
}

// === impl Host ===

impl Host {
    fn parse(text: &str) -> Self {
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            // The zone of an address (`[fe80::1%25eth0]`) is one of the client's interfaces.
            .map_or(text, |bare| {
                bare.split_once('%').map_or(bare, |(bare, _)| bare)
            });
        match bare.parse::<IpAddr>() {
            Ok(address) => Self::Address(address.to_canonical()),
            Err(_) => Self::Name(text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase()),
        }
    }
}

// === impl KnownHosts ===

impl KnownHosts {
    /// Those of a node with this listener, and these names and addresses in `admin.hosts`.
    #[must_use]
    pub fn new(listener: SocketAddr, configured: &[String]) -> Self {
        let configured = configured.iter().map(|host| Host::parse(host)).collect();
        Self {
            listener: listener.ip().to_canonical(),
            configured,
        }
    }

    /// Returns whether a request to a listener on loopback may name this host: a known name, or any address.
    #[must_use]
    pub fn accepts(&self, host: &str) -> bool {
        match Host::parse(host) {
            Host::Address(_) => true,
            name @ Host::Name(_) => self.has(&name),
        }
    }

    /// Returns whether a browser may request the status page under this host: a known name, a loopback
    /// address, the address of the listener, each address if the listener is on all of them, or a configured
    /// address.
    #[must_use]
    pub fn accepts_browser(&self, host: &str) -> bool {
        let host = Host::parse(host);
        let is_own = match &host {
            Host::Address(address) => {
                address.is_loopback() || self.listener.is_unspecified() || *address == self.listener
            }
            Host::Name(_) => false,
        };
        is_own || self.has(&host)
    }

    fn has(&self, host: &Host) -> bool {
        matches!(host, Host::Name(name) if name == "localhost") || self.configured.contains(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(listener: &str) -> KnownHosts {
        let configured = ["Node7.example", "10.9.9.9", "2001:DB8::7"].map(str::to_owned);
        KnownHosts::new(listener.parse().unwrap(), &configured)
    }

    #[test]
    fn browser_is_accepted_under_loopback_the_listener_and_what_is_configured() {
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
            "[2001:db8:0::7]",
        ] {
            assert!(hosts.accepts_browser(good), "{good}");
        }
        let hosts_of_link = self::hosts("[fe80::1%4]:9640");
        for good in ["[fe80::1%25eth0]", "[fe80::1%4]", "[fe80::1]"] {
            assert!(hosts_of_link.accepts_browser(good), "{good}");
        }
        for bad in [
            "[fe80::2%25eth0]",
            "[%25eth0]",
            "fe80::1%eth0",
            "[evil.example%1]",
        ] {
            assert!(!hosts_of_link.accepts_browser(bad), "{bad}");
        }
        for bad in [
            "",
            ".",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "xnode7.example",
            "10.0.0.8",
            "[::2]",
            "127.1",
        ] {
            assert!(!hosts.accepts_browser(bad), "{bad}");
        }
    }

    #[test]
    fn listener_on_all_addresses_accepts_browsers_under_each_and_no_other_name() {
        for all in ["0.0.0.0:9640", "[::]:9640"] {
            let hosts = hosts(all);
            assert!(
                hosts.accepts_browser("10.0.0.8") && hosts.accepts_browser("[2001:db8::1]"),
                "{all}"
            );
            assert!(!hosts.accepts_browser("evil.example"), "{all}");
        }
    }

    #[test]
    fn other_clients_of_loopback_may_name_any_address() {
        let hosts = hosts("127.0.0.1:9640");
        for good in [
            "localhost",
            "10.1.2.3",
            "[::1]",
            "[2001:db8::1]",
            "node7.example",
        ] {
            assert!(hosts.accepts(good), "{good}");
        }
        for bad in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.1",
        ] {
            assert!(!hosts.accepts(bad), "{bad}");
        }
    }
}
