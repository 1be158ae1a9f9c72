//! Checks of an HTTP request before it is served: its host name, and that it has no body unless its page takes one.
//!
//! Which hosts are accepted, and why, is decided by [`KnownHosts`].

use std::net::SocketAddr;

use http::header::HOST;
use http::uri::Authority;
use http::{Method, Request, StatusCode, Version};
use hyper::body::Body;
use switchyard_linux::beginning;
use switchyard_operator_api::EXEC_PATH;

use crate::hosts::KnownHosts;

/// A page that takes a body; the other one is [`EXEC_PATH`].
pub(super) const JOIN_PATH: &str = "/v1/swarm/join";

/// The host names that a listener accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hosts {
    /// Addresses, and the known names.
    Loopback(KnownHosts),
    /// Every name.
    Any,
}

impl Hosts {
    /// Returns the hosts that a TCP listener accepts, with `configured` names and addresses of the node.
    #[must_use]
    pub fn of(listener: SocketAddr, configured: &[String]) -> Self {
        if listener.ip().to_canonical().is_loopback() {
            Self::Loopback(KnownHosts::new(listener, configured))
        } else {
            Self::Any
        }
    }
}

/// The status and reason with which a request is refused; `None` if it is accepted.
pub(super) fn refusal(hosts: &Hosts, request: &Request<impl Body>) -> Option<(StatusCode, String)> {
    if !request.body().is_end_stream() && !takes_body(request) {
        return Some((
            StatusCode::PAYLOAD_TOO_LARGE,
            "this page takes no request with a body\n".into(),
        ));
    }
    let Hosts::Loopback(known) = hosts else {
        return None;
    };
    match named(request) {
        Ok(None) => None,
        Ok(Some(host)) if known.accepts(host.host()) => None,
        Ok(Some(host)) => Some(misdirected(host.host())),
        Err(why) => Some((StatusCode::BAD_REQUEST, why.into())),
    }
}

/// The same for the status page, which is for browsers alone: they always name a host, and it must be one of the node's.
pub(super) fn page_refusal(
    known: &KnownHosts,
    request: &Request<impl Body>,
) -> Option<(StatusCode, String)> {
    match named(request) {
        Ok(Some(host)) if known.accepts_browser(host.host()) => None,
        Ok(Some(host)) => Some(misdirected(host.host())),
        Ok(None) => Some((
            StatusCode::BAD_REQUEST,
            "a request must have a Host header\n".into(),
        )),
        Err(why) => Some((StatusCode::BAD_REQUEST, why.into())),
    }
}

/// The host that a request names; `None` for one of HTTP/1.0 without a Host header.
fn named(request: &Request<impl Body>) -> Result<Option<Authority>, &'static str> {
    let mut named = request.headers().get_all(HOST).iter();
    let invalid = "the host is not a valid name\n";
    // A user before the host, which HTTP does not allow there (RFC 9110, section 4.2.4), could pass for its name.
    let without_user = |host: Authority| {
        if host.as_str().contains('@') {
            Err(invalid)
        } else {
            Ok(Some(host))
        }
    };
    match (request.uri().authority(), named.next(), named.next()) {
        (_, _, Some(_)) => Err("a request must name exactly one host\n"),
        (Some(target), _, None) => without_user(target.clone()),
        (None, Some(host), None) => Authority::try_from(host.as_bytes())
            .map_err(|_| invalid)
            .and_then(without_user),
        // HTTP/1.0 needs no Host header. Browsers, against which this check protects, always send one.
        (None, None, None) if request.version() < Version::HTTP_11 => Ok(None),
        (None, None, None) => Err("a request must have a Host header\n"),
    }
}

fn misdirected(host: &str) -> (StatusCode, String) {
    let shown = beginning(host, 100);
    let why = format!(
        "{shown:?} is no name of this node: use localhost or the address, or add it to admin.hosts\n"
    );
    (StatusCode::MISDIRECTED_REQUEST, why)
}

