//! Clients over unix sockets: a gRPC channel, and single HTTP requests.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, test_kill_process};
use switchyard_linux::process::Stat;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

/// Pause between two looks whether a process listens at a socket.
const LOOK: Duration = Duration::from_millis(100);

/// Reason why a request over a unix socket got no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The socket cannot be connected.
    #[error("cannot connect to {}: is the daemon running, and are you root, or in its admin.socket_group?", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The connection was closed before the answer was complete, as happens when the process ends.
    #[error("the connection on {} ended before it was answered", socket.display())]
    Ended {
        /// The socket.
        socket: PathBuf,
        /// The cause.
        #[source]
        source: hyper::Error,
    },
    /// The answer is none, or cannot be read.
    #[error("no answer on {}", socket.display())]
    Http {
        /// The socket.
        socket: PathBuf,
        /// The cause.
        #[source]
        source: hyper::Error,
    },
    /// The answer is longer than the caller accepts.
    #[error("the answer on {} has more than {max} bytes", socket.display())]
    TooLong {
        /// The socket.
        socket: PathBuf,
        /// Maximum size of an answer, in bytes.
        max: usize,
    },
}

/// A connection that is not HTTP any more.
pub type UpgradedConnection = TokioIo<Upgraded>;

/// The answer to a request that asks for another protocol.
#[derive(Debug)]
pub enum UpgradeAnswer {
    /// The server speaks it from now on.
    Upgraded(UpgradedConnection),
    /// The server has answered the request instead.
    Answered(StatusCode, Bytes),
}

/// Returns whether the process that listens at a socket exists. A listener of the daemon outlives it in the logkeeper, and
/// keeps clients waiting for the next daemon. One whose process cannot be seen, as from another PID namespace, counts as
/// existing.
///
/// # Errors
/// The socket cannot be connected.
pub async fn is_attended(socket: &Path) -> io::Result<bool> {
    is_attended_at(&UnixStream::connect(socket).await?)
}

/// Returns whether the process that listens at the other end of a connection exists, as [`is_attended`] does.
///
/// # Errors
/// The kernel does not say which process it is.
pub fn is_attended_at(stream: &UnixStream) -> io::Result<bool> {
    let pid = stream.peer_cred()?.pid().filter(|pid| *pid > 0);
    Ok(pid.is_none_or(exists))
}

/// Waits until a process listens at a socket which only the logkeeper keeps open, for `limit` at most, and returns whether
/// there is one. The next daemon may bind another socket there, as one of an older version does, and then nobody ever
/// answers those who have connected before. Returns true at once for a socket that cannot be connected: a request to it
/// reports why. Cancel-safe.
pub async fn wait_attended(socket: &Path, limit: Duration) -> bool {
    let attended = async {
        if !matches!(is_attended(socket).await, Ok(false)) {
            return;
        }
        while !matches!(is_attended(socket).await, Ok(true)) {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(limit, attended).await.is_ok()
}

/// Returns whether a process has this id and has not exited. Those of other users may be hidden in `/proc`.
fn exists(pid: i32) -> bool {
    let has_exited = Stat::of(pid).is_some_and(|stat| stat.ended);
    let is_gone = Pid::from_raw(pid)
        .is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH));
    !has_exited && !is_gone
}

/// A gRPC channel over a unix socket; it reconnects after a restart of the server.
///
/// # Errors
/// The socket cannot be connected.
pub async fn grpc(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    let socket = socket.to_owned();
    // The address is never resolved: the connector has the socket.
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost")
        .connect_with_connector(connector)
        .await
}

/// GETs one page.
///
/// # Errors
/// [`RequestError`]; an answer with any status is not an error.
pub async fn get(socket: &Path, path: &str) -> Result<(StatusCode, Bytes), RequestError> {
    request(socket, Method::GET, path).await
}

/// Sends one request without a body. `path` is well-formed.
///
/// # Errors
/// As for [`get`].
pub async fn request(
    socket: &Path,
    method: Method,
    path: &str,
) -> Result<(StatusCode, Bytes), RequestError> {
    request_up_to(socket, method, path, usize::MAX).await
}

/// POSTs a body of JSON. `path` is well-formed.
///
/// # Errors
/// As for [`get`].
pub async fn post_json(
    socket: &Path,
    path: &str,
    body: Bytes,
) -> Result<(StatusCode, Bytes), RequestError> {
    exchange(socket, well_formed(Method::POST, path, body), usize::MAX).await
}

