//! Finds `:authority` in a header block, and replaces it by a value that `h2` accepts (RFC 7541, section 6).

use http::uri::Authority;

use crate::huffman;
use crate::malformed::Malformed;
use crate::table::{Name, Table};

/// The name of the header that is rewritten.
const AUTHORITY: &[u8] = b":authority";

/// The bit of a string's first byte that marks Huffman coding; the other seven bits begin its length.
const HUFFMAN: u8 = 0x80;

/// The state of one client: its dynamic table, and the kind of its `:authority` values.
#[derive(Debug, Default)]
pub(crate) struct Client {
    table: Table,
    sends: Sends,
}

/// The kind of a client's `:authority` values.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Sends {
    /// No request yet.
    #[default]
    Nothing,
    /// The first request has a value that `h2` accepts.
    HostNames,
    /// Any other value: all requests of the client are checked.
    Others,
}

/// A string in a block, by the position of its bytes.
struct Text<'a> {
    bytes: &'a [u8],
    coded: bool,
    end: usize,
}

// === impl Client ===

impl Client {
    /// Returns whether the client's blocks can be passed on unchanged.
    pub(crate) fn sends_host_names(&self) -> bool {
        self.sends == Sends::HostNames
    }

    /// Parses a whole block, and updates the state; returns the block to pass on in its place if it must be
    /// changed.
    ///
    /// # Errors
    /// [`Malformed`]; the client cannot be followed any further.
    pub(crate) fn follow(&mut self, block: &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
        let mut rewritten: Option<Vec<u8>> = None;
        let mut at = 0;
        let mut copied = 0;
        let mut may_resize = true;
        while let Some(first) = block.get(at) {
            let literal = match first {
                0x80.. => None,
                0x40..0x80 => Some(6),
                // RFC 7541, 4.2: the size of the table changes at the beginning of a block alone.
                0x20..0x40 if !may_resize => return Err(Malformed),
                0x20..0x40 => {
                    at = self.resize(block, at)?;
                    continue;
                }
                0x00..0x20 => Some(4),
            };
            may_resize = false;
            let Some(prefix) = literal else {
                let (index, end) = integer(block, at, 7)?;
                self.table.name(index)?;
                at = end;
                continue;
            };
            let (name, value_at) = self.name(block, at, prefix)?;
            let value = text(block, value_at)?;
            at = value.end;
            if name.is_authority
                && let Some(other) = self.rewrite(&value)?
            {
                let out = rewritten.get_or_insert_default();
                out.extend_from_slice(&block[copied..value_at]);
                push_string(&other, out);
                copied = at;
            }
            if prefix == 6 {
                // A rewritten value has the same length: this table and that of h2 evict the same entries.
                self.table.insert(name, value.decoded_len()?);
            }
        }
        if let Some(out) = &mut rewritten {
            out.extend_from_slice(&block[copied..]);
        }
        Ok(rewritten)
    }

    fn resize(&mut self, block: &[u8], at: usize) -> Result<usize, Malformed> {
        let (size, end) = integer(block, at, 5)?;
        self.table.resize(size)?;
        Ok(end)
    }

    /// The name of a literal, and the position of its value.
    fn name(&self, block: &[u8], at: usize, prefix: u32) -> Result<(Name, usize), Malformed> {
        let (index, end) = integer(block, at, prefix)?;
        if index > 0 {
            return Ok((self.table.name(index)?, end));
        }
        let name = text(block, end)?;
        let decoded = name.decoded()?;
        Ok((
            Name {
                len: decoded.len(),
                is_authority: decoded == AUTHORITY,
            },
            name.end,
        ))
    }

    /// The replacement for an `:authority`, if it must be changed. An empty one is left to `h2`: no other
    /// value has its length.
    fn rewrite(&mut self, value: &Text<'_>) -> Result<Option<Vec<u8>>, Malformed> {
        let mut name = value.decoded()?;
        if name.is_empty() {
            return Ok(None);
        }
        if is_accepted(&name) {
            if self.sends == Sends::Nothing {
                self.sends = Sends::HostNames;
            }
            return Ok(None);
        }
        self.sends = Sends::Others;
        for byte in &mut name {
            *byte = rewritten(*byte);
        }
        Ok(Some(name))
    }
}

// === impl Text ===

impl Text<'_> {
    fn decoded(&self) -> Result<Vec<u8>, Malformed> {
        if !self.coded {
            return Ok(self.bytes.to_vec());
        }
        let mut decoded = Vec::new();
        huffman::decode(self.bytes, |symbol| decoded.push(symbol))?;
        Ok(decoded)
    }

    fn decoded_len(&self) -> Result<usize, Malformed> {
        if !self.coded {
            return Ok(self.bytes.len());
        }
        let mut len = 0;
        huffman::decode(self.bytes, |_| len += 1)?;
        Ok(len)
    }
}

/// Returns whether `h2` accepts the value: it applies the same check.
pub(crate) fn is_accepted(authority: &[u8]) -> bool {
    Authority::try_from(authority).is_ok()
}

/// The replacement for a byte in a value that is not accepted.
pub(crate) const fn rewritten(byte: u8) -> u8 {
    match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' => byte,
        _ => b'-',
    }
}

/// Decodes the integer whose prefix of `prefix` bits is in the byte at `at`; returns it with the position
/// after it. It has at most five bytes, as in `h2`.
fn integer(block: &[u8], at: usize, prefix: u32) -> Result<(usize, usize), Malformed> {
    let mask = (1_usize << prefix) - 1;
    let byte = |at: usize| {
        block
            .get(at)
            .map(|byte| usize::from(*byte))
            .ok_or(Malformed)
    };
    let mut value = byte(at)? & mask;
    if value < mask {
        return Ok((value, at + 1));
    }
    // The bound on the number of bytes keeps the value from overflowing.
    for (shift, at) in [0, 7, 14, 21].into_iter().zip(at + 1..) {
        let next = byte(at)?;
        value += (next & 0x7f) << shift;
        if next & 0x80 == 0 {
            return Ok((value, at + 1));
        }
    }
    Err(Malformed)
}

/// Parses the string at `at`.
fn text(block: &[u8], at: usize) -> Result<Text<'_>, Malformed> {
    let coded = block.get(at).ok_or(Malformed)? & HUFFMAN != 0;
    let (len, begin) = integer(block, at, 7)?;
    let end = begin + len;
    Ok(Text {
        bytes: block.get(begin..end).ok_or(Malformed)?,
        coded,
        end,
    })
}

/// Appends a string without Huffman coding.
fn push_string(bytes: &[u8], out: &mut Vec<u8>) {
    const FULL: usize = 0x7f;
    let low = |number: usize| u8::try_from(number & FULL).unwrap_or_default();
    if bytes.len() < FULL {
        out.push(low(bytes.len()));
    } else {
        out.push(low(FULL));
        let mut left = bytes.len() - FULL;
        while left > FULL {
            out.push(low(left) | HUFFMAN);
            left >>= 7;
        }
        out.push(low(left));
    }
    out.extend_from_slice(bytes);
}
