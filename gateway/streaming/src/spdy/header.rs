//! Header blocks: length-prefixed names and values, in one zlib stream per direction for the whole
//! connection.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::dictionary::{ID, dictionary};

/// The largest inflated header block, in bytes. Real clients send less than 200.
pub(crate) const MAX_BLOCK: usize = 64 * 1024;

/// The header of a zlib stream with a preset dictionary: method and window, and flags.
const ZLIB: [u8; 2] = [0x78, 0xbb];

/// Names, lower-case, with their values, in the sender's order.
pub(crate) type Headers = Vec<(String, String)>;

/// Reason why a header block cannot be decoded. The compression state is lost: the connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeaderError {
    #[error("header block is not compressed with the dictionary of SPDY/3")]
    Dictionary,
    #[error("header block is not valid deflate data")]
    Compression,
    #[error("header block has more than {MAX_BLOCK} bytes")]
    TooLong,
    #[error("header block is cut short or has bytes left over")]
    Truncated,
    #[error("header name is empty, or not lower-case ASCII")]
    Name,
    #[error("header value is not UTF-8")]
    Value,
}

/// Decodes the header blocks of one direction.
///
/// It is a raw inflater whose window is initialized with the dictionary, which is equivalent to a preset
/// dictionary.
#[derive(Debug)]
pub(crate) struct Inflater {
    inflate: Decompress,
    begun: bool,
}

/// Encodes the header blocks of one direction.
#[derive(Debug)]
pub(crate) struct Deflater {
    deflate: Compress,
    begun: bool,
}

// === impl Inflater ===

impl Inflater {
    pub(crate) fn new() -> Self {
        let dictionary = dictionary();
        let length = u16::try_from(dictionary.len())
            .expect("the dictionary is short")
            .to_le_bytes();
        // A stored block that is not the last one.
        let mut primer = vec![0, length[0], length[1], !length[0], !length[1]];
        primer.extend_from_slice(&dictionary);
        let mut inflate = Decompress::new(false);
        let mut out = vec![0; dictionary.len() + 1];
        let primed = inflate.decompress(&primer, &mut out, FlushDecompress::Sync);
        debug_assert!(primed.is_ok() && inflate.total_out() == dictionary.len() as u64);
        Self {
            inflate,
            begun: false,
        }
    }

    /// Decodes one block. After an error, no further block can be decoded.
    pub(crate) fn read(&mut self, mut block: &[u8]) -> Result<Headers, HeaderError> {
        if !self.begun {
            let (zlib, rest) = block.split_at_checked(6).ok_or(HeaderError::Dictionary)?;
            let check = u16::from_be_bytes([zlib[0], zlib[1]]);
            if zlib[0] & 0x0f != 8 || check % 31 != 0 || zlib[1] & 0x20 == 0 || zlib[2..] != ID {
                return Err(HeaderError::Dictionary);
            }
            self.begun = true;
            block = rest;
        }
        parse(&self.inflate(block)?)
    }

    fn inflate(&mut self, mut block: &[u8]) -> Result<Vec<u8>, HeaderError> {
        let mut plain = Vec::with_capacity(512);
        loop {
            if plain.len() == plain.capacity() {
                plain.reserve(plain.len());
            }
            let before = self.inflate.total_in();
            let made = plain.len();
            let status = self
                .inflate
                .decompress_vec(block, &mut plain, FlushDecompress::Sync)
                .map_err(|_| HeaderError::Compression)?;
            let consumed = usize::try_from(self.inflate.total_in() - before)
                .expect("no more than the block has");
            block = &block[consumed..];
            if plain.len() > MAX_BLOCK {
                return Err(HeaderError::TooLong);
            }
            match status {
                // The zlib stream of a connection must not end.
                Status::StreamEnd => return Err(HeaderError::Compression),
                Status::Ok | Status::BufError if plain.len() == plain.capacity() => {}
                Status::Ok | Status::BufError if block.is_empty() => return Ok(plain),
                Status::Ok | Status::BufError if consumed == 0 && made == plain.len() => {
                    return Err(HeaderError::Compression);
                }
                Status::Ok | Status::BufError => {}
            }
        }
    }
}

/// Parses an inflated block.
fn parse(plain: &[u8]) -> Result<Headers, HeaderError> {
    let mut rest = plain;
    let count = number(&mut rest)?;
    // Each header has at least two lengths and a name of one byte.
    if count > rest.len() / 9 {
        return Err(HeaderError::Truncated);
    }
    let mut headers = Vec::with_capacity(count);
    for _ in 0..count {
        let name = text(&mut rest)?;
        let value = text(&mut rest)?;
        if name.is_empty()
            || !name
                .iter()
                .all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase())
        {
            return Err(HeaderError::Name);
        }
        let name = String::from_utf8(name.to_vec()).map_err(|_| HeaderError::Name)?;
        let value = String::from_utf8(value.to_vec()).map_err(|_| HeaderError::Value)?;
        headers.push((name, value));
    }
    if rest.is_empty() {
        Ok(headers)
    } else {
        Err(HeaderError::Truncated)
    }
}

fn number(rest: &mut &[u8]) -> Result<usize, HeaderError> {
    let (number, after) = rest
        .split_first_chunk::<4>()
        .ok_or(HeaderError::Truncated)?;
    *rest = after;
    usize::try_from(u32::from_be_bytes(*number)).map_err(|_| HeaderError::Truncated)
}

fn text<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], HeaderError> {
    let length = number(rest)?;
    let (text, after) = rest
        .split_at_checked(length)
        .ok_or(HeaderError::Truncated)?;
    *rest = after;
    Ok(text)
}

// === impl Deflater ===

impl Deflater {
    pub(crate) fn new() -> Self {
        let mut deflater = Self {
            deflate: Compress::new(Compression::fast(), false),
            begun: false,
        };
        deflater.deflate(&dictionary());
        deflater
    }

    /// Encodes these headers as one block.
    pub(crate) fn write(&mut self, headers: &[(&str, &str)]) -> Vec<u8> {
        let mut plain = Vec::with_capacity(64);
        let length = |out: &mut Vec<u8>, length: usize| {
            out.extend_from_slice(
                &u32::try_from(length)
                    .expect("our headers are short")
                    .to_be_bytes(),
            );
        };
        length(&mut plain, headers.len());
        for (name, value) in headers {
            for text in [name, value] {
                length(&mut plain, text.len());
                plain.extend_from_slice(text.as_bytes());
            }
        }
        let mut block = Vec::new();
        if !self.begun {
            self.begun = true;
            block.extend_from_slice(&ZLIB);
            block.extend_from_slice(&ID);
        }
        block.extend_from_slice(&self.deflate(&plain));
        block
    }

    fn deflate(&mut self, mut plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(plain.len() + 64);
        loop {
            let before = self.deflate.total_in();
            let status = self
                .deflate
                .compress_vec(plain, &mut out, FlushCompress::Sync);
            status.expect("a compressor that is never finished does not fail");
            let consumed =
                usize::try_from(self.deflate.total_in() - before).expect("no more than there is");
            plain = &plain[consumed..];
            if plain.is_empty() && out.len() < out.capacity() {
                return out;
            }
            out.reserve(out.capacity());
        }
    }
}

#[cfg(test)]
mod tests;
