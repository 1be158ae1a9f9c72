//! The streams of a connection and both sides' windows: which bytes may be sent, and which frames make sense. Pure.
//!
//! Clients built on Go's spdystream never open a window: whoever waits for one waits for ever. So a client's windows
//! count from the first frame that shows that it controls the flow: WINDOW_UPDATE, or SETTINGS with an initial window.

use std::collections::HashMap;

use super::frame::{INITIAL_WINDOW, MAX_WINDOW};

/// The streams of a connection. `Q` is where the bytes of a stream go.
#[derive(Debug)]
pub(crate) struct Table<Q> {
    streams: HashMap<u32, StreamState<Q>>,
    /// How many streams may be open at a time.
    limit: usize,
    /// The last stream that the client opened.
    last: u32,
    /// What the window of a new stream is.
    initial: i64,
    /// Whether the client opens the windows of its streams.
    streams_controlled: bool,
    /// What may be sent on all streams together.
    connection: i64,
    /// Whether the client opens the window of the connection.
    connection_controlled: bool,
}

#[derive(Debug)]
struct StreamState<Q> {
    queue: Option<Q>,
    /// What may be sent; below zero if more was sent before the client was seen to control the flow.
    window: i64,
    sent_end: bool,
}

/// Why a stream is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// The client's numbers are wrong, so it cannot be known what it means: the connection ends.
    Protocol,
    /// There are as many as there may be.
    Limit,
}

/// Where bytes of a stream go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target<Q> {
    Queue(Q),
    /// The stream was there, and nobody reads it any more.
    Nowhere,
    /// There never was such a stream.
    Unknown,
}

/// How much may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Bytes(usize),
    Wait,
    /// The stream was reset.
    Gone,
}

/// A window was opened beyond what a window may be.
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

    /// The last stream that the client opened.
    pub(crate) fn last(&self) -> u32 {
        self.last
    }

    /// The client opens a stream: its number is odd, and above those before.
    pub(crate) fn open(&mut self, id: u32, queue: Q) -> Result<(), OpenError> {
        if id.is_multiple_of(2) || id <= self.last {
            return Err(OpenError::Protocol);
        }
        self.last = id;
        if self.streams.len() >= self.limit {
            return Err(OpenError::Limit);
        }
        self.streams.insert(id, StreamState { queue: Some(queue), window: self.initial, sent_end: false });
        Ok(())
    }

    /// Where bytes of this stream go.
    pub(crate) fn target(&self, id: u32) -> Target<Q> {
        match self.streams.get(&id) {
            Some(StreamState { queue: Some(queue), .. }) => Target::Queue(queue.clone()),
            Some(StreamState { queue: None, .. }) => Target::Nowhere,
            // It was closed, and these bytes were under way.
            None if id % 2 == 1 && id <= self.last => Target::Nowhere,
            None => Target::Unknown,
        }
    }

    /// The client has ended its direction: gives the queue, which gets nothing more.
    pub(crate) fn received_end(&mut self, id: u32) -> Option<Q> {
        let stream = self.streams.get_mut(&id)?;
        let queue = stream.queue.take();
        if stream.sent_end {
            self.streams.remove(&id);
        }
        queue
    }

    /// We end our direction. False if the stream is gone already.
    pub(crate) fn send_end(&mut self, id: u32) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        stream.sent_end = true;
        if stream.queue.is_none() {
            self.streams.remove(&id);
        }
        true
    }

    /// Either side has reset the stream. False if it is gone already.
    pub(crate) fn reset(&mut self, id: u32) -> bool {
        self.streams.remove(&id).is_some()
    }

    /// Takes room for at most `want` bytes out of the windows.
    pub(crate) fn reserve(&mut self, id: u32, want: usize) -> Room {
        let Some(stream) = self.streams.get_mut(&id) else { return Room::Gone };
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
        // Without flow control the windows fall for ever: they stop where no window can bring them back from.
        stream.window = (stream.window - room).max(-i64::from(MAX_WINDOW));
        self.connection = (self.connection - room).max(-i64::from(MAX_WINDOW));
        Room::Bytes(usize::try_from(room).expect("between nothing and what was wanted"))
    }

    /// The client opens a window; stream 0 is the connection.
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
        if *window > i64::from(MAX_WINDOW) { Err(Overflow) } else { Ok(()) }
    }

    /// The client says what the window of a stream is at first; those that are open change by the difference.
    pub(crate) fn set_initial_window(&mut self, window: u32) -> Result<(), Overflow> {
        self.streams_controlled = true;
        let difference = i64::from(window) - self.initial;
        self.initial = i64::from(window);
        for stream in self.streams.values_mut() {
            stream.window += difference;
        }
        let over = self.streams.values().any(|stream| stream.window > i64::from(MAX_WINDOW));
        if over { Err(Overflow) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