/// Returns whether a page may read the body of this request, within its own limit. A listener that does not
/// have the page does not read the body.
fn takes_body(request: &Request<impl Body>) -> bool {
    request.method() == Method::POST && [JOIN_PATH, EXEC_PATH].contains(&request.uri().path())
}

#[cfg(test)]
mod tests {
    use http_body_util::{Empty, Full};

    use super::*;

    type Nothing = Empty<&'static [u8]>;

    fn loopback() -> Hosts {
        Hosts::of(
            "127.0.0.1:9640".parse().unwrap(),
            &["node7.example".to_owned()],
        )
    }

    #[track_caller]
    fn check(hosts: &Hosts, headers: &[&str], expected: Option<StatusCode>) {
        let mut request = Request::get("/statusz");
        for host in headers {
            request = request.header(HOST, *host);
        }
        let request = request.body(Nothing::new()).unwrap();
        assert_eq!(
            refusal(hosts, &request).map(|(status, _)| status),
            expected,
            "{headers:?}"
        );
    }

    #[test]
    fn loopback_listener_accepts_only_loopback_hosts() {
        for host in [
            "localhost",
            "LocalHost:9640",
            "localhost.",
            "127.0.0.1:9640",
            "10.1.2.3",
            "[::1]",
            "Node7.example:80",
        ] {
            check(&loopback(), &[host], None);
        }
        for host in [
            "evil.example",
            "evil.example:9640",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
        ] {
            check(&loopback(), &[host], Some(StatusCode::MISDIRECTED_REQUEST));
            check(&Hosts::Any, &[host], None);
        }
        for hosts in [
            &["", ""][..],
            &["localhost", "evil.example"],
            &["a b"],
            &["user@localhost"],
            &[],
        ] {
            check(&loopback(), hosts, Some(StatusCode::BAD_REQUEST));
        }
    }

    #[test]
    fn host_of_an_absolute_target_is_checked() {
        let request = Request::get("http://evil.example/statusz").header(HOST, "localhost");
        let refused = refusal(&loopback(), &request.body(Nothing::new()).unwrap());
        assert_eq!(
            refused.map(|(status, _)| status),
            Some(StatusCode::MISDIRECTED_REQUEST)
        );
    }

    #[test]
    fn http_1_0_request_needs_no_host() {
        let request = Request::get("/livez")
            .version(Version::HTTP_10)
            .body(Nothing::new())
            .unwrap();
        assert_eq!(refusal(&loopback(), &request), None);
    }

    #[test]
    fn request_with_a_body_is_rejected_unless_its_page_takes_one() {
        for (method, path, expected) in [
            (Method::GET, "/livez", Some(StatusCode::PAYLOAD_TOO_LARGE)),
            (
                Method::POST,
                "/v1/config/reload",
                Some(StatusCode::PAYLOAD_TOO_LARGE),
            ),
            (Method::GET, JOIN_PATH, Some(StatusCode::PAYLOAD_TOO_LARGE)),
            (Method::POST, JOIN_PATH, None),
            (Method::GET, EXEC_PATH, Some(StatusCode::PAYLOAD_TOO_LARGE)),
            (Method::POST, EXEC_PATH, None),
        ] {
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header(HOST, "localhost");
            let request = request.body(Full::new(&b"x"[..])).unwrap();
            assert_eq!(
                refusal(&Hosts::Any, &request).map(|(status, _)| status),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn host_check_applies_only_to_loopback_listeners() {
        for (address, is_checked) in [
            ("127.0.0.1:9640", true),
            ("[::1]:9640", true),
            ("[::ffff:127.0.0.1]:9640", true),
            ("0.0.0.0:9640", false),
            ("10.0.0.1:9640", false),
        ] {
            let hosts = Hosts::of(address.parse().unwrap(), &[]);
            assert_eq!(hosts != Hosts::Any, is_checked, "{address}");
        }
    }
}
