//! Port-forward: one dialled connection for each pair of streams, any number of them concurrently.

use std::collections::HashMap;
use std::future::pending;
use std::num::NonZeroU16;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::channel::{Inbound, Outbound};
use crate::copy::{CopyError, inward, outward, text};
use crate::ends::{Connection, Output};
use crate::session::Dial;
use crate::spdy::{Incoming, MAX_STREAMS};

/// Timeout of a connect to a port of a sandbox.
const DIAL: Duration = Duration::from_secs(30);

/// The most connections that are forwarded at a time for one client, including those of which only one stream
/// is open: half of the streams that it may have. A connection that the client resets counts until its dial
/// or its wait is over, so resetting does not make room for more.
const MOST: usize = MAX_STREAMS / 2;

/// While as many refused streams wait for the client to read, no stream that it opens is accepted. Streams that are
/// refused because they have waited too long for their second one come on top, at most [`MOST`].
const REFUSALS: usize = 16;

/// The longest request id of a connection, in bytes. Real clients use consecutive numbers.
const LONGEST_REQUEST: usize = 64;

/// The streams of one forwarded connection.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) port: u16,
    pub(crate) error: Outbound,
    pub(crate) inbound: Inbound,
    pub(crate) outbound: Outbound,
}

/// Pairs whose second stream is not open yet, by request id.
#[derive(Debug, Default)]
struct Halves(HashMap<Request, Half>);

/// Identifies the forwarded connection of a stream.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Request {
    /// The request id that the client sends, of at most [`LONGEST_REQUEST`] bytes.
    Named(Box<str>),
    /// The id of the error stream. Old clients send no request id, and open the error stream right before the
    /// data stream.
    Unnamed(u32),
}

/// The result of a stream that the client has opened.
#[derive(Debug)]
enum Added {
    /// It completes a pair.
    Pair(Pair),
    /// It waits for the second stream of its pair.
    Half,
    Refused(Refused),
}

/// A stream that is to be reset; an error stream carries the reason first.
#[derive(Debug)]
struct Refused {
    outbound: Outbound,
    why: Option<String>,
}

/// A stream that waits for the second one of its pair.
#[derive(Debug)]
struct Half {
    ends: Ends,
    until: Instant,
}

/// The part of a stream that is kept. Its headers are dropped.
#[derive(Debug)]
enum Ends {
    Error(Outbound),
    Data {
        port: u16,
        inbound: Inbound,
        outbound: Outbound,
    },
}

/// Serves the pairs that the client opens until `end` is cancelled. A stream whose second one is not opened
/// within `limit` is reset.
pub(crate) async fn run(
    incoming: mpsc::Receiver<Incoming>,
    dial: Arc<dyn Dial>,
    limit: Duration,
    end: &CancellationToken,
) {
    tokio::select! {
        () = serve(incoming, &*dial, limit) => {}
        () = end.cancelled() => {}
    }
}

/// No arm of the loop waits for anything: the futures of the two sets are polled only between the arms. The
/// writer's queue gives its places in the order in which they were asked for, so an arm that waited for one
/// would wait for a forward that nobody polls.
async fn serve(mut incoming: mpsc::Receiver<Incoming>, dial: &dyn Dial, limit: Duration) {
    let mut halves = Halves::default();
    let mut forwards = FuturesUnordered::new();
    let mut refusals = FuturesUnordered::new();
    loop {
        let late = halves.0.values().map(|half| half.until).min();
        tokio::select! {
            stream = incoming.recv(), if refusals.len() < REFUSALS => {
                let Some(stream) = stream else { return };
                let full = halves.0.len() + forwards.len() >= MOST;
                match halves.add(stream, full, limit) {
                    Added::Pair(pair) => forwards.push(forward(pair, dial)),
                    Added::Half => {}
                    Added::Refused(refused) => refusals.push(refused.reset()),
                }
            }
            Some(()) = forwards.next() => {}
            Some(()) = refusals.next() => {}
            () = sleep_until(late.unwrap_or_else(Instant::now)), if late.is_some() => {
                refusals.extend(halves.expire().map(Refused::reset));
            }
        }
    }
}

/// Dials, and copies each direction to its end, until both have ended or the client resets the stream.
pub(crate) async fn forward(pair: Pair, dial: &dyn Dial) {
    let Pair {
        port,
        mut error,
        mut inbound,
        mut outbound,
    } = pair;
    let dialled = timeout(DIAL, dial.dial(port)).await;
    let refusal = match dialled {
        Ok(Ok(connection)) => {
            return carry(connection, port, error, &mut inbound, &mut outbound).await;
        }
        Ok(Err(refusal)) => refusal.to_string(),
        Err(_) => format!("no answer within {} s", DIAL.as_secs()),
    };
    text(&mut error, format!("cannot forward port {port}: {refusal}")).await;
    error.finish().await;
    outbound.reset().await;
}

