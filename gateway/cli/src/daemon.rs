//! Queries to the daemon over its admin socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use switchyard_linux::services::status_command;
use switchyard_socket::channel::{self, RequestError, UpgradeAnswer, UpgradedConnection};

use crate::admin_socket;
use crate::output::Format;
use crate::sources::own_sources;

/// Time for the daemon to answer: longer than any request may take there.
const LIMIT: Duration = Duration::from_secs(35);

/// Time for the successor of a daemon that has ended to listen: longer than a restart takes.
pub(super) const AWAY_LIMIT: Duration = Duration::from_secs(10);

/// Advice after the end of the daemon during a request that changes nothing.
const AGAIN: &str = "run the command again";

/// Advice after it during a request that changes something.
const PERHAPS_DONE: &str = "what was asked for may be done or not; run the command again";

/// The daemon.
#[derive(Debug, Args)]
pub(super) struct Socket {
    /// The daemon's admin socket; that of the running daemon, or else the configured one.
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "SWITCHYARD_ADMIN_SOCKET"
    )]
    socket: Option<PathBuf>,
}

impl Socket {
    /// The path.
    fn path(&self) -> PathBuf {
        self.socket
            .clone()
            .unwrap_or_else(|| admin_socket::find(&own_sources()))
    }
}

/// The daemon, and the output format.
#[derive(Debug, Args)]
pub(super) struct Target {
    #[command(flatten)]
    pub(super) socket: Socket,
    /// Text or JSON.
    #[arg(long, short, global = true, value_enum, default_value_t)]
    pub(super) output: Format,
}