/// POSTs a body of JSON, and continues the connection in another protocol if the server agrees. `path` is well-formed.
///
/// # Errors
/// As for [`get`].
pub async fn upgrade(
    socket: &Path,
    path: &str,
    protocol: &'static str,
    body: Bytes,
) -> Result<UpgradeAnswer, RequestError> {
    let mut request = well_formed(Method::POST, path, body);
    let headers = request.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(protocol));
    let fail = |source| failed(socket, source);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(connect(socket).await?)
        .await
        .map_err(fail)?;
    // The connection must be polled for the answer; it completes when it is handed over.
    let mut connection = pin!(connection.with_upgrades());
    let exchange = async {
        let response = sender.send_request(request).await.map_err(fail)?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let upgraded = hyper::upgrade::on(response).await.map_err(fail)?;
            return Ok(UpgradeAnswer::Upgraded(TokioIo::new(upgraded)));
        }
        let status = response.status();
        let body = response.into_body().collect().await.map_err(fail)?;
        Ok(UpgradeAnswer::Answered(status, body.to_bytes()))
    };
    let mut exchange = pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        ended = &mut connection => match ended {
            // What the connection had received is there.
            Ok(()) => exchange.await,
            Err(error) => Err(fail(error)),
        },
    }
}

/// Sends one request, whose answer may have at most `max` bytes.
///
/// # Errors
/// As for [`get`], and [`RequestError::TooLong`].
pub async fn request_up_to(
    socket: &Path,
    method: Method,
    path: &str,
    max: usize,
) -> Result<(StatusCode, Bytes), RequestError> {
    exchange(socket, well_formed(method, path, Bytes::new()), max).await
}

fn well_formed(method: Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::HOST, "localhost");
    if !body.is_empty() {
        request = request.header(http::header::CONTENT_TYPE, "application/json");
    }
    request
        .body(Full::new(body))
        .expect("the paths that are asked for are well-formed")
}

async fn exchange(
    socket: &Path,
    request: Request<Full<Bytes>>,
    max: usize,
) -> Result<(StatusCode, Bytes), RequestError> {
    let fail = |source| failed(socket, source);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(connect(socket).await?)
        .await
        .map_err(fail)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(fail)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), max)
            .collect()
            .await
            .map_err(|error| {
                match error.downcast::<hyper::Error>() {
                    Ok(source) => fail(*source),
                    // A limit has no other error.
                    Err(_) => RequestError::TooLong {
                        socket: socket.to_owned(),
                        max,
                    },
                }
            })?;
        Ok((status, body.to_bytes()))
    };
    // The connection must be polled for the answer, and not afterwards.
    tokio::select! {
        answer = exchange => answer,
        Err(error) = connection => Err(fail(error)),
    }
}

async fn connect(socket: &Path) -> Result<TokioIo<UnixStream>, RequestError> {
    let connected = UnixStream::connect(socket).await;
    connected
        .map(TokioIo::new)
        .map_err(|source| RequestError::Connect {
            socket: socket.to_owned(),
            source,
        })
}

/// The error of a request whose connection failed.
fn failed(socket: &Path, source: hyper::Error) -> RequestError {
    let socket = socket.to_owned();
    if is_closed(&source) {
        RequestError::Ended { socket, source }
    } else {
        RequestError::Http { socket, source }
    }
}

/// Returns whether the other end has closed the connection. Pure.
fn is_closed(error: &hyper::Error) -> bool {
    let cause = error
        .source()
        .and_then(|cause| cause.downcast_ref::<io::Error>());
    error.is_incomplete_message()
        || error.is_canceled()
        || error.is_closed()
        || cause.is_some_and(|cause| {
            matches!(
                cause.kind(),
                io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::ConnectionAborted
            )
        })
}

/// Returns whether a call failed with its connection, as happens when the server ends, and not by an answer. Pure.
#[must_use]
pub fn is_cut_off(status: &tonic::Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<hyper::Error>() || error.is::<io::Error>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;

    /// The end of a request to a server that answers so much, and then closes the connection.
    async fn answered(begin: &'static str) -> RequestError {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("a.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
            stream.write_all(begin.as_bytes()).await.unwrap();
        };
        let (answer, ()) = tokio::join!(get(&socket, "/statusz"), server);
        answer.unwrap_err()
    }

    #[tokio::test]
    async fn connection_that_is_closed_before_the_answer_is_distinguished() {
        for begin in ["", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[1,"] {
            let error = answered(begin).await;
            assert!(matches!(error, RequestError::Ended { .. }), "{error:?}");
        }
        let error = answered("what is this?\r\n\r\n").await;
        assert!(matches!(error, RequestError::Http { .. }), "{error:?}");
    }

    #[tokio::test]
    async fn status_of_a_server_is_no_end_of_its_connection() {
        let RequestError::Ended { source, .. } = answered("").await else {
            panic!("the connection was closed");
        };
        assert!(is_cut_off(&tonic::Status::from_error(Box::new(source))));
        let broken = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_cut_off(&tonic::Status::from_error(Box::new(broken))));
        assert!(!is_cut_off(&tonic::Status::unavailable(
            "the runtime is away"
        )));
    }
}
