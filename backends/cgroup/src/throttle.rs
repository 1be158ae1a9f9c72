//! Sets the limits of a cgroup on block devices.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use crate::error::{Error, Result};
use crate::files::{is_gone, read_if_there};
use crate::group::Group;
use crate::hierarchy::CgroupMode;
use crate::reader::Reader;

/// A block device, by major and minor number.
pub type Device = (i64, i64);

/// The limits of a device, per second; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceLimits {
    /// Bytes read.
    pub read_bytes: Option<u64>,
    /// Bytes written.
    pub write_bytes: Option<u64>,
    /// Read operations.
    pub reads: Option<u64>,
    /// Write operations.
    pub writes: Option<u64>,
}

/// Selects one limit.
type Limit = fn(&DeviceLimits) -> Option<u64>;

/// The files of v1, one for each limit.
const V1: [(&str, Limit); 4] = [
    ("blkio.throttle.read_bps_device", |limits| limits.read_bytes),
    ("blkio.throttle.write_bps_device", |limits| {
        limits.write_bytes
    }),
    ("blkio.throttle.read_iops_device", |limits| limits.reads),
    ("blkio.throttle.write_iops_device", |limits| limits.writes),
];

/// The keys of v2's `io.max`.
const V2: [(&str, Limit); 4] = [
    ("rbps", |limits| limits.read_bytes),
    ("wbps", |limits| limits.write_bytes),
    ("riops", |limits| limits.reads),
    ("wiops", |limits| limits.writes),
];

impl Reader {
    /// Sets exactly these limits on block devices for `group`: its other limits are lifted. Idempotent; does
    /// nothing if the group does not exist.
    ///
    /// # Errors
    /// [`Error::File`] if the kernel refuses a limit, for example for numbers that are not a device's.
    pub fn throttle(&self, group: &Group, wanted: &BTreeMap<Device, DeviceLimits>) -> Result<()> {
        match self.hierarchy().mode() {
            CgroupMode::V1 => {
                let Some(dir) = self.existing("blkio", group) else {
                    return Ok(());
                };
                V1.into_iter().try_for_each(|(name, limit)| {
                    set(&dir, name, wanted, |limits| {
                        limit(limits).unwrap_or(0).to_string()
                    })
                })
            }
            CgroupMode::V2 => {
                let Some(dir) = self.existing("", group) else {
                    return Ok(());
                };
                let word = |limits: &DeviceLimits, (word, limit): (&str, Limit)| {
                    let value =
                        limit(limits).map_or_else(|| "max".to_owned(), |rate| rate.to_string());
                    format!("{word}={value}")
                };
                set(&dir, "io.max", wanted, |limits| {
                    V2.map(|part| word(limits, part)).join(" ")
                })
            }
        }
    }
}

/// Writes the limits, formatted by `text`, of each wanted device, and of each other device in the file the
/// value for no limit. Does nothing if the directory of the group does not exist.
fn set(
    dir: &Path,
    name: &str,
    wanted: &BTreeMap<Device, DeviceLimits>,
    text: impl Fn(&DeviceLimits) -> String,
) -> Result<()> {
    let file = dir.join(name);
    let current = read_if_there(&file)?.unwrap_or_default();
    let devices: BTreeSet<Device> = current
        .lines()
        .filter_map(device)
        .chain(wanted.keys().copied())
        .collect();
    for device in devices {
        let limits = wanted.get(&device).copied().unwrap_or_default();
        let line = format!("{}:{} {}", device.0, device.1, text(&limits));
        // The kernel accepts one line per write.
        let written = OpenOptions::new()
            .write(true)
            .open(&file)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        match written {
            Ok(()) => {}
            // The error alone does not say that the group was removed: it is the same for an unknown device.
            Err(fault) if is_gone(&fault) && !dir.is_dir() => return Ok(()),
            Err(source) => return Err(Error::File { path: file, source }),
        }
    }
    Ok(())
}

/// Parses the device at the beginning of a line.
fn device(line: &str) -> Option<Device> {
    let (major, minor) = line.split_whitespace().next()?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::hierarchy::Hierarchy;

    #[test]
    fn throttle_line_begins_with_a_device() {
        assert_eq!(device("8:16 rbps=1 wbps=max"), Some((8, 16)));
        assert_eq!((device(""), device("Total 0")), (None, None));
    }

    #[test]
    fn group_that_was_removed_is_skipped_and_a_missing_file_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let wanted = BTreeMap::from([((8, 0), DeviceLimits::default())]);
        let set_in = |dir: &Path| set(dir, "io.max", &wanted, |_| String::new());
        set_in(&root.path().join("gone")).unwrap();
        assert!(matches!(set_in(root.path()), Err(Error::File { .. })));
    }

    #[test]
    fn removed_throttles_are_reset() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "io").unwrap();
        let dir = root.path().join("group");
        fs::create_dir(&dir).unwrap();
        fs::write(
            dir.join("io.max"),
            "8:0 rbps=max wbps=9 riops=max wiops=max\n",
        )
        .unwrap();
        let reader = Reader::new(Hierarchy::at(root.path()).unwrap());
        let group = Group::from_path(Path::new("group")).unwrap();
        reader.throttle(&group, &BTreeMap::new()).unwrap();
        // An ordinary file, unlike the kernel's, has the last write over the beginning of its old contents.
        let text = fs::read_to_string(dir.join("io.max")).unwrap();
        assert!(
            text.starts_with("8:0 rbps=max wbps=max riops=max wiops=max"),
            "{text}"
        );
        let limits = DeviceLimits {
            reads: Some(7),
            ..DeviceLimits::default()
        };
        reader
            .throttle(&group, &BTreeMap::from([((8, 0), limits)]))
            .unwrap();
        let text = fs::read_to_string(dir.join("io.max")).unwrap();
        assert!(
            text.starts_with("8:0 rbps=max wbps=max riops=7 wiops=max"),
            "{text}"
        );
    }
}
