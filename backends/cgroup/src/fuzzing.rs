//! What holds for any text in the files of control groups and of `/proc`. Called by fuzz targets and tests alone.

use crate::hierarchy::Hierarchy;
use crate::{net, parse};

/// Reads bytes as each of the files: nothing comes out that was not in, and a mount table without a hierarchy is refused.
///
/// # Panics
/// It does not hold.
pub fn files(data: &[u8]) {
    let text = &*String::from_utf8_lossy(data);
    let lines = text.lines().count();
    assert!(parse::flat_keyed(text).len() <= lines);
    assert!(parse::device_operations(text).count() <= lines);
    assert!(parse::nested_keyed(text).count() <= lines);
    assert!(parse::pids(text).iter().all(|pid| *pid != 0));
    assert!(parse::limit_v1(text).is_none_or(|limit| limit < 1 << 62));
    let _ = (parse::number(text), parse::limit_v2(text));
    if let Some(pressure) = parse::pressure(text) {
        for line in [pressure.some, pressure.full] {
            assert!([line.avg10, line.avg60, line.avg300].iter().all(|share| share.is_finite()), "{line:?}");
        }
    }
    assert!(net::parse(text).iter().all(|interface| !interface.name.is_empty()));
    if let Ok(hierarchy) = Hierarchy::from_mountinfo(text) {
        assert!(!hierarchy.mounts().is_empty());
    }
}
