//! What holds for any bytes that a client of a stream sends. Called by fuzz targets and tests alone.

#[cfg(feature = "fuzzing")]
mod session;
#[cfg(feature = "fuzzing")]
mod websocket;

use bytes::BytesMut;

use crate::resize::{LIMIT, Sizes};
use crate::spdy::frame::{Decoder, Event, MAX_CONTROL};

#[cfg(feature = "fuzzing")]
pub use session::session;
#[cfg(feature = "fuzzing")]
pub use websocket::websocket;

/// Decodes bytes as SPDY that comes in pieces as large as the first byte says. No more comes out than went in, and no more is kept than
/// one control frame.
///
/// # Panics
/// It does not hold.
pub fn frames(data: &[u8]) {
    if let Some((cut, bytes)) = data.split_first() {
        frames_in(bytes, usize::from(*cut));
    }
}

/// The same in pieces of `cut`.
pub(crate) fn frames_in(bytes: &[u8], cut: usize) {
    let mut decoder = Decoder::new();
    let mut buffer = BytesMut::new();
    let mut data = 0;
    for piece in bytes.chunks(cut.max(1)) {
        buffer.extend_from_slice(piece);
        loop {
            match decoder.next(&mut buffer) {
                Ok(Some(Event::Data { bytes, .. })) => data += bytes.len(),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(buffer.len() < MAX_CONTROL + 8, "{} bytes are kept", buffer.len());
    }
    assert!(data <= bytes.len(), "{data} bytes came out of {}", bytes.len());
}

/// Reads bytes as sizes of a terminal, in pieces as large as the first byte says. No more is kept than one object may have.
///
/// # Panics
/// It does not hold.
pub fn resize(data: &[u8]) {
    let Some((cut, bytes)) = data.split_first() else { return };
    let mut sizes = Sizes::default();
    for piece in bytes.chunks(usize::from(*cut).max(1)) {
        let _ = sizes.feed(piece);
        assert!(sizes.kept() <= LIMIT, "{} bytes are kept", sizes.kept());
    }
}