async fn carry(
    connection: Connection,
    port: u16,
    mut error: Outbound,
    inbound: &mut Inbound,
    outbound: &mut Outbound,
) {
    let Connection { mut input, output } = connection;
    {
        let up = async {
            match inward(inbound, &mut input).await {
                Ok(()) => false,
                Err(CopyError::Gone(_)) => true,
                Err(CopyError::Io(error)) => {
                    debug!(%error, port, "forwarded connection accepts no more input");
                    false
                }
            }
        };
        let down = downward(output, outbound, &mut error, port);
        let mut up = pin!(up);
        let mut down = pin!(down);
        // Both directions are copied to their ends, unless the client resets the stream.
        tokio::select! {
            gone = &mut up => if !gone { down.await; },
            gone = &mut down => if !gone { up.await; },
        }
    }
    outbound.reset().await;
    error.finish().await;
}

/// Copies what the port sends, and ends both streams to the client. Returns true if the client has reset the
/// stream.
async fn downward(
    output: Output,
    outbound: &mut Outbound,
    error: &mut Outbound,
    port: u16,
) -> bool {
    match outward(output, outbound, pending()).await {
        Ok(()) => {}
        Err(CopyError::Gone(_)) => return true,
        Err(CopyError::Io(reason)) => {
            text(error, format!("forwarding port {port} failed: {reason}")).await
        }
    }
    outbound.finish().await;
    // Clients wait for the end of the error stream before they end their own data.
    error.finish().await;
    false
}

// === impl Halves ===

impl Halves {
    /// Adds a stream. If `full`, a stream that begins a new pair is refused.
    fn add(&mut self, stream: Incoming, full: bool, limit: Duration) -> Added {
        let id = stream.id;
        let (request, ends) = match read(stream) {
            Ok(read) => read,
            Err(outbound) => {
                debug!(stream = id, "stream is not of a forwarded connection");
                return Added::Refused(Refused {
                    outbound,
                    why: None,
                });
            }
        };
        let Some(half) = self.0.remove(&request) else {
            if full {
                return Added::Refused(
                    ends.refuse(format!("{MOST} connections are forwarded already")),
                );
            }
            self.0.insert(
                request,
                Half {
                    ends,
                    until: Instant::now() + limit,
                },
            );
            return Added::Half;
        };
        match (half.ends, ends) {
            (
                Ends::Error(error),
                Ends::Data {
                    port,
                    inbound,
                    outbound,
                },
            )
            | (
                Ends::Data {
                    port,
                    inbound,
                    outbound,
                },
                Ends::Error(error),
            ) => Added::Pair(Pair {
                port,
                error,
                inbound,
                outbound,
            }),
            (first @ Ends::Error(_), Ends::Error(outbound))
            | (first @ Ends::Data { .. }, Ends::Data { outbound, .. }) => {
                debug!(stream = id, "forwarded connection has this stream already");
                self.0.insert(
                    request,
                    Half {
                        ends: first,
                        until: half.until,
                    },
                );
                Added::Refused(Refused {
                    outbound,
                    why: None,
                })
            }
        }
    }

    /// Removes the streams that have waited for too long.
    fn expire(&mut self) -> impl Iterator<Item = Refused> {
        let now = Instant::now();
        let late = self.0.extract_if(move |_, half| half.until <= now);
        late.map(|(_, half)| {
            half.ends
                .refuse("the data stream did not come in time".to_owned())
        })
    }
}

// === impl Ends ===

impl Ends {
    /// Bytes that were received on the stream are dropped.
    fn refuse(self, why: String) -> Refused {
        match self {
            Self::Error(outbound) => Refused {
                outbound,
                why: Some(why),
            },
            Self::Data { outbound, .. } => Refused {
                outbound,
                why: None,
            },
        }
    }
}

// === impl Refused ===

impl Refused {
    /// Resets the stream. The reason does not wait for the client's window: a client that opens none would
    /// keep the stream.
    async fn reset(mut self) {
        if let Some(why) = self.why {
            self.outbound.send_what_fits(why.into()).await;
            self.outbound.finish().await;
        }
        self.outbound.reset().await;
    }
}

/// Determines the purpose of a stream. An invalid one is returned, to be reset.
fn read(stream: Incoming) -> Result<(Request, Ends), Outbound> {
    let Incoming {
        id,
        headers,
        inbound,
        outbound,
    } = stream;
    let header = |name| {
        headers
            .iter()
            .find(|header| header.0 == name)
            .map(|header| header.1.as_str())
    };
    let port = header("port").and_then(|port| port.parse::<NonZeroU16>().ok());
    let (Some(port), Some(kind)) = (port, header("streamtype")) else {
        return Err(outbound);
    };
    let (ends, error) = match kind {
        "error" => (Ends::Error(outbound), Some(id)),
        // A client without request ids opens the data stream right after the error stream; its ids are odd.
        "data" => (
            Ends::Data {
                port: port.get(),
                inbound,
                outbound,
            },
            id.checked_sub(2),
        ),
        _ => return Err(outbound),
    };
    let request = match header("requestid") {
        Some(name) if name.len() > LONGEST_REQUEST => None,
        Some(name) if !name.is_empty() => Some(Request::Named(name.into())),
        Some(_) | None => error.map(Request::Unnamed),
    };
    match (request, ends) {
        (Some(request), ends) => Ok((request, ends)),
        (None, Ends::Error(outbound) | Ends::Data { outbound, .. }) => Err(outbound),
    }
}
