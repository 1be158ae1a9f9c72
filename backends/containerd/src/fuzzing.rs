//! What holds for any bytes of shims. Called by fuzz targets and tests alone.

use crate::shim::ttrpc::{HEAD, MAX_MESSAGE, take};

/// Reads bytes as what a shim sends, in pieces as large as the first byte says: no more is kept than one frame and a piece, and nothing is
/// read twice.
///
/// # Panics
/// It does not hold.
pub fn ttrpc(data: &[u8]) {
    let Some((cut, data)) = data.split_first() else { return };
    let (mut received, mut taken) = (Vec::new(), 0);
    for piece in data.chunks(usize::from(*cut).max(1)) {
        received.extend_from_slice(piece);
        loop {
            let before = received.len();
            match take(&mut received, 1) {
                Ok(Some(_)) => {
                    assert!(before - received.len() >= HEAD, "a frame has a head");
                    taken += before - received.len();
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(received.len() <= HEAD + MAX_MESSAGE + piece.len(), "{} bytes are kept", received.len());
    }
    assert_eq!(taken + received.len(), data.len());
}
