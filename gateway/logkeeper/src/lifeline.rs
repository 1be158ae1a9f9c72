//! The client of the socket holder, for the daemon: a connection over which sockets are handed to the
//! logkeeper.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::UnixStream;

use crate::Error;
use crate::connection::{answer, greet, limited, talk};
use crate::passing;
use crate::protocol::{Done, Request};
use crate::wire;

/// A connection over which sockets are handed to the logkeeper. When it breaks because this process was
/// killed, the logkeeper keeps the sockets open for a while. Before it is dropped in an orderly shutdown,
/// [`Lifeline::release`] should be called.
#[derive(Debug)]
pub struct Lifeline {
    socket: PathBuf,
    connection: BufReader<UnixStream>,
}

// === impl Lifeline ===

impl Lifeline {
    /// Connects to the logkeeper at `socket`. Cancel-safe.
    ///
    /// # Errors
    /// Those of [`crate::Client::hello`].
    pub async fn connect(socket: &Path) -> Result<Self, Error> {
        let (connection, _welcome) = limited("hello", greet(socket)).await??;
        Ok(Self {
            socket: socket.to_owned(),
            connection,
        })
    }

    /// Makes the logkeeper keep a duplicate of this socket open, in addition to those it holds already. With
    /// `one_call`, the logkeeper closes it soon after the other end has answered a daemon that is gone;
    /// without, only after a while. Not cancel-safe: drop the lifeline then.
    ///
    /// # Errors
    /// [`Error::Refused`]: `Busy` when it holds too many sockets, `InvalidArgument` by a logkeeper that does
    /// not support this. Also those of [`crate::Client::hello`].
    pub async fn hold(&mut self, held: BorrowedFd<'_>, one_call: bool) -> Result<(), Error> {
        self.ask("hold", &Request::Hold { one_call }).await?;
        let unavailable = |source| Error::Unavailable {
            socket: self.socket.clone(),
            source,
        };
        let sent = limited("hold", passing::send(self.connection.get_ref(), held)).await?;
        sent.map_err(unavailable)?;
        let mut line = Vec::new();
        let read = limited("hold", wire::read_line(&mut self.connection, &mut line)).await?;
        if !read.map_err(unavailable)? {
            return Err(unavailable(io::ErrorKind::UnexpectedEof.into()));
        }
        answer("hold", &line).map(|Done {}| ())
    }

    /// Makes the logkeeper close all sockets that it was handed over this lifeline. Not cancel-safe: drop the
    /// lifeline then.
    ///
    /// # Errors
    /// Those of [`crate::Client::hello`].
    pub async fn release(&mut self) -> Result<(), Error> {
        self.ask("release", &Request::Release).await
    }

    /// Returns when the connection to the logkeeper has ended. Cancel-safe.
    pub async fn broken(&mut self) {
        // The logkeeper sends nothing unasked, so anything that can be read here is an end.
        let _ = self.connection.read(&mut [0]).await;
    }

    async fn ask(&mut self, op: &'static str, request: &Request) -> Result<(), Error> {
        let line = wire::encode(request).map_err(|source| Error::Encoding { op, source })?;
        let reply = limited(op, talk(&mut self.connection, &line)).await?;
        let reply = reply.map_err(|source| Error::Unavailable {
            socket: self.socket.clone(),
            source,
        })?;
        answer(op, &reply).map(|Done {}| ())
    }
}
