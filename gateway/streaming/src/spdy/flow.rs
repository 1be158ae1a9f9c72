//! The table of streams as tasks share it: whoever sends waits for room, whoever receives makes room.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::frame::{self, INITIAL_WINDOW};
use super::table::{Room, Table};
use crate::channel::{BUDGET, Gone, Item};

/// The window that we give each stream. A client that keeps to its windows fills no other stream's share.
pub(crate) const STREAM_WINDOW: u32 = 256 * 1024;

/// The window that we give a connection.
const CONNECTION_WINDOW: u32 = BUDGET;

/// What a stream's window is short of at its begin: told to the client with the first bytes that are taken.
pub(crate) const STREAM_UNACKNOWLEDGED: u32 = STREAM_WINDOW - INITIAL_WINDOW;

type StreamTable = Table<mpsc::UnboundedSender<Item>>;

/// The streams of a connection, shared by what reads it and all that write to it.
#[derive(Debug)]
pub(crate) struct Flow {
    table: Mutex<StreamTable>,
    /// A window was opened, or a stream reset.
    changed: Notify,
    /// Frames without data, which overtake those with data.
    control: mpsc::Sender<Bytes>,
    /// Bytes taken from the connection that the client has not yet been told of.
    unacknowledged: AtomicU32,
    /// The client has gone, or the session must end: nobody opens a window any more.
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
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room for at most `want` bytes, as long as the connection stands. Cancel-safe: what was reserved and is not sent is lost to this stream.
    pub(crate) async fn reserve(&self, stream: u32, want: usize) -> Result<usize, Gone> {
        loop {
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

    /// We end our direction. False if the stream is gone already.
    pub(crate) fn send_end(&self, stream: u32) -> bool {
        self.table().send_end(stream)
    }

    /// Either side has reset the stream. False if it is gone already.
    pub(crate) fn reset(&self, stream: u32) -> bool {
        let there = self.table().reset(stream);
        self.changed.notify_waiters();
        there
    }

    /// Somebody who waits for room should look again.
    pub(super) fn wake(&self) {
        self.changed.notify_waiters();
    }

    /// Bytes of a stream were taken: tells the client, in large steps.
    pub(crate) async fn stream_consumed(&self, stream: u32, untold: &mut u32, length: usize) {
        if *untold >= STREAM_WINDOW / 2 {
            let delta = std::mem::take(untold);
            self.send(frame::window(stream, delta)).await;
        }
        self.connection_consumed(length).await;
    }

    /// Bytes of the connection were taken, by a stream or by nobody.
    pub(crate) async fn connection_consumed(&self, length: usize) {
        let length = u32::try_from(length).unwrap_or(CONNECTION_WINDOW);
        let untold = self.unacknowledged.fetch_add(length, Ordering::Relaxed).saturating_add(length);
        if untold >= CONNECTION_WINDOW / 2 {
            let delta = self.unacknowledged.swap(0, Ordering::Relaxed);
            if delta > 0 {
                self.send(frame::window(0, delta)).await;
            }
        }
    }

    /// Bytes of the connection were dropped with their stream. They are told at once if the queue has room, else with
    /// the next bytes that are taken.
    pub(crate) fn connection_dropped(&self, length: usize) {
        let length = u32::try_from(length).unwrap_or(CONNECTION_WINDOW);
        let untold = self.unacknowledged.fetch_add(length, Ordering::Relaxed).saturating_add(length);
        if untold >= CONNECTION_WINDOW / 2
            && let Ok(slot) = self.control.try_reserve()
        {
            slot.send(frame::window(0, self.unacknowledged.swap(0, Ordering::Relaxed)));
        }
    }

    /// Queues a frame without data. If the connection has ended, nobody misses it.
    pub(super) async fn send(&self, frame: Bytes) {
        let _ended = self.control.send(frame).await;
    }
}
