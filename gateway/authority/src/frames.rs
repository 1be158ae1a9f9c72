//! The frames of a client: holds header blocks until they are whole, passes everything else on.

use std::ops::Range;

use crate::block::{Client, Malformed};

/// What a client of HTTP/2 says first.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The head of a frame: length (3 bytes), type, flags, stream (4 bytes).
pub(crate) const HEAD: usize = 9;

/// The types of frames that carry header blocks.
pub(crate) const HEADERS: u8 = 0x1;
pub(crate) const CONTINUATION: u8 = 0x9;

pub(crate) const END_HEADERS: u8 = 0x4;
pub(crate) const PADDED: u8 = 0x8;
pub(crate) const PRIORITY: u8 = 0x20;

/// What a dependency and a weight take.
const PRIORITY_LEN: usize = 5;

/// The largest frame that every server takes.
const MAX_FRAME: usize = 16 << 10;

/// The most that is held of one block, with the heads of its frames: four times the header list that tonic's servers take, at which `h2`
/// ends the connection.
const MAX_BUFFERED: usize = 64 << 10;

/// The most frames of one block. `h2` ends the connection of a client that sends more than a few.
const MAX_FRAMES: usize = 16;

/// Takes what a client sends, in any portions, and gives what `h2` is to read.
#[derive(Debug, Default)]
pub(crate) struct Rewriter {
    state: State,
    /// The frames of a block that is not whole yet, as they came, and then what there is of a frame's head.
    buffered: Vec<u8>,
    /// Where the last frame in `held` begins.
    last: usize,
    /// The frames of the block that is held.
    frames: usize,
    client: Client,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// So much of the preface has come.
    Preface(usize),
    /// The head of a frame comes.
    Head,
    /// The rest of a frame is passed on.
    Pass(usize),
    /// The rest of a frame is held.
    Buffer(usize),
    /// Everything is passed on, for good.
    PassThrough,
}

impl Default for State {
    fn default() -> Self {
        Self::Preface(0)
    }
}

/// The head of a frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) len: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: [u8; 4],
}

// === impl Rewriter ===

impl Rewriter {
    /// Whether everything is passed on from here on, with nothing held.
    pub(crate) fn is_pass_through(&self) -> bool {
        self.state == State::PassThrough
    }

    /// Takes all of `input`, and adds to `out` what goes on.
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
                    self.state = if taken == left { State::Head } else { State::Pass(left - taken) };
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

    /// Takes the end of the connection: what is held goes on as it came.
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
        self.state = if taken == expected.len() { State::Head } else { State::Preface(matched + taken) };
        taken
    }

    /// Decides what becomes of the frame whose head is the last that is held, once the head is whole.
    fn begin(&mut self, out: &mut Vec<u8>) {
        let Some(head) = Head::parse(&self.buffered[self.last..]) else { return };
        let of_block = match Head::parse(&self.buffered).filter(|_| self.last > 0) {
            None if head.kind != HEADERS => {
                out.append(&mut self.buffered);
                self.state = if head.len == 0 { State::Head } else { State::Pass(head.len) };
                return;
            }
            None => true,
            // Nothing but more of the block may come before its end.
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

    /// Goes on after the last frame that is held, and passes the block on if it ends with that frame.
    fn end_if_whole(&mut self, out: &mut Vec<u8>) {
        if self.state != State::Buffer(0) {
            return;
        }
        self.state = State::Head;
        let ends = Head::parse(&self.buffered[self.last..]).is_some_and(|head| head.flags & END_HEADERS != 0);
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

/// Follows the block of whole frames; the frames to pass on in their place, if they must be others.
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
    let priority = fragment.start.checked_sub(PRIORITY_LEN).filter(|_| first.flags & PRIORITY != 0);
    let priority = priority.map_or(&[][..], |start| &held[HEAD..][start..fragment.start]);
    Ok(rewritten.map(|block| frames(first, priority, &block)))
}

/// The frames of a block: those that it came in, without padding, with as many CONTINUATIONs as it needs.
fn frames(first: Head, priority: &[u8], block: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(block.len() + 2 * HEAD + priority.len());
    let (mut part, mut rest) = block.split_at(block.len().min(MAX_FRAME - priority.len()));
    let mut head =
        Head { len: priority.len() + part.len(), flags: first.flags & !(PADDED | END_HEADERS), ..first };
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
        head = Head { len: part.len(), kind: CONTINUATION, flags: 0, stream: first.stream };
    }
}

/// Gives the whole frames to `each`; what is left over behind them.
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
    /// The head that the bytes begin with, if they are enough.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, _) = bytes.split_first_chunk::<HEAD>()?;
        let [a, b, c, kind, flags, s, t, u, v] = *head;
        let len = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        // The first bit of a stream's number means nothing.
        Some(Self { len, kind, flags, stream: [s & 0x7f, t, u, v] })
    }

    /// Adds it to `out`. Its length is below 16 MiB.
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        let [.., a, b, c] = self.len.to_be_bytes();
        out.extend_from_slice(&[a, b, c, self.kind, self.flags]);
        out.extend_from_slice(&self.stream);
    }

    /// Where the part of the block is in the payload of HEADERS.
    pub(crate) fn fragment(self, payload: &[u8]) -> Result<Range<usize>, Malformed> {
        let padded = self.flags & PADDED != 0;
        let padding = if padded { usize::from(*payload.first().ok_or(Malformed)?) } else { 0 };
        let priority = if self.flags & PRIORITY != 0 { PRIORITY_LEN } else { 0 };
        let start = usize::from(padded) + priority;
        let end = payload.len().checked_sub(padding).filter(|end| *end >= start).ok_or(Malformed)?;
        Ok(start..end)
    }
}
