//! The frames of SPDY/3.1: decodes them incrementally from a buffer, and encodes them. Pure: no I/O, no
//! clock.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::header::{Deflater, HeaderError, Headers, Inflater};

/// The largest control frame, in bytes. Real ones have less than 200. Data frames have no such limit, because
/// they are not buffered.
pub(crate) const MAX_CONTROL: usize = 64 * 1024;

/// The window of a stream, and of a connection, until one side changes it.
pub(crate) const INITIAL_WINDOW: u32 = 64 * 1024;

/// The largest window.
pub(crate) const MAX_WINDOW: u32 = i32::MAX as u32;

/// The length of a frame's common header.
const HEAD: usize = 8;

/// The only setting that is used: the initial window of streams.
const SETTINGS_INITIAL_WINDOW: u32 = 7;

/// The sender's last frame on the stream.
const FLAG_FIN: u8 = 1;

/// Reason why a stream is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    InvalidStream = 2,
    Refused = 3,
    Cancel = 5,
    FlowControl = 7,
}

/// An event that a peer has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// SYN_STREAM.
    Opened {
        stream: u32,
        headers: Headers,
        end: bool,
    },
    /// SYN_REPLY.
    Replied { stream: u32, end: bool },
    /// Some bytes of a data frame, in order; `end` with the last ones of a frame with FIN.
    Data {
        stream: u32,
        bytes: Bytes,
        end: bool,
    },
    /// RST_STREAM.
    Reset { stream: u32, status: u32 },
    /// SETTINGS, of which only the initial window is used.
    Settings { initial_window: Option<u32> },
    /// PING.
    Ping { id: u32 },
    /// GOAWAY.
    GoAway { status: u32 },
    /// WINDOW_UPDATE; stream 0 is the connection.
    Window { stream: u32, delta: u32 },
    /// An ignored frame: HEADERS, or one of a later version.
    Ignored,
}

/// Reason why a connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("control frame has SPDY version {0}, not 3")]
    Version(u16),
    #[error("control frame has {0} bytes, more than {MAX_CONTROL}")]
    TooLong(usize),
    #[error("control frame of type {0} has a wrong length")]
    Length(u16),
    #[error("frame is for stream 0")]
    ZeroStream,
    #[error(transparent)]
    Header(#[from] HeaderError),
}

/// Decodes frames from a buffer. Data frames are returned in parts, as they arrive.
#[derive(Debug)]
pub(crate) struct Decoder {
    inflater: Inflater,
    /// The data frame in progress.
    data: Option<DataFrame>,
}

#[derive(Debug)]
struct DataFrame {
    stream: u32,
    end: bool,
    left: usize,
}

// === impl Decoder ===

impl Decoder {
    pub(crate) fn new() -> Self {
        Self {
            inflater: Inflater::new(),
            data: None,
        }
    }

    /// Decodes the next event; `None` if more bytes are needed. After an error the connection must be closed.
    pub(crate) fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Event>, FrameError> {
        if let Some(data) = self.data.take() {
            return Ok(self.data(data, buffer));
        }
        let Some(head) = buffer.first_chunk::<HEAD>() else {
            return Ok(None);
        };
        let first = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let length = usize::from(head[5]) << 16 | usize::from(head[6]) << 8 | usize::from(head[7]);
        let flags = head[4];
        if first >> 31 == 0 {
            if first == 0 {
                return Err(FrameError::ZeroStream);
            }
            buffer.advance(HEAD);
            let data = DataFrame {
                stream: first,
                end: flags & FLAG_FIN != 0,
                left: length,
            };
            return Ok(self.data(data, buffer));
        }
        let version = u16::from_be_bytes([head[0] & 0x7f, head[1]]);
        let kind = u16::from_be_bytes([head[2], head[3]]);
        if version != 3 {
            return Err(FrameError::Version(version));
        }
        if length > MAX_CONTROL {
            return Err(FrameError::TooLong(length));
        }
        if buffer.len() < HEAD + length {
            return Ok(None);
        }
        buffer.advance(HEAD);
        let body = buffer.split_to(length);
        self.control(kind, flags & FLAG_FIN != 0, &body).map(Some)
    }

    /// Returns whether all that was received, of which `buffer` is the rest, consists of whole frames.
    #[cfg(feature = "client")]
    pub(crate) fn is_between_frames(&self, buffer: &BytesMut) -> bool {
        self.data.is_none() && buffer.is_empty()
    }

    fn data(&mut self, mut data: DataFrame, buffer: &mut BytesMut) -> Option<Event> {
        let bytes = buffer.split_to(data.left.min(buffer.len())).freeze();
        data.left -= bytes.len();
        let stream = data.stream;
        let whole = data.left == 0;
        let end = data.end && whole;
        if !whole {
            self.data = Some(data);
            if bytes.is_empty() {
                return None;
            }
        }
        Some(Event::Data { stream, bytes, end })
    }

