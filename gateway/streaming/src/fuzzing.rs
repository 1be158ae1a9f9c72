//! Properties that hold for any bytes that a streaming client sends. Called only by fuzz targets and tests.

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

/// Decodes bytes as SPDY, in pieces of the size in the first byte. The output is no larger than the input,
/// and no more than one control frame is buffered.
///
/// # Panics
/// If a property does not hold.
pub fn frames(data: &[u8]) {
    if let Some((cut, bytes)) = data.split_first() {
        frames_in(bytes, usize::from(*cut));
    }
}

/// As [`frames`], in pieces of `cut` bytes.
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
        assert!(
            buffer.len() < MAX_CONTROL + 8,
            "{} bytes are kept",
            buffer.len()
        );
    }
    assert!(
        data <= bytes.len(),
        "{data} bytes came out of {}",
        bytes.len()
    );
}

/// Decodes bytes as sizes of a terminal, in pieces of the size in the first byte. No more than the limit of
/// one object is buffered.
///
/// # Panics
/// If a property does not hold.
pub fn resize(data: &[u8]) {
    let Some((cut, bytes)) = data.split_first() else {
        return;
    };
    let mut sizes = Sizes::default();
    for piece in bytes.chunks(usize::from(*cut).max(1)) {
        let _ = sizes.feed(piece);
        assert!(sizes.kept() <= LIMIT, "{} bytes are kept", sizes.kept());
    }
}
