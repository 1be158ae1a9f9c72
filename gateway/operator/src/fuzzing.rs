//! Properties that hold for any bytes that a disk returns as a segment of the history. Called only by fuzz targets and
//! tests.

use crate::events::record;

/// Decodes bytes as records, a line each: what is read is bounded, and is written and read again as the same.
///
/// # Panics
/// If a property does not hold.
pub fn history_records(data: &[u8]) {
    for line in data.split(|byte| *byte == b'\n') {
        let Some(event) = record::decode(line) else {
            continue;
        };
        assert!(line.len() <= record::LINE_MAX);
        assert!(
            event.name.len() <= 512 && event.detail.len() <= 1024 && event.names.len() <= 16,
            "{event:?}"
        );
        let written = record::encode(&event);
        let text = written.strip_suffix('\n').expect("a line has its end");
        assert!(!text.contains('\n'), "{text}");
        // Fields that have a default are written, so that it may be longer.
        if text.len() <= record::LINE_MAX {
            assert_eq!(record::decode(text.as_bytes()), Some(event));
        }
    }
}
