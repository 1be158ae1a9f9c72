//! The client of Attach, for the daemon: one output stream of a container, across restarts of the logkeeper.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, BufReader, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

use crate::Error;
use crate::connection::{RESTART, RESTART_POLL, greet, talk};
use crate::format::Stream;
use crate::protocol::{Attached, FaultKind, Reply, Request};
use crate::wire;

/// One output stream of a container, from the moment of attaching on; it ends when the container is finished.
///
/// When the logkeeper ends, this reconnects for a few seconds to continue at the same offset. What a slow
/// reader has missed by then, or what the next logkeeper no longer has, is skipped silently: the log has it.
/// Reading is cancel-safe.
pub struct LiveOutput {
    target: AttachTarget,
    /// The offset of the next byte.
    offset: u64,
    state: State,
}

/// The stream to attach to.
#[derive(Debug, Clone)]
struct AttachTarget {
    socket: PathBuf,
    id: String,
    stream: Stream,
}

enum State {
    Open(BufReader<UnixStream>),
    /// The connection has ended: the logkeeper is asked whether the container is finished.
    Asking(Pin<Box<dyn Future<Output = Result<Connection, Error>> + Send>>),
    Ended,
}

type Connection = Option<(BufReader<UnixStream>, u64)>;

// === impl LiveOutput ===

impl LiveOutput {
    /// Attaches, for output from now on.
    pub(crate) async fn open(socket: PathBuf, id: String, stream: Stream) -> Result<Self, Error> {
        let asked = AttachTarget { socket, id, stream };
        let (connection, at) = asked.connect(None).await?;
        Ok(Self {
            target: asked,
            offset: at,
            state: State::Open(connection),
        })
    }
}

impl fmt::Debug for LiveOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveOutput")
            .field("asked", &self.target)
            .field("at", &self.offset)
            .finish_non_exhaustive()
    }
}

impl AsyncRead for LiveOutput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                State::Open(connection) => {
                    let before = buffer.filled().len();
                    // A broken connection and an ended one are handled alike.
                    let read = ready!(Pin::new(connection).poll_read(cx, buffer));
                    let len = buffer.filled().len() - before;
                    // A read into a full buffer reads nothing, which is no end.
                    if read.is_ok() && (len > 0 || buffer.remaining() == 0) {
                        this.offset += len as u64;
                        return Poll::Ready(Ok(()));
                    }
                    let asked = this.target.clone();
                    let at = this.offset;
                    this.state = State::Asking(Box::pin(async move { asked.resume(at).await }));
                }
                State::Asking(answer) => match ready!(answer.as_mut().poll(cx)) {
                    Ok(Some((connection, at))) => {
                        this.offset = at;
                        this.state = State::Open(connection);
                    }
                    Ok(None) => this.state = State::Ended,
                    Err(error) => {
                        this.state = State::Ended;
                        return Poll::Ready(Err(io::Error::other(error)));
                    }
                },
                State::Ended => return Poll::Ready(Ok(())),
            }
        }
    }
}

// === impl AttachTarget ===

impl AttachTarget {
    async fn connect(&self, from: Option<u64>) -> Result<(BufReader<UnixStream>, u64), Error> {
        const OP: &str = "attach";
        let request = Request::Attach {
            id: self.id.clone(),
            stream: self.stream,
            from,
        };
        let line = wire::encode(&request).map_err(|source| Error::Encoding { op: OP, source })?;
        let (mut connection, _welcome) = greet(&self.socket).await?;
        let reply = talk(&mut connection, &line)
            .await
            .map_err(|source| Error::Unavailable {
                socket: self.socket.clone(),
                source,
            })?;
        match wire::decode(&reply).map_err(|source| Error::Encoding { op: OP, source })? {
            Reply::Ok(Attached { from }) => Ok((connection, from)),
            Reply::Error(fault) => Err(Error::Refused { op: OP, fault }),
        }
    }

    /// Continues at this offset; `None` if the container is finished. A logkeeper that does not listen may be
    /// restarting.
    async fn resume(&self, at: u64) -> Result<Connection, Error> {
        let began = Instant::now();
        loop {
            match self.connect(Some(at)).await {
                Ok(connection) => return Ok(Some(connection)),
                // The container is finished: the output had ended.
                Err(Error::Refused { fault, .. }) if fault.kind == FaultKind::NotFound => {
                    return Ok(None);
                }
                Err(Error::Unavailable { .. }) if began.elapsed() < RESTART => {
                    sleep(RESTART_POLL).await
                }
                Err(error) => return Err(error),
            }
        }
    }
}