/// Reason why the daemon's answer cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(super) enum DaemonError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the daemon did not answer {0} within {LIMIT:?}")]
    Deadline(String),
    #[error(
        "no daemon runs that could answer {0}, and none has started within {AWAY_LIMIT:?}: see '{status}'",
        status = status_command("switchyard")
    )]
    Away(String),
    #[error("the daemon ended before it had answered {path}: {advice}")]
    Ended {
        path: String,
        /// Advice for the user.
        advice: &'static str,
        #[source]
        source: RequestError,
    },
    #[error("{0}")]
    Reload(String),
    #[error("{0}")]
    Restart(String),
    /// The daemon's own words, which say what is wrong.
    #[error("{0}")]
    Message(String),
    #[error("{0}")]
    Forbidden(String),
    #[error("the node was not ready within {limit:?}")]
    NotReady {
        limit: Duration,
        #[source]
        source: Box<DaemonError>,
    },
    #[error("the daemon answered {path} with {status}: {text}")]
    Refused {
        path: String,
        status: StatusCode,
        text: String,
    },
    #[error("cannot parse the daemon's answer to {path}: is the daemon of the same version?")]
    Answer {
        path: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

/// The content of a page of the daemon.
pub(super) async fn ask<T: DeserializeOwned>(
    target: &Target,
    path: &str,
) -> Result<T, DaemonError> {
    ask_socket(&target.socket, path).await
}

/// The content of a page of the daemon at a socket.
pub(super) async fn ask_socket<T: DeserializeOwned>(
    socket: &Socket,
    path: &str,
) -> Result<T, DaemonError> {
    let body = send(socket, Method::GET, path).await?;
    parse(path, &body)
}

/// Parses the content of a page.
pub(super) fn parse<T: DeserializeOwned>(path: &str, body: &[u8]) -> Result<T, DaemonError> {
    serde_json::from_slice(body).map_err(|source| DaemonError::Answer {
        path: path.to_owned(),
        source,
    })
}

/// Sends a request to the daemon and returns the body; any status but success is an error.
pub(super) async fn send(
    socket: &Socket,
    method: Method,
    path: &str,
) -> Result<Bytes, DaemonError> {
    Ok(request(socket, method, path).await?.1)
}

/// Posts JSON to the daemon, and returns the status and the body; any status but success is an error.
pub(super) async fn post(
    socket: &Socket,
    path: &str,
    body: &impl Serialize,
) -> Result<(StatusCode, Bytes), DaemonError> {
    let body = serde_json::to_vec(body).map_err(io::Error::from)?;
    let socket = socket.path();
    let sent = channel::post_json(&socket, path, body.into());
    exchange(&socket, path, PERHAPS_DONE, sent).await
}

/// Sends a request without a body, and returns the status and the body; any status but success is an error.
pub(super) async fn request(
    socket: &Socket,
    method: Method,
    path: &str,
) -> Result<(StatusCode, Bytes), DaemonError> {
    let socket = socket.path();
    let advice = if method.is_safe() {
        AGAIN
    } else {
        PERHAPS_DONE
    };
    let sent = channel::request(&socket, method, path);
    exchange(&socket, path, advice, sent).await
}

/// POSTs JSON to the daemon, and returns the connection in another protocol; any other answer is an error.
pub(super) async fn upgrade(
    socket: &Socket,
    path: &str,
    protocol: &'static str,
    body: &impl Serialize,
) -> Result<UpgradedConnection, DaemonError> {
    let body = serde_json::to_vec(body).map_err(io::Error::from)?;
    let socket = socket.path();
    let sent = channel::upgrade(&socket, path, protocol, body.into());
    match answered(&socket, path, PERHAPS_DONE, sent).await? {
        UpgradeAnswer::Upgraded(connection) => Ok(connection),
        UpgradeAnswer::Answered(status, body) => Err(refused(path, status, &body)),
    }
}

/// As [`answered`]; any status but success is an error.
async fn exchange(
    socket: &Path,
    path: &str,
    advice: &'static str,
    sent: impl Future<Output = Result<(StatusCode, Bytes), RequestError>>,
) -> Result<(StatusCode, Bytes), DaemonError> {
    let (status, body) = answered(socket, path, advice, sent).await?;
    if status.is_success() {
        Ok((status, body))
    } else {
        Err(refused(path, status, &body))
    }
}

/// Waits for a daemon and for its answer; `advice` is for one that ends meanwhile.
async fn answered<T>(
    socket: &Path,
    path: &str,
    advice: &'static str,
    sent: impl Future<Output = Result<T, RequestError>>,
) -> Result<T, DaemonError> {
    if !channel::wait_attended(socket, AWAY_LIMIT).await {
        return Err(DaemonError::Away(path.to_owned()));
    }
    let answer = tokio::time::timeout(LIMIT, sent).await;
    let answer = answer.map_err(|_| DaemonError::Deadline(path.to_owned()))?;
    answer.map_err(|error| match error {
        source @ RequestError::Ended { .. } => DaemonError::Ended {
            path: path.to_owned(),
            advice,
            source,
        },
        other @ (RequestError::Connect { .. }
        | RequestError::Http { .. }
        | RequestError::TooLong { .. }) => DaemonError::Request(other),
    })
}

/// The error of an answer without success.
fn refused(path: &str, status: StatusCode, body: &[u8]) -> DaemonError {
    let text = String::from_utf8_lossy(body).trim().to_owned();
    if status == StatusCode::FORBIDDEN {
        DaemonError::Forbidden(text)
    } else {
        DaemonError::Refused {
            path: path.to_owned(),
            status,
            text,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tempfile::TempDir;
    use tokio::io::AsyncReadExt;
    use tokio::net::UnixListener;

    use super::*;

    /// A daemon that ends before it answers a request.
    pub(crate) struct EndingDaemon {
        listener: UnixListener,
        dir: TempDir,
    }

    impl EndingDaemon {
        pub(crate) fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let listener = UnixListener::bind(dir.path().join("admin.sock")).unwrap();
            Self { listener, dir }
        }

        pub(crate) fn socket(&self) -> Socket {
            Socket {
                socket: Some(self.dir.path().join("admin.sock")),
            }
        }

        /// Ends when a request has come.
        pub(crate) async fn end(self) {
            // The first connection only looks whether somebody listens.
            drop(self.listener.accept().await.unwrap());
            let (mut request, _) = self.listener.accept().await.unwrap();
            assert!(request.read(&mut [0; 1024]).await.unwrap() > 0);
        }
    }

    #[tokio::test]
    async fn end_of_the_daemon_during_a_request_is_named_with_what_to_do() {
        for (method, advice) in [
            (Method::GET, AGAIN),
            (Method::POST, PERHAPS_DONE),
            (Method::DELETE, PERHAPS_DONE),
        ] {
            let daemon = EndingDaemon::new();
            let socket = daemon.socket();
            let (answer, ()) = tokio::join!(send(&socket, method, "/v1/a"), daemon.end());
            let text = answer.unwrap_err().to_string();
            let begin = "the daemon ended before it had answered /v1/a: ";
            assert_eq!(text, format!("{begin}{advice}"));
        }
    }
}
