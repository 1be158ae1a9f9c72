//! Device nodes: the device that a path refers to.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::roots::Number;

/// Maximum depth of the search in a directory of nodes, and maximum number of entries read.
const DEPTH_MAX: usize = 4;
const ENTRIES_MAX: usize = 1024;

/// The number of the device at a path, or why it cannot be given to a task.
pub(super) fn number(path: &Path) -> Result<Number, String> {
    let found = device_number(&metadata(path)?);
    found.ok_or_else(|| format!("{} is not a device", path.display()))
}

/// The numbers of the device at a path, or of all devices in a directory, which a task gets together.
pub(super) fn numbers(path: &Path) -> Result<BTreeSet<Number>, String> {
    let found = metadata(path)?;
    if !found.is_dir() {
        return number(path).map(|number| BTreeSet::from([number]));
    }
    let mut numbers = BTreeSet::new();
    let mut left = ENTRIES_MAX;
    let mut open = vec![(path.to_owned(), 0)];
    while let Some((dir, depth)) = open.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if left == 0 {
                return Err(format!(
                    "{} has more than {ENTRIES_MAX} entries",
                    path.display()
                ));
            }
            left -= 1;
            // Links are not followed: their targets do not belong to the directory.
            let Ok(found) = entry.metadata() else {
                continue;
            };
            if found.is_dir() && depth < DEPTH_MAX {
                open.push((entry.path(), depth + 1));
            }
            numbers.extend(device_number(&found));
        }
    }
    if numbers.is_empty() {
        Err(format!("{} has no device", path.display()))
    } else {
        Ok(numbers)
    }
}

fn metadata(path: &Path) -> Result<Metadata, String> {
    let name = path.display();
    fs::metadata(path).map_err(|fault| {
        let is_missing = fault.kind() == io::ErrorKind::NotFound;
        if is_missing {
            format!("{name} does not exist")
        } else {
            format!("cannot stat {name}: {fault}")
        }
    })
}

fn device_number(found: &Metadata) -> Option<Number> {
    let kind = found.file_type();
    let number = found.rdev();
    if !kind.is_char_device() && !kind.is_block_device() {
        return None;
    }
    Some(Number {
        block: kind.is_block_device(),
        // The C library's encoding of device numbers.
        major: u32::try_from(((number >> 8) & 0xfff) | ((number >> 32) & 0xffff_f000)).ok()?,
        minor: u32::try_from((number & 0xff) | ((number >> 12) & 0xffff_ff00)).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_node() {
        let null = Number {
            block: false,
            major: 1,
            minor: 3,
        };
        assert_eq!(number(Path::new("/dev/null")), Ok(null));
        assert_eq!(
            number(Path::new("/dev")),
            Err("/dev is not a device".to_owned())
        );
        assert_eq!(
            number(Path::new("/dev/none")),
            Err("/dev/none does not exist".to_owned())
        );
        assert_eq!(numbers(Path::new("/dev/null")), Ok(BTreeSet::from([null])));
        assert_eq!(
            numbers(Path::new("/etc/hostname")),
            Err("/etc/hostname is not a device".to_owned())
        );
    }
}
