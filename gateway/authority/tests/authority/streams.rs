//! A client's bytes, in all encodings that HPACK and HTTP/2 have.

use httlib_hpack::{Encoder, EncoderInput};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// Encoding of the name `:authority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    Literal,
    HuffmanLiteral,
    Static,
    /// By the index of an entry in the dynamic table with that name, if there is one.
    Dynamic,
    /// By the index of an entry with that name and value, if there is one.
    Whole,
}

/// Encoding of a value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value {
    Plain,
    Huffman,
}

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) authority: Vec<u8>,
    pub(crate) name: Name,
    pub(crate) value: Value,
    /// Without indexing, with it, or never indexed.
    pub(crate) indexing: u8,
    /// Headers after the authority, with the encoder's flags.
    pub(crate) extra: Vec<(Vec<u8>, Vec<u8>, u8)>,
    pub(crate) padding: Option<u8>,
    pub(crate) priority: bool,
    /// The size of the fragments that the block is split into; 0 for one.
    pub(crate) split: usize,
    /// A table size update.
    pub(crate) resize: Option<u32>,
}

/// A client, and the bytes that it has sent.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) sent: Vec<u8>,
    encoder: Encoder<'static>,
    /// The entries of the client's dynamic table, the newest first.
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    max: usize,
    stream: u32,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            authority: Vec::new(),
            name: Name::Static,
            value: Value::Plain,
            indexing: 0,
            extra: Vec::new(),
            padding: None,
            priority: false,
            split: 0,
            resize: None,
        }
    }
}

impl Default for Client {
    fn default() -> Self {
        let sent = [PREFACE, &SETTINGS].concat();
        Self {
            sent,
            encoder: Encoder::default(),
            entries: Vec::new(),
            max: 4096,
            stream: 1,
        }
    }
}

impl Client {
    pub(crate) fn send(&mut self, request: &Request) {
        let block = self.block(request);
        let split = if request.split == 0 {
            block.len()
        } else {
            request.split
        };
        let mut parts = block.chunks(split).peekable();
        let mut payload = Vec::new();
        let mut flags = 1;
        if let Some(padding) = request.padding {
            payload.push(padding);
            flags |= 8;
        }
        if request.priority {
            payload.extend_from_slice(&[0, 0, 0, 0, 15]);
            flags |= 0x20;
        }
        payload.extend_from_slice(parts.next().unwrap());
        payload.extend(std::iter::repeat_n(0, request.padding.unwrap_or(0).into()));
        flags |= if parts.peek().is_none() { 4 } else { 0 };
        self.frame(1, flags, &payload);
        while let Some(part) = parts.next() {
            self.frame(9, if parts.peek().is_none() { 4 } else { 0 }, part);
        }
        // A frame on stream 0.
        let stream = std::mem::replace(&mut self.stream, 0);
        self.frame(6, 0, b"pingpong");
        self.stream = stream + 2;
    }

    fn frame(&mut self, kind: u8, flags: u8, payload: &[u8]) {
        let [.., a, b, c] = payload.len().to_be_bytes();
        self.sent.extend_from_slice(&[a, b, c, kind, flags]);
        self.sent.extend_from_slice(&self.stream.to_be_bytes());
        self.sent.extend_from_slice(payload);
    }

    fn block(&mut self, request: &Request) -> Vec<u8> {
        let mut block = Vec::new();
        if let Some(size) = request.resize {
            self.encoder
                .update_max_dynamic_size(size, &mut block)
                .unwrap();
            self.max = usize::try_from(size).unwrap();
            self.forget();
        }
        // :method, :scheme and :path.
        block.extend_from_slice(&[0x83, 0x86, 0x84]);
        let flags = [0, Encoder::WITH_INDEXING, Encoder::NEVER_INDEXED]
            [usize::from(request.indexing)]
            | match request.value {
                Value::Plain => 0,
                Value::Huffman => Encoder::HUFFMAN_VALUE,
            };
        let named = |entry: &(Vec<u8>, Vec<u8>)| entry.0 == b":authority";
        let known = self.entries.iter().position(named);
        let whole = self
            .entries
            .iter()
            .position(|entry| named(entry) && entry.1 == request.authority);
        let index = |place: usize| u32::try_from(place + 62).unwrap();
        let value = request.authority.clone();
        let input = match (request.name, known, whole) {
            (Name::Whole, _, Some(place)) => EncoderInput::Indexed(index(place)),
            (Name::Dynamic, Some(place), _) => {
                EncoderInput::IndexedName(index(place), value, flags)
            }
            (Name::Static | Name::Dynamic | Name::Whole, ..) => {
                EncoderInput::IndexedName(1, value, flags)
            }
            (Name::Literal, ..) => EncoderInput::Literal(b":authority".to_vec(), value, flags),
            (Name::HuffmanLiteral, ..) => {
                EncoderInput::Literal(b":authority".to_vec(), value, flags | Encoder::HUFFMAN_NAME)
            }
        };
        let inserts =
            flags & Encoder::WITH_INDEXING != 0 && !matches!(input, EncoderInput::Indexed(_));
        self.encoder.encode(input, &mut block).unwrap();
        if inserts {
            self.remember(b":authority", &request.authority);
        }
        for (name, value, flags) in &request.extra {
            self.encoder
                .encode((name.clone(), value.clone(), *flags), &mut block)
                .unwrap();
            if flags & Encoder::WITH_INDEXING != 0 {
                self.remember(name, value);
            }
        }
        block
    }

    fn remember(&mut self, name: &[u8], value: &[u8]) {
        self.entries.insert(0, (name.to_vec(), value.to_vec()));
        self.forget();
    }

    fn forget(&mut self) {
        let mut size = 0;
        let max = self.max;
        let fits = self.entries.iter().take_while(|(name, value)| {
            size += name.len() + value.len() + 32;
            size <= max
        });
        let count = fits.count();
        self.entries.truncate(count);
    }
}
