//! Parses a client's frames: buffers header blocks until they are complete, and passes all other frames on.

use std::ops::Range;

use crate::block::Client;
use crate::malformed::Malformed;

/// The connection preface of an HTTP/2 client.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The length of a frame header: length (3 bytes), type, flags, stream (4 bytes).
pub(crate) const HEAD: usize = 9;

/// The types of the frames that carry header blocks.
pub(crate) const HEADERS: u8 = 0x1;
pub(crate) const CONTINUATION: u8 = 0x9;

pub(crate) const END_HEADERS: u8 = 0x4;
pub(crate) const PADDED: u8 = 0x8;
pub(crate) const PRIORITY: u8 = 0x20;

/// The length of a stream dependency and weight, in bytes.
const PRIORITY_LEN: usize = 5;

/// The largest frame that every server accepts.
const MAX_FRAME: usize = 16 << 10;

/// The most bytes of one block that are buffered, including frame headers: four times the header list limit
/// of tonic's servers, at which `h2` closes the connection.
const MAX_BUFFERED: usize = 64 << 10;

/// The most frames of one block. `h2` closes the connection of a client that sends more than a few.
const MAX_FRAMES: usize = 16;

/// Accepts a client's bytes in any portions, and returns the bytes that `h2` is to read.
#[derive(Debug, Default)]
pub(crate) struct Rewriter {
    state: State,
    /// The unchanged frames of an incomplete block, followed by the available part of a frame header.
    buffered: Vec<u8>,
    /// The position of the last frame in `buffered`.
    last: usize,
    /// The number of frames of the buffered block.
    frames: usize,
    client: Client,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// This many bytes of the preface have been read.
    Preface(usize),
    /// A frame header is read.
    Head,
    /// The rest of a frame is passed on.
    Pass(usize),
    /// The rest of a frame is buffered.
    Buffer(usize),
    /// Everything is passed on from now on.
    PassThrough,
}

impl Default for State {
    fn default() -> Self {
        Self::Preface(0)
    }
}

/// A frame header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) len: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: [u8; 4],
}

// === impl Rewriter ===

impl Rewriter {
    /// Returns whether everything is passed on from now on, and nothing is buffered.
    pub(crate) fn is_pass_through(&self) -> bool {
        self.state == State::PassThrough
    }

    /// Processes all of `input`, and appends the bytes to pass on to `out`.
    pub(crate) fn push(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            let taken = match self.state {
                State::Preface(matched) => self.preface(matched, input, out),
                State::Head => {
                    let taken = input.len().min(HEAD - (self.buffered.len() - self.last));
                    self.buffered.extend_from_slice(&input[..taken]);
                    self.begin(out);
                    taken
                }
                State::Pass(left) => {
                    let taken = input.len().min(left);
                    out.extend_from_slice(&input[..taken]);
                    self.state = if taken == left {
                        State::Head
                    } else {
                        State::Pass(left - taken)
                    };
                    taken
                }
                State::Buffer(left) => {
                    let taken = input.len().min(left);
                    self.buffered.extend_from_slice(&input[..taken]);
                    self.state = State::Buffer(left - taken);
                    self.end_if_whole(out);
                    taken
                }
                State::PassThrough => {
                    out.extend_from_slice(input);
                    input.len()
                }
            };
            input = &input[taken..];
        }
    }

    /// The connection has ended: passes the buffered bytes on unchanged.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        self.enter_pass_through(out);
    }

    fn preface(&mut self, matched: usize, input: &[u8], out: &mut Vec<u8>) -> usize {
        let expected = &PREFACE[matched..];
        let taken = input.len().min(expected.len());
        if input[..taken] != expected[..taken] {
            self.enter_pass_through(out);
            return 0;
        }
        out.extend_from_slice(&input[..taken]);
        self.state = if taken == expected.len() {
            State::Head
        } else {
            State::Preface(matched + taken)
        };
        taken
    }

    /// Decides what to do with the frame whose header is at the end of the buffer, once the header is
    /// complete.
    fn begin(&mut self, out: &mut Vec<u8>) {
        let Some(head) = Head::parse(&self.buffered[self.last..]) else {
            return;
        };
        let of_block = match Head::parse(&self.buffered).filter(|_| self.last > 0) {
            None if head.kind != HEADERS => {
                out.append(&mut self.buffered);
                self.state = if head.len == 0 {
                    State::Head
                } else {
                    State::Pass(head.len)
                };
                return;
            }
            None => true,
            // Only a CONTINUATION of the same stream is valid before the end of a block.
            Some(first) => head.kind == CONTINUATION && head.stream == first.stream,
        };
        self.frames += 1;
        if of_block && self.frames <= MAX_FRAMES && self.buffered.len() + head.len <= MAX_BUFFERED {
            self.state = State::Buffer(head.len);
            self.end_if_whole(out);
        } else {
            self.enter_pass_through(out);
        }
    }

    /// Continues after the last buffered frame, and passes the block on if it ends with that frame.
    fn end_if_whole(&mut self, out: &mut Vec<u8>) {
        if self.state != State::Buffer(0) {
            return;
        }
        self.state = State::Head;
        let ends = Head::parse(&self.buffered[self.last..])
            .is_some_and(|head| head.flags & END_HEADERS != 0);
        if !ends {
            self.last = self.buffered.len();
            return;
        }
        match follow(&mut self.client, &self.buffered) {
            Ok(Some(mut other)) => out.append(&mut other),
            Ok(None) => out.extend_from_slice(&self.buffered),
            Err(Malformed) => return self.enter_pass_through(out),
        }
        self.buffered.clear();
        self.buffered.shrink_to(MAX_FRAME);
        (self.last, self.frames) = (0, 0);
        if self.client.sends_host_names() {
            self.enter_pass_through(out);
        }
    }

    fn enter_pass_through(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.buffered);
        self.state = State::PassThrough;
    }
}