    fn control(&mut self, kind: u16, end: bool, body: &[u8]) -> Result<Event, FrameError> {
        let number = |at: usize| {
            let bytes = body
                .get(at..at + 4)
                .and_then(|bytes| bytes.first_chunk::<4>());
            bytes
                .map(|bytes| u32::from_be_bytes(*bytes))
                .ok_or(FrameError::Length(kind))
        };
        // The highest bit of an id is reserved.
        let stream = |at: usize| match number(at)? & MAX_WINDOW {
            0 => Err(FrameError::ZeroStream),
            stream => Ok(stream),
        };
        let length = |length: usize| {
            if body.len() == length {
                Ok(())
            } else {
                Err(FrameError::Length(kind))
            }
        };
        match kind {
            1 => {
                let stream = stream(0)?;
                let block = body.get(10..).ok_or(FrameError::Length(kind))?;
                Ok(Event::Opened {
                    stream,
                    headers: self.inflater.read(block)?,
                    end,
                })
            }
            2 => {
                let stream = stream(0)?;
                self.inflater.read(&body[4..])?;
                Ok(Event::Replied { stream, end })
            }
            3 => length(8).and_then(|()| {
                Ok(Event::Reset {
                    stream: stream(0)?,
                    status: number(4)?,
                })
            }),
            4 => settings(body).ok_or(FrameError::Length(kind)),
            6 => length(4).and_then(|()| Ok(Event::Ping { id: number(0)? })),
            7 => length(8).and_then(|()| Ok(Event::GoAway { status: number(4)? })),
            8 => {
                stream(0)?;
                // The headers mean nothing here, but the compression state depends on them.
                self.inflater.read(&body[4..])?;
                Ok(Event::Ignored)
            }
            9 => length(8).and_then(|()| {
                Ok(Event::Window {
                    stream: number(0)? & MAX_WINDOW,
                    delta: number(4)? & MAX_WINDOW,
                })
            }),
            _ => Ok(Event::Ignored),
        }
    }
}

/// SETTINGS: the number of entries, then flags, a 24-bit id and a value for each.
fn settings(body: &[u8]) -> Option<Event> {
    let (count, entries) = body.split_first_chunk::<4>()?;
    let count = usize::try_from(u32::from_be_bytes(*count)).ok()?;
    if count.checked_mul(8)? != entries.len() {
        return None;
    }
    let mut initial_window = None;
    for entry in entries.chunks_exact(8) {
        let id = u32::from_be_bytes([0, entry[1], entry[2], entry[3]]);
        if id == SETTINGS_INITIAL_WINDOW {
            let value = u32::from_be_bytes([entry[4], entry[5], entry[6], entry[7]]);
            initial_window = Some(value.min(MAX_WINDOW));
        }
    }
    Some(Event::Settings { initial_window })
}

// === encoding ===

/// The header of a data frame. One frame has at most 2^24 - 1 bytes of data.
pub(crate) fn data(stream: u32, length: usize, end: bool) -> [u8; HEAD] {
    let length = u32::try_from(length)
        .expect("pieces are much shorter than 4 GiB")
        .to_be_bytes();
    debug_assert_eq!(length[0], 0);
    let id = stream.to_be_bytes();
    [
        id[0],
        id[1],
        id[2],
        id[3],
        if end { FLAG_FIN } else { 0 },
        length[1],
        length[2],
        length[3],
    ]
}

/// RST_STREAM.
pub(crate) fn reset(stream: u32, status: Status) -> Bytes {
    numbers(3, &[stream, status as u32])
}

/// PING.
pub(crate) fn ping(id: u32) -> Bytes {
    numbers(6, &[id])
}

/// GOAWAY, with the last stream that was served.
pub(crate) fn go_away(last: u32, protocol_error: bool) -> Bytes {
    numbers(7, &[last, u32::from(protocol_error)])
}

/// WINDOW_UPDATE; stream 0 is the connection.
pub(crate) fn window(stream: u32, delta: u32) -> Bytes {
    numbers(9, &[stream, delta])
}

/// SYN_REPLY without headers.
pub(crate) fn reply(stream: u32, deflater: &mut Deflater) -> Bytes {
    control(2, 0, &[&stream.to_be_bytes(), &deflater.write(&[])])
}

/// SYN_STREAM, as clients send it.
#[cfg(any(test, feature = "client"))]
pub(crate) fn open(
    stream: u32,
    headers: &[(&str, &str)],
    end: bool,
    deflater: &mut Deflater,
) -> Bytes {
    let flags = if end { FLAG_FIN } else { 0 };
    control(
        1,
        flags,
        &[&stream.to_be_bytes(), &[0; 6], &deflater.write(headers)],
    )
}

/// SETTINGS with the initial window of streams, as sent by clients with flow control.
#[cfg(any(test, feature = "client"))]
pub(crate) fn initial_window(window: u32) -> Bytes {
    numbers(4, &[1, SETTINGS_INITIAL_WINDOW, window])
}

fn numbers(kind: u16, numbers: &[u32]) -> Bytes {
    let body: Vec<u8> = numbers
        .iter()
        .flat_map(|number| number.to_be_bytes())
        .collect();
    control(kind, 0, &[&body])
}

fn control(kind: u16, flags: u8, body: &[&[u8]]) -> Bytes {
    let length: usize = body.iter().map(|part| part.len()).sum();
    let mut frame = BytesMut::with_capacity(HEAD + length);
    frame.put_u16(0x8003);
    frame.put_u16(kind);
    frame.put_u8(flags);
    frame.put_uint(length as u64, 3);
    for part in body {
        frame.put_slice(part);
    }
    frame.freeze()
}

#[cfg(test)]
mod tests;
