//! What holds for any bytes that the mount table may have: containers choose the names of mount points. Called by fuzz targets and
//! tests alone.

use crate::mounts::{parse_mountinfo, unescape};

/// Reads bytes as a mount table: every line is a mount or the whole is refused, and no escape makes a name longer.
///
/// # Panics
/// It does not hold.
pub fn mountinfo(data: &[u8]) {
    assert!(unescape(data).len() <= data.len());
    if let Ok(mounts) = parse_mountinfo(data) {
        let lines = data.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        assert_eq!(mounts.len(), lines);
    }
}
