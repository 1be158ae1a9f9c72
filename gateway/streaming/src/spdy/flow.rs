//! The stream table as tasks share it: senders wait for window, receivers send window updates.

use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::frame::{self, INITIAL_WINDOW};
use super::table::{Room, Table};
use crate::budget::{BUDGET, Item};
use crate::gone::Gone;

/// The receive window of each stream. A client that respects it leaves room for its other streams.
pub(crate) const STREAM_WINDOW: u32 = 256 * 1024;

/// The receive window of a connection.
const CONNECTION_WINDOW: u32 = BUDGET;

/// The difference to the protocol's initial window, which is announced with a stream's first window update.
pub(crate) const STREAM_UNACKNOWLEDGED: u32 = STREAM_WINDOW - INITIAL_WINDOW;

type StreamTable = Table<mpsc::UnboundedSender<Item>>;

/// The streams of a connection, shared by its reader and all senders.
#[derive(Debug)]
pub(crate) struct Flow {
    table: Mutex<StreamTable>,
    /// Notified when a window is increased or a stream is reset.
    changed: Notify,
    /// Control frames, which are written before data frames.
    control: mpsc::Sender<Bytes>,
    /// Consumed bytes of the connection for which no window update was sent yet.
    unacknowledged: AtomicU32,
    /// Cancelled when the client is gone or the session must end: no window is increased any more.
    end: CancellationToken,
}

impl Flow {
    pub(crate) fn new(limit: usize, control: mpsc::Sender<Bytes>, end: CancellationToken) -> Self {
        Self {
            table: Mutex::new(Table::new(limit)),
            changed: Notify::new(),
            control,
            unacknowledged: AtomicU32::new(CONNECTION_WINDOW - INITIAL_WINDOW),
            end,
        }
    }

    pub(super) fn table(&self) -> MutexGuard<'_, StreamTable> {
        self.table.lock()
    }

    /// Waits until at most `want` bytes may be sent. Cancel-safe; but bytes that were reserved and not sent
    /// are lost for this stream.
    pub(crate) async fn reserve(&self, stream: u32, want: usize) -> Result<usize, Gone> {
        loop {
            // Created before the look at the table, so that a change in between is not missed.
            let changed = self.changed.notified();
            let room = self.table().reserve(stream, want);
            match room {
                Room::Bytes(length) => return Ok(length),
                Room::Gone => return Err(Gone),
                Room::Wait => tokio::select! {
                    () = changed => {}
                    () = self.end.cancelled() => return Err(Gone),
                },
            }
        }
    }

    /// At most `want` bytes, as many as may be sent now.
    pub(crate) fn reserve_now(&self, stream: u32, want: usize) -> usize {
        match self.table().reserve(stream, want) {
            Room::Bytes(length) => length,
            Room::Wait | Room::Gone => 0,
        }
    }

    /// Ends the sending direction. Returns false if the stream is gone already.
    pub(crate) fn send_end(&self, stream: u32) -> bool {
        self.table().send_end(stream)
    }

    /// Removes a stream that either side has reset. Returns false if it is gone already.
    pub(crate) fn reset(&self, stream: u32) -> bool {
        let there = self.table().reset(stream);
        self.changed.notify_waiters();
        there
    }

    /// Wakes the senders that wait for window.
    pub(super) fn wake(&self) {
        self.changed.notify_waiters();
    }

    /// Marks bytes of a stream as consumed, and sends window updates, in large steps.
    pub(crate) async fn stream_consumed(&self, stream: u32, untold: &mut u32, length: usize) {
        if *untold >= STREAM_WINDOW / 2 {
            let delta = std::mem::take(untold);
            self.send(frame::window(stream, delta)).await;
        }
        self.connection_consumed(length).await;
    }

    /// Marks bytes of the connection as consumed, whether or not a stream read them.
    pub(crate) async fn connection_consumed(&self, length: usize) {
        let length = u32::try_from(length).unwrap_or(CONNECTION_WINDOW);
        let untold = self
            .unacknowledged
            .fetch_add(length, Ordering::Relaxed)
            .saturating_add(length);
        if untold >= CONNECTION_WINDOW / 2 {
            let delta = self.unacknowledged.swap(0, Ordering::Relaxed);
            // A concurrent call may have acknowledged them.
            if delta > 0 {
                self.send(frame::window(0, delta)).await;
            }
        }
    }

    /// Marks bytes of the connection as dropped with their stream. The window update is sent at once if the
    /// queue has room, else with the next consumed bytes.
    pub(crate) fn connection_dropped(&self, length: usize) {
        let length = u32::try_from(length).unwrap_or(CONNECTION_WINDOW);
        let untold = self
            .unacknowledged
            .fetch_add(length, Ordering::Relaxed)
            .saturating_add(length);
        if untold >= CONNECTION_WINDOW / 2
            && let Ok(slot) = self.control.try_reserve()
        {
            slot.send(frame::window(
                0,
                self.unacknowledged.swap(0, Ordering::Relaxed),
            ));
        }
    }

    /// Queues a control frame. It is dropped if the connection has ended.
    pub(super) async fn send(&self, frame: Bytes) {
        let _ended = self.control.send(frame).await;
    }
}
