//! Properties that hold for any bytes: an independent decoder reads the same before and after the filter,
//! except for `:authority`.

use httlib_hpack::Decoder;

use crate::block::{Client, is_accepted, rewritten};
use crate::frames::{
    CONTINUATION, END_HEADERS, HEADERS, Head, PADDED, PREFACE, PRIORITY, Rewriter, for_each_frame,
};

/// A header: name, value, and its indexing flags.
type Field = (Vec<u8>, Vec<u8>, u8);

/// An item that the independent decoder reads.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    /// A frame without a header block, with its frame header.
    Frame(Vec<u8>),
    /// A complete block: its stream, the flags other than those for framing, its priority, and its headers.
    Block {
        stream: [u8; 4],
        flags: u8,
        priority: Vec<u8>,
        fields: Vec<Field>,
    },
}

/// Checks any bytes as a connection; the first byte is the size of the portions in which they are sent.
///
/// # Panics
/// As [`check_any_bytes`].
pub fn connection(data: &[u8]) {
    if let Some((cut, bytes)) = data.split_first() {
        check_any_bytes(bytes, usize::from(*cut));
    }
}

/// Checks any bytes as a client's frames after the preface, and then as header blocks; `cut` is the size of
/// the portions in which they are sent.
///
/// # Panics
/// If anything but `:authority` is changed, if a value is changed without need or to one that `h2` refuses,
/// or if the result depends on the portions.
pub fn check_any_bytes(bytes: &[u8], cut: usize) {
    check(&[PREFACE, bytes].concat(), cut);
    // Without a preface it is not an HTTP/2 client: nothing may change.
    if !bytes.starts_with(&PREFACE[..1]) {
        assert_eq!(filtered(bytes, cut), bytes);
    }
    // Each portion is sent as a block, prefixed by its length: this reaches the block parser directly.
    let mut stream = PREFACE.to_vec();
    let mut rest = bytes;
    while let Some((len, behind)) = rest.split_first() {
        let (block, behind) = behind.split_at(behind.len().min(usize::from(*len)));
        let head = Head {
            len: block.len(),
            kind: HEADERS,
            flags: END_HEADERS,
            stream: [0, 0, 0, 1],
        };
        head.encode(&mut stream);
        stream.extend_from_slice(block);
        rest = behind;
    }
    check(&stream, cut);
}

/// The bytes that a server reads if these are sent in portions of `cut` bytes, and the connection then ends.
///
/// # Panics
/// As [`check_any_bytes`].
#[must_use]
pub fn filtered(bytes: &[u8], cut: usize) -> Vec<u8> {
    let mut rewriter = Rewriter::default();
    let mut out = Vec::new();
    for portion in bytes.chunks(cut.max(1)) {
        rewriter.push(portion, &mut out);
    }
    rewriter.finish(&mut out);
    out
}

/// Checks one connection, including its preface.
///
/// # Panics
/// As [`check_any_bytes`].
pub fn check(bytes: &[u8], cut: usize) {
    let behind = filtered(bytes, bytes.len());
    assert_eq!(
        filtered(bytes, cut),
        behind,
        "the result depends on the portions"
    );
    let before = read(bytes);
    let behind = read(&behind);
    assert!(behind.len() >= before.len(), "{before:?} became {behind:?}");
    for (before, behind) in before.iter().zip(&behind) {
        match (before, behind) {
            (
                Read::Block {
                    stream,
                    flags,
                    priority,
                    fields,
                },
                Read::Block {
                    stream: s,
                    flags: f,
                    priority: p,
                    fields: others,
                },
            ) => {
                assert_eq!(
                    (stream, flags, priority, fields.len()),
                    (s, f, p, others.len())
                );
                fields
                    .iter()
                    .zip(others)
                    .for_each(|(field, other)| check_field(field, other));
            }
            _ => assert_eq!(before, behind),
        }
    }
}

fn check_field(before: &Field, behind: &Field) {
    if before.1 == behind.1 {
        assert_eq!(before, behind);
        return;
    }
    assert_eq!((&before.0, before.2), (&behind.0, behind.2));
    assert_eq!(before.0, b":authority", "only that may change");
    assert!(
        !is_accepted(&before.1),
        "{before:?} became {behind:?} without need"
    );
    assert!(is_accepted(&behind.1), "{behind:?} is not accepted either");
    assert_eq!(
        before.1.iter().copied().map(rewritten).collect::<Vec<_>>(),
        behind.1
    );
}

/// Reads a connection until its end, or until invalid HTTP/2.
fn read(bytes: &[u8]) -> Vec<Read> {
    let mut seen = Vec::new();
    let Some(frames) = bytes.strip_prefix(PREFACE) else {
        return seen;
    };
    let mut decoder = Decoder::with_dynamic_size(4096);
    // The independent decoder does not support blocks that end within a header: those are not passed to it.
    let mut client = Client::default();
    let mut open: Option<(Head, Vec<u8>, Vec<u8>)> = None;
    let mut broken = false;
    for_each_frame(frames, |head, payload| {
        if broken {
            return;
        }
        match (&mut open, head.kind) {
            (None, HEADERS) => {
                let Ok(fragment) = head.fragment(payload) else {
                    broken = true;
                    return;
                };
                let padded = usize::from(head.flags & PADDED != 0);
                open = Some((
                    head,
                    payload[padded..fragment.start].to_vec(),
                    payload[fragment].to_vec(),
                ));
            }
            (None, _) => {
                let mut frame = Vec::new();
                head.encode(&mut frame);
                frame.extend_from_slice(payload);
                seen.push(Read::Frame(frame));
            }
            (Some((first, _, block)), CONTINUATION) if first.stream == head.stream => {
                block.extend_from_slice(payload);
            }
            (Some(_), _) => broken = true,
        }
        if head.flags & END_HEADERS != 0
            && matches!(head.kind, HEADERS | CONTINUATION)
            && let Some((first, priority, mut block)) = open.take()
        {
            let mut fields = Vec::new();
            broken =
                client.follow(&block).is_err() || decoder.decode(&mut block, &mut fields).is_err();
            if !broken {
                let flags = first.flags & !(PADDED | END_HEADERS);
                assert_eq!(priority.is_empty(), flags & PRIORITY == 0);
                seen.push(Read::Block {
                    stream: first.stream,
                    flags,
                    priority,
                    fields,
                });
            }
        }
    });
    seen
}
