//! The proxies of the environment, by the rules of Go's programs, so that what works for containerd and docker works
//! here: `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, in upper or lower case. `ALL_PROXY`, which Go does not know, is for
//! what the former leave out.

use std::net::IpAddr;

use url::{Host, Url};

use crate::hosts::is_loopback;

/// The proxies, and what is asked without one.
#[derive(Debug)]
pub(super) struct Proxies {
    http: Option<Url>,
    https: Option<Url>,
    except: Vec<Exception>,
}

/// An entry of `NO_PROXY`. Without a port it is for all of them.
#[derive(Debug, PartialEq, Eq)]
enum Exception {
    Everything,
    Network(IpAddr, u8),
    Address(IpAddr, Option<u16>),
    /// Names that end with this one, which begins with a dot.
    Below(String, Option<u16>),
    /// This name, and those that end with it.
    Name(String, Option<u16>),
}

// === impl Proxies ===

impl Proxies {
    pub(super) fn of_environment() -> Self {
        Self::new(|name| std::env::var(name).ok())
    }

    /// Reads the variables by their names.
    fn new(variable: impl Fn(&str) -> Option<String>) -> Self {
        // An empty one is as good as none.
        let either = |name: &str| {
            [name.to_owned(), name.to_ascii_lowercase()]
                .iter()
                .find_map(|name| variable(name).filter(|value| !value.is_empty()))
        };
        let proxy = |name: &str| {
            let value = either(name).or_else(|| either("ALL_PROXY"));
            value.and_then(|value| proxy_url(&value))
        };
        let except = either("NO_PROXY").unwrap_or_default();
        Self {
            http: proxy("HTTP_PROXY"),
            https: proxy("HTTPS_PROXY"),
            except: except.split(',').filter_map(Exception::parse).collect(),
        }
    }

    /// Returns whether no request has a proxy.
    pub(super) fn is_empty(&self) -> bool {
        self.http.is_none() && self.https.is_none()
    }

    /// The proxy for a request to this URL. No proxy can reach this machine's own loopback.
    pub(super) fn proxy_for(&self, url: &Url) -> Option<Url> {
        let proxy = match url.scheme() {
            "http" => self.http.as_ref()?,
            "https" => self.https.as_ref()?,
            _ => return None,
        };
        let direct = is_loopback(url) || self.except.iter().any(|except| except.has(url));
        (!direct).then(|| proxy.clone())
    }
}

/// The URL of a proxy, which may have no scheme.
fn proxy_url(text: &str) -> Option<Url> {
    let known = |url: &Url| {
        let schemes = ["http", "https", "socks4", "socks4a", "socks5", "socks5h"];
        schemes.contains(&url.scheme()) && url.has_host()
    };
    let text = if text.contains("://") {
        text.to_owned()
    } else {
        format!("http://{text}")
    };
    Url::parse(&text).ok().filter(known)
}

// === impl Exception ===

impl Exception {
    /// `None` for what has no meaning, such as a port alone.
    fn parse(entry: &str) -> Option<Self> {
        let entry = entry.trim().to_ascii_lowercase();
        if entry == "*" {
            return Some(Self::Everything);
        }
        if let Some((address, bits)) = parse_network(&entry) {
            return Some(Self::Network(address, bits));
        }
        let (host, port) = match entry.rsplit_once(':') {
            // Several colons are an IPv6 address, which has brackets if a port follows.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port),
            Some(_) | None => (entry.as_str(), ""),
        };
        let port = match port {
            "" => None,
            port => Some(port.parse::<u16>().ok()?),
        };
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        if let Ok(address) = bare.unwrap_or(host).parse::<IpAddr>() {
            return Some(Self::Address(address.to_canonical(), port));
        }
        let host = host
            .strip_prefix('*')
            .filter(|rest| rest.starts_with('.'))
            .unwrap_or(host);
        match host {
            "" => None,
            host if host.starts_with('.') => Some(Self::Below(host.to_owned(), port)),
            host => Some(Self::Name(host.to_owned(), port)),
        }
    }

    fn has(&self, url: &Url) -> bool {
        let is_port = |port: &Option<u16>| port.is_none() || *port == url.port_or_known_default();
        let address = match url.host() {
            Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(Host::Ipv6(address)) => Some(IpAddr::V6(address).to_canonical()),
            Some(Host::Domain(_)) | None => None,
        };
        // A URL has its name in lower case.
        let name = url.domain().unwrap_or_default();
        match self {
            Self::Everything => true,
            Self::Network(network, bits) => {
                address.is_some_and(|address| is_within(address, *network, *bits))
            }
            Self::Address(this, port) => address == Some(*this) && is_port(port),
            Self::Below(suffix, port) => name.ends_with(suffix.as_str()) && is_port(port),
            Self::Name(this, port) => {
                let before = name.strip_suffix(this.as_str());
                before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
                    && is_port(port)
            }
        }
    }
}

/// `10.0.0.0/8`: an address and the number of bits that count.
fn parse_network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let bits: u8 = bits.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    (bits <= most).then_some((address, bits))
}

