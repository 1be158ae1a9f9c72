//! Fuzz targets: properties that hold for any mount table, since containers choose the names of mount points.
//! Called only by fuzzers and tests.

use crate::mounts::{parse_mountinfo, unescape};

/// Reads bytes as a mount table: every line is a mount or the whole table is refused, and no escape makes a
/// name longer.
///
/// # Panics
/// If that does not hold.
pub fn mountinfo(data: &[u8]) {
    assert!(unescape(data).len() <= data.len());
    if let Ok(mounts) = parse_mountinfo(data) {
        let lines = data.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        assert_eq!(mounts.len(), lines);
    }
}
