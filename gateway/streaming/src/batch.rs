//! Collects pieces that are written to a connection together, with as few system calls as possible.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::io::Activity;

/// Time for a client to read the last bytes after its session has ended.
pub(crate) const CLOSING: Duration = Duration::from_secs(2);

/// Pieces that are written in order.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pieces: VecDeque<Bytes>,
    left: usize,
}

impl Batch {
    pub(crate) fn push(&mut self, piece: Bytes) {
        self.left += piece.len();
        self.pieces.push_back(piece);
    }

    /// Writes all pieces. Once `end` is cancelled, the client has [`CLOSING`] left to read them.
    ///
    /// # Errors
    ///
    /// The connection is broken, or the client does not read in time.
    pub(crate) async fn write(
        &mut self,
        writer: &mut (impl AsyncWrite + Unpin),
        activity: &Activity,
        end: &CancellationToken,
    ) -> io::Result<()> {
        let all = async {
            while self.has_remaining() {
                if writer.write_buf(self).await? == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                activity.record();
            }
            writer.flush().await
        };
        within(end, CLOSING, all).await
    }
}

/// Runs `write`. Once `end` is cancelled, it has `limit` left.
///
/// # Errors
///
/// Those of `write`, and `TimedOut`.
pub(crate) async fn within<T>(
    end: &CancellationToken,
    limit: Duration,
    write: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let late = async {
        end.cancelled().await;
        sleep(limit).await;
    };
    tokio::select! {
        biased;
        written = write => written,
        () = late => Err(io::ErrorKind::TimedOut.into()),
    }
}

impl Buf for Batch {
    fn remaining(&self) -> usize {
        self.left
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slice, piece) in into.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        self.left -= count;
        while let Some(first) = self.pieces.front_mut() {
            if first.len() > count {
                return first.advance(count);
            }
            count -= first.len();
            self.pieces.pop_front();
        }
    }
}