/// Returns whether an address has the same first bits as a network.
fn is_within(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let bits = u32::from(bits);
    // A shift by all bits has no result.
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let differs = u32::from(address) ^ u32::from(network);
            differs.checked_shr(32 - bits).unwrap_or(0) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let differs = u128::from(address) ^ u128::from(network);
            differs.checked_shr(128 - bits).unwrap_or(0) == 0
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The proxy for a URL with these variables, as text.
    fn proxy(variables: &[(&str, &str)], url: &str) -> Option<String> {
        let proxies = Proxies::new(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        });
        let url = Url::parse(url).unwrap();
        proxies.proxy_for(&url).map(|proxy| proxy.to_string())
    }

    #[test]
    fn exceptions_are_those_of_go() {
        // The exceptions, a host, and whether it is asked without a proxy.
        for (except, host, is_direct) in [
            ("registry.example:5000", "registry.example:5000", true),
            ("registry.example:5000", "registry.example", false),
            ("registry.example:443", "registry.example", true),
            ("registry.example:", "registry.example:5000", true),
            ("registry.example:x", "registry.example", false),
            ("*.corp.example", "registry.corp.example", true),
            ("*.corp.example", "corp.example", false),
            ("*.corp.example:5000", "a.b.corp.example:5000", true),
            (".corp.example", "registry.corp.example:5000", true),
            (".corp.example", "corp.example", false),
            ("corp.example", "corp.example:5000", true),
            ("corp.example", "registry.corp.example", true),
            ("corp.example", "notcorp.example", false),
            ("Registry.EXAMPLE", "REGISTRY.example", true),
            ("10.0.0.0/8", "10.1.2.3:5000", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("10.1.2.3/32", "10.1.2.4", false),
            ("0.0.0.0/0", "203.0.113.1", true),
            ("0.0.0.0/0", "[2001:db8::1]", false),
            ("10.0.0.0/33", "10.0.0.0", false),
            ("fd00::/8", "[fd12::1]:5000", true),
            ("fd00::/8", "[fe12::1]", false),
            ("192.0.2.1", "192.0.2.1:5000", true),
            ("192.0.2.1:5000", "192.0.2.1:5000", true),
            ("192.0.2.1:5000", "192.0.2.1", false),
            ("::ffff:192.0.2.1", "192.0.2.1", true),
            ("2001:db8::1", "[2001:db8::1]:5000", true),
            ("[2001:db8::1]:5000", "[2001:db8::1]:5000", true),
            ("[2001:db8::1]:5000", "[2001:db8::1]", false),
            ("[2001:db8::1]", "[2001:db8::1]", true),
            // A port alone means nothing.
            (":5000", "registry.example:5000", false),
            ("a.example, *", "registry.example", true),
            ("a.example , b.example", "b.example", true),
            (",, ,", "registry.example", false),
            ("*", "registry.example:5000", true),
            ("*:5000", "registry.example:5000", false),
        ] {
            let variables = [("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", except)];
            let found = proxy(&variables, &format!("https://{host}/v2/"));
            assert_eq!(found.is_none(), is_direct, "{host} with {except:?}");
        }
    }

    #[test]
    fn variables_are_read_in_both_cases() {
        let tls = "https://registry.example/";
        let plain = "http://registry.example/";
        let one = |name, value, url, expected| (vec![(name, value)], url, expected);
        // Variables, a URL, and its proxy.
        let cases = [
            one("HTTPS_PROXY", "http://a:1", tls, Some("http://a:1/")),
            one("https_proxy", "http://a:1", tls, Some("http://a:1/")),
            one("HTTPS_PROXY", "http://a:1", plain, None),
            one("HTTP_PROXY", "http://a:1", plain, Some("http://a:1/")),
            one("http_proxy", "http://a:1", tls, None),
            one("all_proxy", "http://a:1", tls, Some("http://a:1/")),
            one("HTTPS_PROXY", "proxy:3128", tls, Some("http://proxy:3128/")),
            one(
                "HTTPS_PROXY",
                "192.0.2.1:3128",
                tls,
                Some("http://192.0.2.1:3128/"),
            ),
            one("HTTPS_PROXY", "socks5://a:1", tls, Some("socks5://a:1")),
            one(
                "HTTPS_PROXY",
                "http://u:p@a:1",
                tls,
                Some("http://u:p@a:1/"),
            ),
            one("HTTPS_PROXY", "http://", tls, None),
            one("HTTPS_PROXY", "ftp://a:1", tls, None),
            one("HTTPS_PROXY", "http://a:1", "https://127.0.0.1:5000/", None),
            one("HTTPS_PROXY", "http://a:1", "https://localhost/", None),
            one("HTTPS_PROXY", "http://a:1", "https://[::1]/", None),
            (vec![], tls, None),
        ];
        for (variables, url, expected) in cases {
            let found = proxy(&variables, url);
            assert_eq!(found.as_deref(), expected, "{url} with {variables:?}");
        }
    }

    #[test]
    fn first_name_with_a_value_counts() {
        let both = |name, value, other, value_of_other| [(name, value), (other, value_of_other)];
        let through = |variables: &[(&str, &str)]| {
            let all = [&[("HTTPS_PROXY", "http://a:1")][..], variables].concat();
            proxy(&all, "https://registry.example/")
        };
        let a = Some("http://a:1/");
        let cases = [
            (both("https_proxy", "http://b:1", "x", ""), a),
            (both("NO_PROXY", "", "no_proxy", "*"), None),
            (both("NO_PROXY", "x", "no_proxy", "*"), a),
            (both("no_proxy", "registry.example", "x", ""), None),
        ];
        for (variables, expected) in cases {
            assert_eq!(through(&variables).as_deref(), expected, "{variables:?}");
        }
        let lower = [("HTTPS_PROXY", ""), ("https_proxy", "http://b:1")];
        let found = proxy(&lower, "https://registry.example/");
        assert_eq!(found.as_deref(), Some("http://b:1/"));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(value: String, near in "[a-c0-9.:*/,\\[\\] ]{0,24}") {
            let _ = proxy_url(&value);
            for url in ["https://a.b:1/", "http://10.0.0.1/", "https://[::2]/"] {
                let url = Url::parse(url).unwrap();
                for text in [&value, &near] {
                    for except in text.split(',').filter_map(Exception::parse) {
                        let _ = except.has(&url);
                    }
                }
            }
        }
    }
}
