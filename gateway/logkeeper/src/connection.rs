//! A connection to the control socket, for the daemon: how it begins, and one request on it.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::Error;
use crate::protocol::{Reply, Request, VERSION, Welcome};
use crate::wire;

/// Time for which calls wait for a logkeeper that does not listen, as after a kill until its restart.
pub(crate) const RESTART: Duration = Duration::from_secs(5);

/// Pause between two attempts to connect while the logkeeper does not listen.
pub(crate) const RESTART_POLL: Duration = Duration::from_millis(20);

/// Time for the logkeeper to answer on a connection that hands descriptors over or takes them.
const LIMIT: Duration = Duration::from_secs(10);

/// Connects and sends Hello.
pub(crate) async fn greet(socket: &Path) -> Result<(BufReader<UnixStream>, Welcome), Error> {
    let unavailable = |source| Error::Unavailable {
        socket: socket.to_owned(),
        source,
    };
    let encoding = |source| Error::Encoding {
        op: "hello",
        source,
    };
    let stream = UnixStream::connect(socket).await.map_err(unavailable)?;
    let mut connection = BufReader::new(stream);
    let hello = wire::encode(&Request::Hello { version: VERSION }).map_err(encoding)?;
    let reply = talk(&mut connection, &hello).await.map_err(unavailable)?;
    match wire::decode(&reply).map_err(encoding)? {
        Reply::Ok(welcome) => Ok((connection, welcome)),
        Reply::Error(fault) => Err(Error::Refused { op: "hello", fault }),
    }
}

/// Sends a line and reads one.
pub(crate) async fn talk(
    connection: &mut BufReader<UnixStream>,
    line: &[u8],
) -> io::Result<Vec<u8>> {
    wire::write_line(connection, line).await?;
    let mut reply = Vec::new();
    if wire::read_line(connection, &mut reply).await? {
        Ok(reply)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Waits for a step of a call, for a limited time.
pub(crate) async fn limited<T>(
    op: &'static str,
    work: impl Future<Output = T>,
) -> Result<T, Error> {
    timeout(LIMIT, work)
        .await
        .map_err(|_elapsed| Error::Deadline { op, limit: LIMIT })
}

/// Decodes an answer.
pub(crate) fn answer<T: DeserializeOwned>(op: &'static str, line: &[u8]) -> Result<T, Error> {
    match wire::decode(line).map_err(|source| Error::Encoding { op, source })? {
        Reply::Ok(body) => Ok(body),
        Reply::Error(fault) => Err(Error::Refused { op, fault }),
    }
}
