//! Negotiates the protocol that a request is upgraded to. Pure.

use http::header::{
    CONNECTION, HeaderName, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::remote_command::Version;

/// The header in which SPDY clients send their protocols, in order of preference.
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// The header with the server's protocols, sent if there is none in common.
const ACCEPTED_PROTOCOLS: HeaderName =
    HeaderName::from_static("x-accepted-stream-protocol-versions");

const SPDY: &str = "SPDY/3.1";
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

/// The protocols of exec and attach: over SPDY, and over WebSocket with binary messages.
const REMOTE_COMMAND: [(&str, Version); 5] = [
    ("v5.channel.k8s.io", Version(5)),
    ("v4.channel.k8s.io", Version(4)),
    ("v3.channel.k8s.io", Version(3)),
    ("v2.channel.k8s.io", Version(2)),
    ("channel.k8s.io", Version(1)),
];

/// The protocols over WebSocket: versions 2 and 3 do not exist there.
const REMOTE_COMMAND_MESSAGES: [(&str, Version); 3] = [
    ("v5.channel.k8s.io", Version(5)),
    ("v4.channel.k8s.io", Version(4)),
    ("channel.k8s.io", Version(1)),
];

const PORT_FORWARD: [(&str, ()); 1] = [("portforward.k8s.io", ())];

const PORT_FORWARD_MESSAGES: [(&str, Forwarding); 2] = [
    (TUNNEL, Forwarding::Tunnel),
    ("v4.channel.k8s.io", Forwarding::Messages),
];

/// The transport of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Spdy,
    WebSocket {
        /// The client's key, which the answer is computed from.
        key: HeaderValue,
    },
}

/// Encoding of forwarded ports over WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forwarding {
    /// Two channels for each port of the request.
    Messages,
    /// The bytes of a SPDY connection in messages.
    Tunnel,
}

/// The result of the negotiation. `V` is the information about the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Upgrade<V> {
    pub(crate) carrier: Carrier,
    /// The protocol's name, if the client has named any.
    pub(crate) name: Option<&'static str>,
    pub(crate) version: V,
}

/// Reason why a request is not upgraded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) status: StatusCode,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) text: String,
}

/// Negotiates an exec or attach.
pub(crate) fn remote_command(headers: &HeaderMap) -> Result<Upgrade<Version>, Rejection> {
    match carrier(headers)? {
        Carrier::Spdy => spdy(headers, &REMOTE_COMMAND),
        carrier @ Carrier::WebSocket { .. } => {
            messages(headers, carrier, &REMOTE_COMMAND_MESSAGES, Version(1))
        }
    }
}

/// Negotiates a port-forward; over SPDY, the kind of [`Forwarding`] has no meaning.
pub(crate) fn port_forward(headers: &HeaderMap) -> Result<Upgrade<Forwarding>, Rejection> {
    match carrier(headers)? {
        Carrier::Spdy => {
            let Upgrade {
                carrier,
                name,
                version: (),
            } = spdy(headers, &PORT_FORWARD)?;
            Ok(Upgrade {
                carrier,
                name,
                version: Forwarding::Tunnel,
            })
        }
        carrier @ Carrier::WebSocket { .. } => messages(
            headers,
            carrier,
            &PORT_FORWARD_MESSAGES,
            Forwarding::Messages,
        ),
    }
}

/// The transport that the client requests.
fn carrier(headers: &HeaderMap) -> Result<Carrier, Rejection> {
    let wants = words(headers, &CONNECTION).any(|word| word.eq_ignore_ascii_case("upgrade"));
    let to = |name: &str| words(headers, &UPGRADE).any(|word| word.eq_ignore_ascii_case(name));
    if wants && to(SPDY) {
        return Ok(Carrier::Spdy);
    }
    if !wants || !to("websocket") {
        return Err(bad(
            "this is a streaming session: ask for an upgrade to SPDY/3.1 or websocket",
        ));
    }
    if headers
        .get(SEC_WEBSOCKET_VERSION)
        .is_none_or(|version| version != "13")
    {
        let mut rejection = bad("the version of WebSocket must be 13");
        rejection
            .headers
            .push((SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13")));
        return Err(rejection);
    }
    match headers.get(SEC_WEBSOCKET_KEY) {
        Some(key) => Ok(Carrier::WebSocket { key: key.clone() }),
        None => Err(bad("Sec-WebSocket-Key is missing")),
    }
}

fn spdy<V: Copy>(
    headers: &HeaderMap,
    known: &[(&'static str, V)],
) -> Result<Upgrade<V>, Rejection> {
    let mut offered = words(headers, &STREAM_PROTOCOL).peekable();
    if offered.peek().is_none() {
        return Err(bad("X-Stream-Protocol-Version is missing"));
    }
    let (name, version) = choose(offered, known).ok_or_else(|| forbidden(known))?;
    Ok(Upgrade {
        carrier: Carrier::Spdy,
        name: Some(name),
        version,
    })
}

/// `unnamed` is the version for a client that names no protocol.
fn messages<V: Copy>(
    headers: &HeaderMap,
    carrier: Carrier,
    known: &[(&'static str, V)],
    unnamed: V,
) -> Result<Upgrade<V>, Rejection> {
    let mut offered = words(headers, &SEC_WEBSOCKET_PROTOCOL).peekable();
    if offered.peek().is_none() {
        return Ok(Upgrade {
            carrier,
            name: None,
            version: unnamed,
        });
    }
    let (name, version) = choose(offered, known).ok_or_else(|| forbidden(known))?;
    Ok(Upgrade {
        carrier,
        name: Some(name),
        version,
    })
}

/// The client's first protocol that is supported.
fn choose<'a, V: Copy>(
    mut offered: impl Iterator<Item = &'a str>,
    known: &[(&'static str, V)],
) -> Option<(&'static str, V)> {
    offered.find_map(|offer| known.iter().find(|(name, _)| *name == offer).copied())
}

/// The comma-separated words of all lines of a header.
fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> + use<'a> {
    let lines = headers
        .get_all(name)
        .into_iter()
        .filter_map(|line| line.to_str().ok());
    lines
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

fn bad(text: &str) -> Rejection {
    Rejection {
        status: StatusCode::BAD_REQUEST,
        headers: Vec::new(),
        text: text.to_owned(),
    }
}

fn forbidden<V>(known: &[(&'static str, V)]) -> Rejection {
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let headers = names
        .iter()
        .map(|name| (ACCEPTED_PROTOCOLS, HeaderValue::from_static(name)))
        .collect();
    let text = format!(
        "none of the client's protocols is known here; these are: {}",
        names.join(", ")
    );
    Rejection {
        status: StatusCode::FORBIDDEN,
        headers,
        text,
    }
}

impl<V> Upgrade<V> {
    /// The protocol header of the answer, if any; the transport's own headers are separate.
    pub(crate) fn protocol_header(&self) -> Option<(HeaderName, HeaderValue)> {
        let header = match self.carrier {
            Carrier::Spdy => STREAM_PROTOCOL,
            Carrier::WebSocket { .. } => SEC_WEBSOCKET_PROTOCOL,
        };
        self.name
            .map(|name| (header, HeaderValue::from_static(name)))
    }
}

#[cfg(test)]
mod tests;
