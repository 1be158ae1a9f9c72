//! Port-forward: one dialled connection for each pair of streams, any number of them side by side.

use std::collections::HashMap;
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
use crate::spdy::Incoming;

/// How long a port of a sandbox may take to answer.
const DIAL: Duration = Duration::from_secs(30);

/// The streams of one forwarded connection.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) port: u16,
    pub(crate) error: Outbound,
    pub(crate) inbound: Inbound,
    pub(crate) outbound: Outbound,
}

/// Pairs whose other stream has not come yet, by request.
#[derive(Debug, Default)]
struct Halves(HashMap<String, Half>);

#[derive(Debug)]
struct Half {
    stream: Incoming,
    port: u16,
    kind: Kind,
    until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Error,
    Data,
}

/// Serves the pairs that the client opens until `end` is cancelled. A stream whose other one does not come within
/// `limit` is reset.
pub(crate) async fn run(
    mut incoming: mpsc::Receiver<Incoming>,
    dial: Arc<dyn Dial>,
    limit: Duration,
    end: &CancellationToken,
) {
    let mut halves = Halves::default();
    let mut forwards = FuturesUnordered::new();
    loop {
        let late = halves.0.values().map(|half| half.until).min();
        tokio::select! {
            () = end.cancelled() => return,
            Some(stream) = incoming.recv() => {
                if let Some(pair) = halves.add(stream, limit).await {
                    forwards.push(forward(pair, &*dial));
                }
            }
            Some(()) = forwards.next() => {}
            () = sleep_until(late.unwrap_or_else(Instant::now)), if late.is_some() => halves.expire().await,
        }
    }
}

/// Dials and carries both directions, each to its own end, until both have ended or the client resets the stream.
pub(crate) async fn forward(pair: Pair, dial: &dyn Dial) {
    let Pair { port, mut error, mut inbound, mut outbound } = pair;
    let dialled = timeout(DIAL, dial.dial(port)).await;
    let refusal = match dialled {
        Ok(Ok(connection)) => return carry(connection, port, error, &mut inbound, &mut outbound).await,
        Ok(Err(refusal)) => refusal.0,
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
                    debug!(%error, port, "forwarded connection takes no more");
                    false
                }
            }
        };
        let down = downward(output, outbound, &mut error, port);
        let (mut up, mut down) = (pin!(up), pin!(down));
        // Both to their ends, unless the client has reset the stream.
        tokio::select! {
            gone = &mut up => if !gone { down.await; },
            gone = &mut down => if !gone { up.await; },
        }
    }
    outbound.reset().await;
    error.finish().await;
}

/// Carries what the port sends, and ends both streams towards the client. True if the client has reset the stream.
async fn downward(output: Output, outbound: &mut Outbound, error: &mut Outbound, port: u16) -> bool {
    match outward(output, outbound).await {
        Ok(()) => {}
        Err(CopyError::Gone(_)) => return true,
        Err(CopyError::Io(reason)) => text(error, format!("forwarding port {port} failed: {reason}")).await,
    }
    outbound.finish().await;
    // Clients wait for this before they say that they send nothing more.
    error.finish().await;
    false
}

// === impl Halves ===

impl Halves {
    /// Takes a stream; gives the pair that is whole with it.
    async fn add(&mut self, mut stream: Incoming, limit: Duration) -> Option<Pair> {
        let Some((request, port, kind)) = read(&stream) else {
            debug!(stream = stream.id, "stream is not of a forwarded connection");
            stream.outbound.reset().await;
            return None;
        };
        match self.0.remove(&request) {
            None => {
                self.0.insert(request, Half { stream, port, kind, until: Instant::now() + limit });
                None
            }
            Some(half) if half.kind == kind => {
                debug!(stream = stream.id, "forwarded connection has this stream already");
                self.0.insert(request, half);
                stream.outbound.reset().await;
                None
            }
            Some(half) => {
                let (data, port, error) = match kind {
                    Kind::Data => (stream, port, half.stream),
                    Kind::Error => (half.stream, half.port, stream),
                };
                let Incoming { inbound, outbound, .. } = data;
                Some(Pair { port, error: error.outbound, inbound, outbound })
            }
        }
    }

    /// Resets the streams that have waited for too long.
    async fn expire(&mut self) {
        let now = Instant::now();
        for (_, mut half) in self.0.extract_if(|_, half| half.until <= now) {
            if half.kind == Kind::Error {
                text(&mut half.stream.outbound, "the data stream did not come in time".to_owned()).await;
                half.stream.outbound.finish().await;
            }
            half.stream.outbound.reset().await;
        }
    }
}

/// What a stream is for: request, port and kind.
fn read(stream: &Incoming) -> Option<(String, u16, Kind)> {
    let header = |name| stream.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str());
    let port = header("port")?.parse::<NonZeroU16>().ok()?;
    let kind = match header("streamtype")? {
        "error" => Kind::Error,
        "data" => Kind::Data,
        _ => return None,
    };
    let request = match (header("requestid"), kind) {
        (Some(request), _) if !request.is_empty() => request.to_owned(),
        // Old clients number nothing, and open the error stream right before the data stream.
        (_, Kind::Error) => stream.id.to_string(),
        (_, Kind::Data) => stream.id.checked_sub(2)?.to_string(),
    };
    Some((request, port.get(), kind))
}
