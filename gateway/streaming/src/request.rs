//! Answers the single request of a connection: looks up its token, negotiates the protocol, and redeems the
//! token.

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, UPGRADE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::remote_command::Version;
use crate::session::{Command, Dial, Streams};
use crate::sessions::{Kind, Session, Sessions};
use crate::upgrade::{self, Carrier, Forwarding, Rejection, Upgrade};

/// A session whose token was redeemed, with its transport.
pub(crate) enum Redeemed {
    Process {
        kind: Kind,
        upgrade: Upgrade<Version>,
        streams: Streams,
        command: Box<dyn Command>,
    },
    Ports {
        upgrade: Upgrade<Forwarding>,
        ports: Vec<u16>,
        dial: std::sync::Arc<dyn Dial>,
    },
}

impl Redeemed {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Process { kind, .. } => *kind,
            Self::Ports { .. } => Kind::PortForward,
        }
    }
}

/// The result of the negotiation, before the token is redeemed.
enum Negotiated {
    Process(Upgrade<Version>),
    Ports(Upgrade<Forwarding>),
}

/// The answer to a request, and the session if it was upgraded. Refused requests do not use up a token.
pub(crate) fn answer<B>(
    sessions: &Sessions,
    request: &Request<B>,
) -> (Response<Full<Bytes>>, Option<Redeemed>) {
    match redeem(sessions, request) {
        Ok(redeemed) => {
            let response = match &redeemed {
                Redeemed::Process { upgrade, .. } => switch(upgrade),
                Redeemed::Ports { upgrade, .. } => switch(upgrade),
            };
            (response, Some(redeemed))
        }
        Err(rejection) => (reject(rejection), None),
    }
}

fn redeem<B>(sessions: &Sessions, request: &Request<B>) -> Result<Redeemed, Rejection> {
    if !matches!(*request.method(), Method::GET | Method::POST) {
        return Err(Rejection {
            status: StatusCode::METHOD_NOT_ALLOWED,
            headers: vec![(ALLOW, HeaderValue::from_static("GET, POST"))],
            text: format!("{} is not known here; use POST or GET", request.method()),
        });
    }
    let missing = || Rejection {
        status: StatusCode::NOT_FOUND,
        headers: Vec::new(),
        text: "no session waits here: its token was used, has expired, or never was".to_owned(),
    };
    // A proxy may have added a prefix before the last two segments.
    let mut parts = request.uri().path().rsplit('/');
    let token = parts.next().ok_or_else(missing)?;
    let kind = parts.next().ok_or_else(missing)?;
    let kind = Kind::ALL
        .into_iter()
        .find(|known| known.name() == kind)
        .ok_or_else(missing)?;
    let now = Instant::now();
    let mut tokens = sessions.tokens();
    let session = tokens
        .peek(token, now)
        .filter(|session| session.kind() == kind)
        .ok_or_else(missing)?;
    // A refused upgrade leaves the token valid, for another attempt.
    let negotiated = negotiate(session, request.headers())?;
    let session = tokens.redeem(token, now).ok_or_else(missing)?;
    match (negotiated, session) {
        (
            Negotiated::Process(upgrade),
            Session::Process {
                kind,
                streams,
                command,
            },
        ) => Ok(Redeemed::Process {
            kind,
            upgrade,
            streams,
            command,
        }),
        (Negotiated::Ports(upgrade), Session::Ports { ports, dial }) => Ok(Redeemed::Ports {
            upgrade,
            ports,
            dial,
        }),
        (Negotiated::Process(_), Session::Ports { .. })
        | (Negotiated::Ports(_), Session::Process { .. }) => Err(missing()),
    }
}

fn negotiate(session: &Session, headers: &HeaderMap) -> Result<Negotiated, Rejection> {
    let ports = match session {
        Session::Process { .. } => {
            return upgrade::remote_command(headers).map(Negotiated::Process);
        }
        Session::Ports { ports, .. } => ports,
    };
    let upgrade = upgrade::port_forward(headers)?;
    // Each port has two channels, and a channel number is one byte.
    if upgrade.version == Forwarding::Messages && !(1..=127).contains(&ports.len()) {
        return Err(Rejection {
            status: StatusCode::BAD_REQUEST,
            headers: Vec::new(),
            text: format!(
                "{} ports were asked for; this protocol forwards 1 to 127",
                ports.len()
            ),
        });
    }
    Ok(Negotiated::Ports(upgrade))
}

/// 101 Switching Protocols.
fn switch<V>(upgrade: &Upgrade<V>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    match &upgrade.carrier {
        Carrier::Spdy => {
            headers.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
        }
        Carrier::WebSocket { key } => {
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()));
            headers.insert(
                SEC_WEBSOCKET_ACCEPT,
                accept.expect("base64 has no byte that a header must not have"),
            );
        }
    }
    headers.extend(upgrade.protocol_header());
    response
}

fn reject(rejection: Rejection) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(rejection.text + "\n"));
    *response.status_mut() = rejection.status;
    // A connection is for one request only. The answer to an upgrade must not contain `close`: Go's clients
    // would not accept it.
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    for (name, value) in rejection.headers {
        response.headers_mut().append(name, value);
    }
    response
}
