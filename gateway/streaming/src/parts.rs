//! The parts of a connection of any protocol: its reader, its writer, and the session between them, all in
//! one task.

use std::fmt::Display;
use std::future::Future;
use std::mem::replace;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::batch::CLOSING;
use crate::channel::Out;
use crate::io::{Activity, Probe};
use crate::session::HANG_UP;

/// Time for which a connection may be written after `end` was cancelled, whatever its client and its session
/// do. The process of a session may take [`HANG_UP`] before its last bytes are written.
pub(crate) const ENDING: Duration = HANG_UP.saturating_add(CLOSING);

/// Time for a client that has received everything to close the connection. If the server closed first, what the client sends
/// then would reset the connection, and what is on the way to it would be lost. Longer than the 5 s between the pings of kubectl.
pub(crate) const LINGER: Duration = Duration::from_secs(6);

/// Limit, as a multiple of [`LINGER`], for a client that takes nothing of what is on the way to it, or goes on sending when it has
/// all. TCP may announce its room late if it reads a little at a time, and what has arrived may wait to be read.
const STALLED: u32 = 5;

/// Watches whether what is on the way to a client becomes less.
#[derive(Debug, Default)]
struct Drain {
    /// The bytes that were on the way at the last look.
    left: u64,
    /// The looks since they last became fewer.
    stalled: u32,
    /// Number of times that something had arrived from the client at the last look.
    heard: u64,
}

/// Runs the parts until the session has ended and everything that it sent to `out` is written; then waits for
/// the client to disconnect, as [`linger`] says. `end` is cancelled when the connection can no longer be read or
/// written: the session must end then. The parts are passed pinned because they are too large to be moved.
pub(crate) async fn run<E: Display>(
    reading: impl Future<Output = ()> + Unpin,
    session: impl Future<Output = ()> + Unpin,
    writing: impl Future<Output = Result<(), E>> + Unpin,
    out: &mpsc::Sender<Out>,
    client: (&Probe, &Activity),
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
            linger(reading, client, end).await;
        }
    }
}

/// Waits until the client disconnects: as long as it takes what is on the way to it, and [`LINGER`] when it has all, or
/// [`STALLED`] times that if it goes on sending. Once
/// `end` is cancelled, as after the idle timeout and when the server stops, it waits at most [`LINGER`].
async fn linger(
    mut reading: impl Future<Output = ()> + Unpin,
    (probe, activity): (&Probe, &Activity),
    end: &CancellationToken,
) {
    let mut drain = Drain {
        heard: activity.heard(),
        ..Drain::default()
    };
    while timeout(LINGER, &mut reading).await.is_err() {
        if end.is_cancelled() || !drain.goes_on(probe.unsent().await, activity.heard()) {
            return;
        }
    }
}

// === impl Drain ===

impl Drain {
    /// Returns whether to wait on, if so many bytes are on the way now, and something has arrived so often.
    fn goes_on(&mut self, left: u64, heard: u64) -> bool {
        let before = replace(&mut self.left, left);
        let sends = replace(&mut self.heard, heard) != heard;
        if left < before {
            self.stalled = 0;
            return true;
        }
        self.stalled += 1;
        (left > 0 || sends) && self.stalled < STALLED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_is_waited_for_while_it_takes_what_is_on_the_way() {
        let stalled = [5_u64; 30];
        let stops = [vec![9, 7], stalled.to_vec()].concat();
        // The bytes on the way at each look, and the looks until the connection is closed.
        let cases: [(&str, &[u64], Option<usize>); 7] = [
            ("all was received at once", &[0], Some(1)),
            ("slow", &[900, 600, 300, 0, 0], Some(5)),
            (
                "slow, with a pause",
                &[900, 900, 900, 300, 300, 100, 0],
                None,
            ),
            ("all but the end of the stream", &[1, 0, 0], Some(3)),
            ("never reads", &stalled, Some(STALLED as usize)),
            ("stops", &stops, Some(STALLED as usize + 3)),
            ("not finished", &[3, 2, 1], None),
        ];
        for (what, looks, expected) in cases {
            let mut drain = Drain::default();
            let closed = looks.iter().position(|left| !drain.goes_on(*left, 0));
            assert_eq!(closed.map(|at| at + 1), expected, "{what}");
        }
    }

    #[test]
    fn client_that_has_all_is_waited_for_while_it_goes_on_sending() {
        // How often something has arrived at each look, and the looks until the connection is closed.
        let cases: [(&str, &[u64], usize); 4] = [
            ("silent", &[0, 0], 1),
            ("sends once", &[1, 1], 2),
            ("sends, and is silent then", &[2, 3, 7, 7], 4),
            ("sends for ever", &[1, 2, 3, 4, 5, 6, 7], STALLED as usize),
        ];
        for (what, looks, expected) in cases {
            let mut drain = Drain::default();
            let closed = looks.iter().position(|heard| !drain.goes_on(0, *heard));
            assert_eq!(closed, Some(expected - 1), "{what}");
        }
    }
}
