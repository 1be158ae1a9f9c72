//! Fuzz targets: properties that hold for any text in the files of cgroups and of `/proc`. Called only by
//! fuzzers and tests.

use switchyard_linux::mounts::MountTable;

use crate::hierarchy::Hierarchy;
use crate::{net, parse};

/// Reads bytes as each of the files: no parser returns more entries than there are lines, and a mount table
/// without a hierarchy is refused.
///
/// # Panics
/// If that does not hold.
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
        for line in [Some(pressure.some), pressure.full].into_iter().flatten() {
            assert!(
                [line.avg10, line.avg60, line.avg300]
                    .iter()
                    .all(|share| share.is_finite()),
                "{line:?}"
            );
        }
    }
    assert!(
        net::parse(text)
            .iter()
            .all(|interface| !interface.name.is_empty())
    );
    for is_unified in [false, true] {
        if let Ok(hierarchy) = Hierarchy::of_mounts(&MountTable::from_text(data), is_unified) {
            assert!(!hierarchy.mounts().is_empty());
        }
    }
}
