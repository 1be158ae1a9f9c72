//! The client of the descriptor store, for the daemon.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::Error;
use crate::connection::{answer, greet, limited, talk};
use crate::passing;
use crate::protocol::{DescriptorEntry, Descriptors, Done, FaultKind, Request, Taken};
use crate::wire;

/// A connection over which descriptors are stored in the logkeeper. What was put over it stays stored while the
/// connection exists, and for a minute after that.
#[derive(Debug)]
pub struct StoreClient {
    socket: PathBuf,
    /// The id of the logkeeper's process.
    process: u32,
    connection: BufReader<UnixStream>,
}

/// A descriptor that was taken, and the note with which it was put.
#[derive(Debug)]
pub struct TakenDescriptor {
    /// A duplicate of the stored descriptor.
    pub descriptor: OwnedFd,
    /// Text of whoever put it.
    pub note: String,
}

// === impl StoreClient ===

impl StoreClient {
    /// Connects to the logkeeper at `socket`; `None` if that is of a version that stores no descriptors. Cancel-safe.
    ///
    /// # Errors
    /// Those of [`crate::Client::hello`].
    pub async fn connect(socket: &Path) -> Result<Option<Self>, Error> {
        let (connection, welcome) = limited("hello", greet(socket)).await??;
        Ok((welcome.descriptors > 0).then(|| Self {
            socket: socket.to_owned(),
            process: welcome.pid,
            connection,
        }))
    }

    /// The id of the logkeeper's process.
    #[must_use]
    pub const fn process(&self) -> u32 {
        self.process
    }

    /// Stores a duplicate of a socket, in the place of the one of this name. Not cancel-safe: drop the client then.
    ///
    /// # Errors
    /// [`Error::Refused`]: `Busy` when too many descriptors are stored, `InvalidArgument` for a name, note or
    /// descriptor that cannot be stored. Also those of [`crate::Client::hello`].
    pub async fn put(
        &mut self,
        name: &str,
        note: &str,
        descriptor: BorrowedFd<'_>,
    ) -> Result<(), Error> {
        let request = Request::Put {
            name: name.to_owned(),
            note: note.to_owned(),
        };
        let Done {} = self.ask("put", &request).await?;
        let sent = limited("put", passing::send(self.connection.get_ref(), descriptor)).await?;
        sent.map_err(|source| self.unavailable(source))?;
        let Done {} = self.read("put").await?;
        Ok(())
    }

    /// Takes a duplicate of a stored descriptor, which stays stored; `None` if there is none of this name. Not
    /// cancel-safe: drop the client then.
    ///
    /// # Errors
    /// Those of [`crate::Client::hello`].
    pub async fn take(&mut self, name: &str) -> Result<Option<TakenDescriptor>, Error> {
        let request = Request::Take {
            name: name.to_owned(),
        };
        let note = match self.ask("take", &request).await {
            Ok(Taken { note }) => note,
            Err(Error::Refused { fault, .. }) if fault.kind == FaultKind::NotFound => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        // The answer was read, so the buffer is empty, and the logkeeper may send the descriptor.
        let ready = limited("take", self.connection.write_all(b"\n")).await?;
        ready.map_err(|source| self.unavailable(source))?;
        let received = limited("take", passing::receive(self.connection.get_ref())).await?;
        let descriptor = received
            .and_then(|descriptor| {
                descriptor.ok_or_else(|| {
                    io::Error::new(
                        io::ErrorKind::InvalidData,
                        "no descriptor came with the byte",
                    )
                })
            })
            .map_err(|source| self.unavailable(source))?;
        let Done {} = self.read("take").await?;
        Ok(Some(TakenDescriptor { descriptor, note }))
    }

    /// Lists the stored descriptors.
    ///
    /// # Errors
    /// Those of [`crate::Client::hello`].
    pub async fn list(&mut self) -> Result<Vec<DescriptorEntry>, Error> {
        let Descriptors { entries } = self.ask("descriptors", &Request::Descriptors).await?;
        Ok(entries)
    }

    /// Returns when the connection to the logkeeper has ended. Cancel-safe.
    pub async fn broken(&mut self) {
        // The logkeeper sends nothing unasked, so anything that can be read here is an end.
        let _ = self.connection.read(&mut [0]).await;
    }

    async fn ask<T: DeserializeOwned>(
        &mut self,
        op: &'static str,
        request: &Request,
    ) -> Result<T, Error> {
        let line = wire::encode(request).map_err(|source| Error::Encoding { op, source })?;
        let reply = limited(op, talk(&mut self.connection, &line)).await?;
        let reply = reply.map_err(|source| self.unavailable(source))?;
        answer(op, &reply)
    }

    async fn read<T: DeserializeOwned>(&mut self, op: &'static str) -> Result<T, Error> {
        let mut line = Vec::new();
        let read = limited(op, wire::read_line(&mut self.connection, &mut line)).await?;
        match read {
            Ok(true) => answer(op, &line),
            Ok(false) => Err(self.unavailable(io::ErrorKind::UnexpectedEof.into())),
            Err(source) => Err(self.unavailable(source)),
        }
    }

    fn unavailable(&self, source: io::Error) -> Error {
        Error::Unavailable {
            socket: self.socket.clone(),
            source,
        }
    }
}
