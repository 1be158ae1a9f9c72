//! The parts of a connection of any protocol: its reader, its writer, and the session between them, all in
//! one task.

use std::fmt::Display;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::batch::CLOSING;
use crate::channel::{LINGER, Out};
use crate::session::HANG_UP;

/// Time for which a connection may be written after `end` was cancelled, whatever its client and its session
/// do. The process of a session may take [`HANG_UP`] before its last bytes are written.
pub(crate) const ENDING: Duration = HANG_UP.saturating_add(CLOSING);

/// Runs the parts until the session has ended and everything that it sent to `out` is written; then waits a
/// moment for the client to disconnect. `end` is cancelled when the connection can no longer be read or
/// written: the session must end then. The parts are passed pinned because they are too large to be moved.
pub(crate) async fn run<E: Display>(
    reading: impl Future<Output = ()> + Unpin,
    session: impl Future<Output = ()> + Unpin,
    writing: impl Future<Output = Result<(), E>> + Unpin,
    out: &mpsc::Sender<Out>,
    end: &CancellationToken,
) {
    let reading = async {
        reading.await;
        end.cancel();
    };
    let session = async {
        session.await;
        let _closed = out.send(Out::Close).await;
    };
    let writing = async {
        if let Err(error) = writing.await {
            debug!(%error, "streaming connection cannot be written");
            end.cancel();
        }
    };
    let mut reading = pin!(reading);
    let mut working = pin!(async { tokio::join!(session, writing) });
    tokio::select! {
        // The client is gone, and `end` cancelled: the session and the writer end.
        () = &mut reading => { working.await; }
        _ = &mut working => {
            let _slow = timeout(LINGER, reading).await;
        }
    }
}
