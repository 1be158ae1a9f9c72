//! Received bytes of a connection's streams that nobody has read yet, within a budget.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most bytes that a connection buffers for streams whose readers are slow. Beyond it, the connection is
/// not read.
pub(crate) const BUDGET: u32 = 4 * 1024 * 1024;

/// The cost of a piece in the budget, in addition to its bytes.
const PIECE_COST: usize = 128;

/// Pieces shorter than this are copied, so that a short one does not pin the buffer that it was read into.
const COPIED: usize = 16 * 1024;

/// An item that was received on a stream.
#[derive(Debug)]
pub(crate) enum Item {
    Piece(Piece),
    /// The client has ended the stream: end of file.
    End,
}

/// Received bytes, which count towards the connection's budget until they are dropped.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

/// Limits the bytes in all queues of a connection together; the queues have no other limit.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Semaphore>);

impl Budget {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(BUDGET as usize)))
    }

    /// Waits until the budget has room for these bytes. Meanwhile the connection is not read. Cancel-safe.
    pub(crate) async fn admit(&self, bytes: Bytes) -> Piece {
        let cost = u32::try_from(bytes.len() + PIECE_COST)
            .unwrap_or(BUDGET)
            .min(BUDGET);
        let permit = Arc::clone(&self.0).acquire_many_owned(cost).await;
        let bytes = if bytes.len() < COPIED {
            Bytes::copy_from_slice(&bytes)
        } else {
            bytes
        };
        Piece {
            bytes,
            _permit: permit.expect("the budget is never closed"),
        }
    }
}
