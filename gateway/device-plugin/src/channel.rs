//! Connects to a kubelet's socket, also to one that the kubelet does not listen on yet.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};

/// Time for which a newly created kubelet.sock may refuse connections because the kubelet does not listen on
/// it yet.
const NOT_YET: Duration = Duration::from_secs(1);

/// Pause between two attempts to connect to a socket that does not listen yet.
const ATTEMPT: Duration = Duration::from_millis(1);

/// A channel to the kubelet that has created this socket. It connects on first use, and again after the
/// connection has ended.
pub(crate) fn channel(kubelet: PathBuf) -> Channel {
    let settled = Instant::now() + NOT_YET;
    let connect = tower::service_fn(move |_| {
        let path = kubelet.clone();
        async move { connect(&path, settled).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(connect)
}

/// Connects to a socket; until `settled`, a refused connection is retried. Cancel-safe.
async fn connect(path: &Path, settled: Instant) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Err(error)
                if error.kind() == io::ErrorKind::ConnectionRefused && Instant::now() < settled =>
            {
                sleep(ATTEMPT).await;
            }
            connected => return connected,
        }
    }
}
