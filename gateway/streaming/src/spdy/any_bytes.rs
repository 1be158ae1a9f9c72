//! What holds for any bytes that a client sends: the fuzz target and the property tests of the codec call it.

use bytes::BytesMut;

use super::frame::{Decoder, Event, MAX_CONTROL};

/// Decodes bytes that come in pieces of `cut`. No more comes out than went in, and no more is kept than one control frame.
///
/// # Panics
///
/// It does not hold.
pub fn check(bytes: &[u8], cut: usize) {
    let (mut decoder, mut buffer, mut data) = (Decoder::new(), BytesMut::new(), 0);
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
