//! The client of the control socket, for the daemon: typed calls over a few cached connections.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::Error;
use crate::connection::{RESTART, RESTART_POLL, greet, talk};
use crate::format::Stream;
use crate::output::LiveOutput;
use crate::protocol::{
    Done, Entry, Finished, LogSpec, MAX_DRAIN_MS, Page, Reply, Request, Stats, Welcome,
};
use crate::wire;

/// The default timeout of a call. For a finish, its drain time is added.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(10);

/// Maximum number of concurrent calls. Further calls wait, and the wait counts towards their timeout.
const CALLS: usize = 8;

/// A client of one logkeeper.
///
/// Connections are made when needed, and again after the logkeeper was restarted. A call whose connection
/// breaks is repeated on a new one, which is safe because every request that the client sends is idempotent.
/// While the logkeeper does not listen, calls wait, but all together no longer than a restart may take. All
/// calls are cancel-safe for the client: dropping a call closes its connection, though the logkeeper may
/// still carry it out.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    limit: Duration,
    calls: Semaphore,
    idle: Mutex<Vec<BufReader<UnixStream>>>,
    /// Since when the logkeeper does not listen.
    absent: Mutex<Option<Instant>>,
}

// === impl Client ===

impl Client {
    /// A client that will connect to this socket.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self::with_limit(socket, DEFAULT_LIMIT)
    }

    /// A client whose calls take no longer than `limit`, not counting the drain time of a finish.
    pub fn with_limit(socket: impl Into<PathBuf>, limit: Duration) -> Self {
        Self {
            socket: socket.into(),
            limit,
            calls: Semaphore::new(CALLS),
            idle: Mutex::default(),
            absent: Mutex::default(),
        }
    }

    /// The control socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Reads the logkeeper's protocol version and process id, over a new connection.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Deadline`], or [`Error::Refused`] if the logkeeper speaks another
    /// version.
    pub async fn hello(&self) -> Result<Welcome, Error> {
        let connect = async { self.connect().await.map(|(_, welcome)| welcome) };
        let limited = timeout(self.limit, connect).await;
        limited.map_err(|_elapsed| Error::Deadline {
            op: "hello",
            limit: self.limit,
        })?
    }

    /// Starts to log a container. The FIFOs must exist. The call must return before the container is created,
    /// so that no writer waits for a reader. Idempotent.
    ///
    /// # Errors
    /// [`Error::Refused`]: `Conflict` if the id is open with other parameters, `Busy` while it is being
    /// finished, `InvalidArgument`, also if there is no regular file at the path of the log, `Io`. Also those of
    /// [`Client::hello`].
    pub async fn open(&self, spec: &LogSpec) -> Result<(), Error> {
        self.call("open", &Request::Open(spec.clone()), self.limit)
            .await
            .map(|Done {}| ())
    }

    /// Creates the log file again after it was renamed; CRI v1 `ReopenContainerLog`. Idempotent. If it is refused, the old
    /// file stays in use. If this fails otherwise or is dropped, either may be in use, as the answer may be on its way; but a
    /// reopen that was not carried out by then is not carried out later.
    ///
    /// # Errors
    /// [`Error::Refused`]: `NotFound`, `Busy`, `InvalidArgument` if there is no regular file at the path, `Io`. Also those
    /// of [`Client::hello`].
    pub async fn reopen(&self, id: &str) -> Result<(), Error> {
        self.call("reopen", &Request::Reopen { id: id.into() }, self.limit)
            .await
            .map(|Done {}| ())
    }

    /// Logs the remaining output of a container and forgets the container. Idempotent: returns zeros if the
    /// id is unknown.
    ///
    /// With a zero `drain`, the output ends with what the FIFOs contain now; otherwise it ends when all
    /// writers have closed them, or when `drain` (at most [`MAX_DRAIN_MS`]) is over. After containerd has
    /// deleted the task, all writers have closed them.
    ///
    /// # Errors
    /// [`Error::Refused`]: `Io`, `Busy`. Also those of [`Client::hello`].
    pub async fn finish(&self, id: &str, drain: Duration) -> Result<Finished, Error> {
        let drain_ms = u64::try_from(drain.as_millis())
            .unwrap_or(u64::MAX)
            .min(MAX_DRAIN_MS);
        let limit = self.limit + Duration::from_millis(drain_ms);
        self.call(
            "finish",
            &Request::Finish {
                id: id.into(),
                drain_ms,
            },
            limit,
        )
        .await
    }

    /// Forgets a container whose log is on a file system that hangs, without the rest of its output. Idempotent: returns
    /// zeros if the id is unknown.
    ///
    /// # Errors
    /// [`Error::Refused`]: `Busy` if the file system answers, so that the container can be finished, and while another
    /// call counts the rest of its output; `Io` if its files cannot be removed, which another call tries again;
    /// `InvalidArgument` by a logkeeper that does not support this. Also those of [`Client::hello`].
    pub async fn abandon(&self, id: &str) -> Result<Finished, Error> {
        self.call("abandon", &Request::Abandon { id: id.into() }, self.limit)
            .await
    }

    /// Attaches to one output stream of a container, from now on. The returned stream survives restarts of
    /// the logkeeper.
    ///
    /// # Errors
    /// [`Error::Refused`]: `NotFound`, `InvalidArgument` (the container has no such stream, or the logkeeper
    /// does not support attaching), `Busy` when too many clients are attached. Also those of
    /// [`Client::hello`].
    pub async fn attach(&self, id: &str, stream: Stream) -> Result<LiveOutput, Error> {
        let attached = timeout(
            self.limit,
            LiveOutput::open(self.socket.clone(), id.to_owned(), stream),
        )
        .await;
        attached.map_err(|_elapsed| Error::Deadline {
            op: "attach",
            limit: self.limit,
        })?
    }

    /// Lists all containers in the order of their ids; containers that are opened or finished meanwhile may
    /// be missing.
    ///
    /// # Errors
    /// As [`Client::hello`].
    pub async fn list(&self) -> Result<Vec<Entry>, Error> {
        let mut entries = Vec::new();
        let mut after = None;
        loop {
            let page: Page = self
                .call("list", &Request::List { after }, self.limit)
                .await?;
            entries.extend(page.entries);
            if page.next.is_none() {
                return Ok(entries);
            }
            after = page.next;
        }
    }

    /// Returns whether output of this container is still read, or is still to be logged.
    ///
    /// # Errors
    /// As [`Client::hello`].
    pub async fn keeps(&self, id: &str) -> Result<bool, Error> {
        // What precedes the id: the page after it begins with the container, or with those that are similar.
        let mut after = id.to_owned();
        after.pop();
        let page: Page = self
            .call("list", &Request::List { after: Some(after) }, self.limit)
            .await?;
        Ok(page.entries.iter().any(|entry| entry.id == id))
    }

    /// Reads the sums over all containers.
    ///
    /// # Errors
    /// As [`Client::hello`].
    pub async fn stats(&self) -> Result<Stats, Error> {
        self.call("stats", &Request::Stats, self.limit).await
    }

    /// Ends the logkeeper; the next one recovers the containers.
    ///
    /// # Errors
    /// As [`Client::hello`].
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.call("shutdown", &Request::Shutdown, self.limit)
            .await
            .map(|Done {}| ())
    }

    async fn call<T: DeserializeOwned>(
        &self,
        op: &'static str,
        request: &Request,
        limit: Duration,
    ) -> Result<T, Error> {
        let line = wire::encode(request).map_err(|source| Error::Encoding { op, source })?;
        let answered = timeout(limit, async {
            let _turn = self
                .calls
                .acquire()
                .await
                .expect("the semaphore is never closed");
            self.exchange(&line).await
        });
        let reply = answered
            .await
            .map_err(|_elapsed| Error::Deadline { op, limit })??;
        match wire::decode(&reply).map_err(|source| Error::Encoding { op, source })? {
            Reply::Ok(body) => Ok(body),
            Reply::Error(fault) => Err(Error::Refused { op, fault }),
        }
    }

    /// Sends a line and reads one; the connection is reused only if both succeeded.
    async fn exchange(&self, line: &[u8]) -> Result<Vec<u8>, Error> {
        let idle = self.idle().pop();
        if let Some(mut connection) = idle {
            if let Ok(reply) = talk(&mut connection, line).await {
                *self.absent() = None;
                self.idle().push(connection);
                return Ok(reply);
            }
            // The logkeeper was restarted, so the other idle connections are broken too.
            self.idle().clear();
        }
        loop {
            let talked = async {
                let (mut connection, _welcome) = self.connect().await?;
                let reply = talk(&mut connection, line)
                    .await
                    .map_err(|source| self.unavailable(source))?;
                Ok((connection, reply))
            };
            match talked.await {
                Ok((connection, reply)) => {
                    *self.absent() = None;
                    self.idle().push(connection);
                    return Ok(reply);
                }
                Err(error @ Error::Unavailable { .. }) if self.may_return() => {
                    tracing::debug!(%error, "waiting for the logkeeper");
                    sleep(RESTART_POLL).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns whether a logkeeper that does not listen may still be restarting.
    fn may_return(&self) -> bool {
        self.absent().get_or_insert_with(Instant::now).elapsed() < RESTART
    }

    async fn connect(&self) -> Result<(BufReader<UnixStream>, Welcome), Error> {
        greet(&self.socket).await
    }

    fn unavailable(&self, source: io::Error) -> Error {
        Error::Unavailable {
            socket: self.socket.clone(),
            source,
        }
    }

    fn absent(&self) -> parking_lot::MutexGuard<'_, Option<Instant>> {
        self.absent.lock()
    }

    fn idle(&self) -> parking_lot::MutexGuard<'_, Vec<BufReader<UnixStream>>> {
        self.idle.lock()
    }
}
