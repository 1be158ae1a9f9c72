//! Tests of the negotiation, which must agree with that of other servers.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::{Carrier, Forwarding, Rejection, Upgrade, port_forward, remote_command};
use crate::remote_command::Version;

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(
            HeaderName::from_static(name),
            HeaderValue::from_str(value).unwrap(),
        );
    }
    headers
}

const SPDY: [(&str, &str); 2] = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];
const WEBSOCKET: [(&str, &str); 4] = [
    ("connection", "keep-alive, Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

fn with(base: &[(&'static str, &'static str)], more: &[(&'static str, &'static str)]) -> HeaderMap {
    headers(&[base, more].concat())
}

#[track_caller]
fn refused<V: std::fmt::Debug>(answer: Result<Upgrade<V>, Rejection>, status: u16) -> Rejection {
    let rejection = answer.unwrap_err();
    assert_eq!(rejection.status, StatusCode::from_u16(status).unwrap());
    rejection
}

#[track_caller]
fn chosen(headers: &HeaderMap, name: Option<&str>, version: u8) {
    let upgrade = remote_command(headers).unwrap();
    assert_eq!((upgrade.name, upgrade.version), (name, Version(version)));
}

#[test]
fn client_protocol_order_decides() {
    let offer = [(
        "x-stream-protocol-version",
        "v4.channel.k8s.io, v3.channel.k8s.io,channel.k8s.io",
    )];
    chosen(&with(&SPDY, &offer), Some("v4.channel.k8s.io"), 4);
    let lines = [
        "v9.channel.k8s.io",
        "v5.channel.k8s.io",
        "v4.channel.k8s.io",
    ];
    chosen(
        &with(
            &SPDY,
            &lines.map(|line| ("x-stream-protocol-version", line)),
        ),
        Some("v5.channel.k8s.io"),
        5,
    );
    chosen(
        &with(&SPDY, &[("x-stream-protocol-version", "channel.k8s.io")]),
        Some("channel.k8s.io"),
        1,
    );
    let offer = [(
        "sec-websocket-protocol",
        "v3.channel.k8s.io, v4.channel.k8s.io, v5.channel.k8s.io",
    )];
    chosen(&with(&WEBSOCKET, &offer), Some("v4.channel.k8s.io"), 4);
}

#[test]
fn websocket_without_protocols_uses_the_first() {
    chosen(&headers(&WEBSOCKET), None, 1);
    let upgrade = port_forward(&headers(&WEBSOCKET)).unwrap();
    assert_eq!(
        (upgrade.name, upgrade.version),
        (None, Forwarding::Messages)
    );
    assert_eq!(upgrade.protocol_header(), None);
}

#[test]
fn request_without_upgrade_or_protocol_is_bad_request() {
    refused(remote_command(&headers(&[])), 400);
    refused(remote_command(&headers(&[("upgrade", "SPDY/3.1")])), 400);
    refused(
        remote_command(&headers(&[("connection", "upgrade"), ("upgrade", "h2c")])),
        400,
    );
    refused(remote_command(&headers(&SPDY)), 400);
    refused(
        port_forward(&with(&SPDY, &[("x-stream-protocol-version", " , ")])),
        400,
    );
    refused(remote_command(&headers(&WEBSOCKET[..3])), 400);
    let rejection = refused(remote_command(&headers(&WEBSOCKET[..2])), 400);
    assert_eq!(
        rejection.headers,
        [(
            "sec-websocket-version".parse().unwrap(),
            "13".parse().unwrap()
        )]
    );
}

#[test]
fn no_common_protocol_is_forbidden_and_lists_ours() {
    let offer = [("x-stream-protocol-version", "v9.channel.k8s.io")];
    let rejection = refused(remote_command(&with(&SPDY, &offer)), 403);
    let accepted: Vec<_> = rejection
        .headers
        .iter()
        .map(|(_, value)| value.to_str().unwrap())
        .collect();
    assert_eq!(
        accepted,
        [
            "v5.channel.k8s.io",
            "v4.channel.k8s.io",
            "v3.channel.k8s.io",
            "v2.channel.k8s.io",
            "channel.k8s.io"
        ]
    );
    assert!(
        rejection
            .headers
            .iter()
            .all(|(name, _)| name == "x-accepted-stream-protocol-versions")
    );
    refused(port_forward(&with(&SPDY, &offer)), 403);
    refused(
        port_forward(&with(
            &WEBSOCKET,
            &[("sec-websocket-protocol", "v5.channel.k8s.io")],
        )),
        403,
    );
}

#[test]
fn port_forward_negotiates_its_tunnel_protocol() {
    let upgrade = port_forward(&with(
        &SPDY,
        &[("x-stream-protocol-version", "portforward.k8s.io")],
    ))
    .unwrap();
    assert_eq!(
        (upgrade.carrier, upgrade.name),
        (Carrier::Spdy, Some("portforward.k8s.io"))
    );
    let offer = [("sec-websocket-protocol", "SPDY/3.1+portforward.k8s.io")];
    let upgrade = port_forward(&with(&WEBSOCKET, &offer)).unwrap();
    assert_eq!(
        (upgrade.name, upgrade.version),
        (Some("SPDY/3.1+portforward.k8s.io"), Forwarding::Tunnel)
    );
    let (name, value) = upgrade.protocol_header().unwrap();
    assert_eq!(
        (name.as_str(), value),
        (
            "sec-websocket-protocol",
            "SPDY/3.1+portforward.k8s.io".parse().unwrap()
        )
    );
}