/// Parses the block in complete frames; returns the frames to pass on in their place if they must be changed.
fn follow(client: &mut Client, held: &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
    let first = Head::parse(held).ok_or(Malformed)?;
    let fragment = first.fragment(&held[HEAD..HEAD + first.len])?;
    let rest = HEAD + first.len;
    let rewritten = if rest == held.len() {
        client.follow(&held[HEAD..][fragment.clone()])?
    } else {
        let mut block = held[HEAD..][fragment.clone()].to_vec();
        for_each_frame(&held[rest..], |_, payload| block.extend_from_slice(payload));
        client.follow(&block)?
    };
    let priority = fragment
        .start
        .checked_sub(PRIORITY_LEN)
        .filter(|_| first.flags & PRIORITY != 0);
    let priority = priority.map_or(&[][..], |start| &held[HEAD..][start..fragment.start]);
    Ok(rewritten.map(|block| frames(first, priority, &block)))
}

/// Encodes a block as frames: like the original ones, but without padding, and with as many CONTINUATIONs as
/// it needs.
fn frames(first: Head, priority: &[u8], block: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(block.len() + 2 * HEAD + priority.len());
    let (mut part, mut rest) = block.split_at(block.len().min(MAX_FRAME - priority.len()));
    let mut head = Head {
        len: priority.len() + part.len(),
        flags: first.flags & !(PADDED | END_HEADERS),
        ..first
    };
    let mut before = priority;
    loop {
        if rest.is_empty() {
            head.flags |= END_HEADERS;
        }
        head.encode(&mut out);
        out.extend_from_slice(before);
        out.extend_from_slice(part);
        if rest.is_empty() {
            return out;
        }
        before = &[];
        (part, rest) = rest.split_at(rest.len().min(MAX_FRAME));
        head = Head {
            len: part.len(),
            kind: CONTINUATION,
            flags: 0,
            stream: first.stream,
        };
    }
}

/// Calls `each` for every complete frame; returns the incomplete rest.
pub(crate) fn for_each_frame(mut bytes: &[u8], mut each: impl FnMut(Head, &[u8])) -> &[u8] {
    while let Some(head) = Head::parse(bytes)
        && let Some(payload) = bytes.get(HEAD..HEAD + head.len)
    {
        each(head, payload);
        bytes = &bytes[HEAD + head.len..];
    }
    bytes
}

// === impl Head ===

impl Head {
    /// Parses a frame header at the beginning of `bytes`, if there are enough of them.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, _) = bytes.split_first_chunk::<HEAD>()?;
        let [a, b, c, kind, flags, s, t, u, v] = *head;
        let len = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        // The first bit of a stream id is reserved.
        Some(Self {
            len,
            kind,
            flags,
            stream: [s & 0x7f, t, u, v],
        })
    }

    /// Appends it to `out`. Its length must be below 16 MiB.
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        let [.., a, b, c] = self.len.to_be_bytes();
        out.extend_from_slice(&[a, b, c, self.kind, self.flags]);
        out.extend_from_slice(&self.stream);
    }

    /// The position of the block's fragment in the payload of HEADERS.
    pub(crate) fn fragment(self, payload: &[u8]) -> Result<Range<usize>, Malformed> {
        let padded = self.flags & PADDED != 0;
        let padding = if padded {
            usize::from(*payload.first().ok_or(Malformed)?)
        } else {
            0
        };
        let priority = if self.flags & PRIORITY != 0 {
            PRIORITY_LEN
        } else {
            0
        };
        let start = usize::from(padded) + priority;
        let end = payload
            .len()
            .checked_sub(padding)
            .filter(|end| *end >= start)
            .ok_or(Malformed)?;
        Ok(start..end)
    }
}
