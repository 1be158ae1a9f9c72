//! Checks of an HTTP request before it is served: its host name, and that it has no body unless its page takes one.
//!
//! A web page can make its visitor's browser send requests to loopback under the page's own host name, if
//! that resolves to 127.0.0.1 (DNS rebinding), and read the answers. Such a request has that name in its Host
//! header, so a loopback listener accepts only `localhost` and IP addresses as host.

use std::net::{IpAddr, SocketAddr};

use http::header::HOST;
use http::uri::Authority;
use http::{Method, Request, StatusCode, Version};
use hyper::body::Body;

/// The only page that takes a body.
pub(super) const JOIN_PATH: &str = "/v1/swarm/join";

/// Which host names a listener accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hosts {
    /// `localhost` and IP addresses.
    Loopback,
    /// Every name.
    Any,
}

impl Hosts {
    /// The names that are accepted on a TCP listener.
    #[must_use]
    pub fn of(listener: SocketAddr) -> Self {
        if listener.ip().to_canonical().is_loopback() { Self::Loopback } else { Self::Any }
    }
}

/// The status and reason with which a request is refused; `None` if it is accepted.
pub(super) fn refusal(hosts: Hosts, request: &Request<impl Body>) -> Option<(StatusCode, String)> {
    if !request.body().is_end_stream() && !takes_body(request) {
        return Some((StatusCode::PAYLOAD_TOO_LARGE, "this page takes no request with a body\n".into()));
    }
    if hosts == Hosts::Any {
        return None;
    }
    let mut named = request.headers().get_all(HOST).iter();
    let host = match (request.uri().authority(), named.next(), named.next()) {
        (_, _, Some(_)) => Err("a request must name exactly one host\n"),
        (Some(target), _, None) => Ok(target.clone()),
        (None, Some(host), None) => {
            Authority::try_from(host.as_bytes()).map_err(|_| "the host is not a valid name\n")
        }
        // HTTP/1.0 needs no Host header. Browsers, against which this check protects, always send one.
        (None, None, None) if request.version() < Version::HTTP_11 => return None,
        (None, None, None) => Err("a request must have a Host header\n"),
    };
    match host {
        Ok(host) if is_loopback_name(host.host()) => None,
        Ok(host) => {
            let why = format!(
                "{:?} is not a name of this listener: use localhost or the address, or set admin.listen to a non-loopback address\n",
                host.host()
            );
            Some((StatusCode::MISDIRECTED_REQUEST, why))
        }
        Err(why) => Some((StatusCode::BAD_REQUEST, why.into())),
    }
}

/// Whether a page may read the body of this request, within its own limit. A listener that does not have the page does
/// not read the body.
fn takes_body(request: &Request<impl Body>) -> bool {
    request.method() == Method::POST && request.uri().path() == JOIN_PATH
}

/// Whether the name is resolved without DNS.
fn is_loopback_name(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let name = host.strip_suffix('.').unwrap_or(host);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use http_body_util::{Empty, Full};

    use super::*;

    type Nothing = Empty<&'static [u8]>;

    #[track_caller]
    fn check(hosts: Hosts, headers: &[&str], expected: Option<StatusCode>) {
        let mut request = Request::get("/statusz");
        for host in headers {
            request = request.header(HOST, *host);
        }
        let request = request.body(Nothing::new()).unwrap();
        assert_eq!(refusal(hosts, &request).map(|(status, _)| status), expected, "{headers:?}");
    }

    #[test]
    fn loopback_listener_accepts_only_loopback_hosts() {
        for host in
            ["localhost", "LocalHost:9640", "localhost.", "127.0.0.1:9640", "10.1.2.3", "[::1]", "[::1]:9640"]
        {
            check(Hosts::Loopback, &[host], None);
        }
        for host in ["evil.example", "evil.example:9640", "localhost.evil.example", "127.0.0.1.evil.example"]
        {
            check(Hosts::Loopback, &[host], Some(StatusCode::MISDIRECTED_REQUEST));
            check(Hosts::Any, &[host], None);
        }
        for hosts in [&["", ""][..], &["localhost", "evil.example"], &["a b"], &[]] {
            check(Hosts::Loopback, hosts, Some(StatusCode::BAD_REQUEST));
        }
    }

    #[test]
    fn host_of_an_absolute_target_is_checked() {
        let request = Request::get("http://evil.example/statusz").header(HOST, "localhost");
        let refused = refusal(Hosts::Loopback, &request.body(Nothing::new()).unwrap());
        assert_eq!(refused.map(|(status, _)| status), Some(StatusCode::MISDIRECTED_REQUEST));
    }

    #[test]
    fn http_1_0_request_needs_no_host() {
        let request = Request::get("/livez").version(Version::HTTP_10).body(Nothing::new()).unwrap();
        assert_eq!(refusal(Hosts::Loopback, &request), None);
    }

    #[test]
    fn request_with_a_body_is_rejected_unless_its_page_takes_one() {
        for (method, path, expected) in [
            (Method::GET, "/livez", Some(StatusCode::PAYLOAD_TOO_LARGE)),
            (Method::POST, "/v1/config/reload", Some(StatusCode::PAYLOAD_TOO_LARGE)),
            (Method::GET, JOIN_PATH, Some(StatusCode::PAYLOAD_TOO_LARGE)),
            (Method::POST, JOIN_PATH, None),
        ] {
            let request = Request::builder().method(method).uri(path).header(HOST, "localhost");
            let request = request.body(Full::new(&b"x"[..])).unwrap();
            assert_eq!(refusal(Hosts::Any, &request).map(|(status, _)| status), expected, "{path}");
        }
    }

    #[test]
    fn host_check_applies_only_to_loopback_listeners() {
        for (address, hosts) in [
            ("127.0.0.1:9640", Hosts::Loopback),
            ("[::1]:9640", Hosts::Loopback),
            ("[::ffff:127.0.0.1]:9640", Hosts::Loopback),
            ("0.0.0.0:9640", Hosts::Any),
            ("10.0.0.1:9640", Hosts::Any),
        ] {
            assert_eq!(Hosts::of(address.parse().unwrap()), hosts, "{address}");
        }
    }
}
