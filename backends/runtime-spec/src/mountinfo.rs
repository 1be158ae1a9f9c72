//! Parses the propagation of the host's mounts from `/proc/<pid>/mountinfo` (see proc(5)).

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::input::HostPropagation;

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPoint {
    /// The mount point.
    pub path: PathBuf,
    /// Its propagation.
    pub propagation: HostPropagation,
}

/// The mounts in the text of a mountinfo file, in its order. Malformed lines are skipped.
#[must_use]
pub fn parse(text: &[u8]) -> Vec<MountPoint> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountPoint> {
    // 36 35 98:0 /root /point options optional-fields... - type source super-options
    let mut words = line.split(|byte| *byte == b' ').skip(4);
    let path = unescaped(words.next()?);
    words.next()?;
    let mut propagation = HostPropagation::Private;
    for word in words.take_while(|word| *word != b"-") {
        if word.starts_with(b"shared:") {
            propagation = HostPropagation::Shared;
        } else if word.starts_with(b"master:") && propagation == HostPropagation::Private {
            propagation = HostPropagation::Slave;
        }
    }
    Some(MountPoint { path, propagation })
}

/// Undoes the escapes `\ooo` in a path, with which the kernel writes blanks and backslashes.
fn unescaped(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        match octal {
            Some(digits) if *first == b'\\' => {
                let value = digits.iter().fold(0_u32, |sum, digit| sum * 8 + u32::from(digit - b'0'));
                bytes.push(u8::try_from(value & 0xff).unwrap_or(b'?'));
                rest = &tail[3..];
            }
            Some(_) | None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// The propagation of the mount that `path` is on: that with the longest mount point above it, and the last
/// one of several stacked mounts. `path` has no symlinks.
#[must_use]
pub fn propagation_of(mounts: &[MountPoint], path: &Path) -> Option<HostPropagation> {
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.path))
        .max_by_key(|mount| mount.path.as_os_str().as_bytes().len())
        .map(|mount| mount.propagation)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &[u8] = b"\
22 1 8:1 / / rw shared:1 - ext4 /dev/sda rw
23 22 0:5 / /mnt rw - tmpfs t rw
24 23 0:6 / /mnt/a\\040b rw master:7 - tmpfs t rw
25 23 0:7 / /mnt/both rw shared:3 master:2 - tmpfs t rw
26 22 0:8 / /over rw - tmpfs t rw
27 22 0:9 / /over rw shared:9 - tmpfs t rw
nonsense
";

    #[track_caller]
    fn check(path: &str, expected: HostPropagation) {
        assert_eq!(propagation_of(&parse(TEXT), Path::new(path)), Some(expected));
    }

    #[test]
    fn path_belongs_to_its_nearest_mount() {
        check("/etc", HostPropagation::Shared);
        check("/mntx", HostPropagation::Shared);
        check("/mnt/c", HostPropagation::Private);
        check("/mnt/a b/c", HostPropagation::Slave);
        check("/mnt/both", HostPropagation::Shared);
        check("/over/x", HostPropagation::Shared);
    }

    proptest! {
        #[test]
        fn any_text_parses_without_panic(text in prop::collection::vec(any::<u8>(), 0..200), tail in "[0-9 \\\\/a-]{0,80}") {
            let _ = parse(&text);
            let _ = parse(tail.as_bytes());
        }
    }
}
