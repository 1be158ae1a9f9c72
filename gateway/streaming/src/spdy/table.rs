//! The streams of a connection and the windows of both sides: which bytes may be sent, and which frames are
//! valid. Pure.
//!
//! Clients built on Go's spdystream never send window updates: waiting for one would block forever. So a
//! client's windows are enforced only after the first frame that shows that it does flow control:
//! WINDOW_UPDATE, or SETTINGS with an initial window.

use std::collections::HashMap;

use super::frame::{INITIAL_WINDOW, MAX_WINDOW};

/// The streams of a connection. `Q` is the queue of a stream's received bytes.
#[derive(Debug)]
pub(crate) struct Table<Q> {
    streams: HashMap<u32, StreamState<Q>>,
    /// The most streams that may be open.
    limit: usize,
    /// The id of the last stream that the client opened.
    last: u32,
    /// The initial window of a new stream.
    initial: i64,
    /// True if the client sends window updates for its streams.
    streams_controlled: bool,
    /// Number of bytes that may be sent on all streams together.
    connection: i64,
    /// True if the client sends window updates for the connection.
    connection_controlled: bool,
}

#[derive(Debug)]
struct StreamState<Q> {
    queue: Option<Q>,
    /// Number of bytes that may be sent; negative if they were sent before the flow control was known.
    window: i64,
    sent_end: bool,
}

/// Reason why a stream is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// The client's stream ids are invalid, so its state is unknown: the connection must be closed.
    Protocol,
    /// Too many streams are open.
    Limit,
}

/// The destination of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target<Q> {
    Queue(Q),
    /// The stream existed, and its bytes are discarded.
    Nowhere,
    /// The stream never existed.
    Unknown,
}

/// Number of bytes that may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Bytes(usize),
    Wait,
    /// The stream was reset.
    Gone,
}

/// A window was increased beyond the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow;

impl<Q: Clone> Table<Q> {
    pub(crate) fn new(limit: usize) -> Self {
        let initial = i64::from(INITIAL_WINDOW);
        Self {
            streams: HashMap::new(),
            limit,
            last: 0,
            initial,
            streams_controlled: false,
            connection: initial,
            connection_controlled: false,
        }
    }

    /// The id of the last stream that the client opened.
    pub(crate) fn last(&self) -> u32 {
        self.last
    }

    /// The client opens a stream; its id must be odd, and higher than all before.
    pub(crate) fn open(&mut self, id: u32, queue: Q) -> Result<(), OpenError> {
        if id.is_multiple_of(2) || id <= self.last {
            return Err(OpenError::Protocol);
        }
        // Also of a stream that is refused: its data may be on the way, and is then known to be late.
        self.last = id;
        if self.streams.len() >= self.limit {
            return Err(OpenError::Limit);
        }
        self.streams.insert(
            id,
            StreamState {
                queue: Some(queue),
                window: self.initial,
                sent_end: false,
            },
        );
        Ok(())
    }

    /// The destination of bytes that are received for this stream.
    pub(crate) fn target(&self, id: u32) -> Target<Q> {
        match self.streams.get(&id) {
            Some(StreamState {
                queue: Some(queue), ..
            }) => Target::Queue(queue.clone()),
            Some(StreamState { queue: None, .. }) => Target::Nowhere,
            // The stream was closed while these bytes were in flight.
            None if id % 2 == 1 && id <= self.last => Target::Nowhere,
            None => Target::Unknown,
        }
    }

    /// The client has ended its direction: returns the queue, which receives nothing more.
    pub(crate) fn received_end(&mut self, id: u32) -> Option<Q> {
        let stream = self.streams.get_mut(&id)?;
        let queue = stream.queue.take();
        if stream.sent_end {
            self.streams.remove(&id);
        }
        queue
    }

    /// This side ends its direction. Returns false if the stream is gone already.
    pub(crate) fn send_end(&mut self, id: u32) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else {
            return false;
        };
        stream.sent_end = true;
        if stream.queue.is_none() {
            self.streams.remove(&id);
        }
        true
    }

    /// Removes a stream that either side has reset. Returns false if it is gone already.
    pub(crate) fn reset(&mut self, id: u32) -> bool {
        self.streams.remove(&id).is_some()
    }

    /// Takes at most `want` bytes out of the windows.
    pub(crate) fn reserve(&mut self, id: u32, want: usize) -> Room {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Room::Gone;
        };
        let mut room = i64::try_from(want).unwrap_or(i64::MAX);
        if self.streams_controlled {
            room = room.min(stream.window);
        }
        if self.connection_controlled {
            room = room.min(self.connection);
        }
        if room <= 0 && want > 0 {
            return Room::Wait;
        }
        // Without flow control the windows only shrink; they are clamped at a value that no window update
        // could raise above zero.
        stream.window = (stream.window - room).max(-i64::from(MAX_WINDOW));
        self.connection = (self.connection - room).max(-i64::from(MAX_WINDOW));
        Room::Bytes(usize::try_from(room).expect("between nothing and what was wanted"))
    }

    /// The client increases a window; stream 0 is the connection.
    pub(crate) fn open_window(&mut self, id: u32, delta: u32) -> Result<(), Overflow> {
        let window = if id == 0 {
            self.connection_controlled = true;
            &mut self.connection
        } else {
            self.streams_controlled = true;
            match self.streams.get_mut(&id) {
                Some(stream) => &mut stream.window,
                None => return Ok(()),
            }
        };
        *window += i64::from(delta);
        if *window > i64::from(MAX_WINDOW) {
            Err(Overflow)
        } else {
            Ok(())
        }
    }

    /// The client sets the initial window of streams; those of open streams change by the difference.
    pub(crate) fn set_initial_window(&mut self, window: u32) -> Result<(), Overflow> {
        self.streams_controlled = true;
        let difference = i64::from(window) - self.initial;
        self.initial = i64::from(window);
        for stream in self.streams.values_mut() {
            stream.window += difference;
        }
        let over = self
            .streams
            .values()
            .any(|stream| stream.window > i64::from(MAX_WINDOW));
        if over { Err(Overflow) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
