//! The files of one log, in the order in which they were written.
//!
//! A kubelet renames `NAME` to `NAME.20060102-150405`, has it reopened, and later compresses all of the
//! renamed files but the newest to `NAME.20060102-150405.gz`. Logs that [`rotate`](crate::rotate) rotates
//! have the same names.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::dir::LogDir;
use super::error::ReadError;
use super::text::LogText;
use super::waiter::ReadInterest;

/// The most rotated files that are read, the newest ones. Kubelets keep four.
const ROTATED_MAX: usize = 1000;

/// A rotated file of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RotatedLog {
    pub(super) name: OsString,
    pub(super) is_compressed: bool,
}

/// The rotated files of a log, the oldest one first.
///
/// # Errors
/// [`ReadError::File`].
pub(super) fn rotated(dir: &LogDir, name: &OsStr) -> Result<Vec<RotatedLog>, ReadError> {
    // While a file is compressed, both files are there, and either has the whole text.
    let mut by_time: BTreeMap<Vec<u8>, bool> = BTreeMap::new();
    for found in dir.names(|found| rotation_time(found, name).is_some())? {
        if let Some((time, is_compressed)) = rotation_time(found.as_bytes(), name) {
            let known = by_time.entry(time.to_vec()).or_insert(is_compressed);
            *known &= is_compressed;
            if by_time.len() > ROTATED_MAX {
                by_time.pop_first();
            }
        }
    }
    let file = |(time, is_compressed): (Vec<u8>, bool)| {
        let suffix: &[u8] = if is_compressed { b".gz" } else { b"" };
        let name = [name.as_bytes(), b".", &time, suffix].concat();
        RotatedLog {
            name: OsString::from_vec(name),
            is_compressed,
        }
    };
    Ok(by_time.into_iter().map(file).collect())
}

/// The rotation time in the name of a rotated file of the log, and whether the file is compressed.
pub(crate) fn rotation_time<'a>(found: &'a [u8], name: &OsStr) -> Option<(&'a [u8], bool)> {
    let suffix = found.strip_prefix(name.as_bytes())?.strip_prefix(b".")?;
    let (time, is_compressed) = match suffix.strip_suffix(b".gz") {
        Some(time) => (time, true),
        None => (suffix, false),
    };
    let is_time = time.len() == 15
        && time.iter().enumerate().all(|(at, byte)| {
            if at == 8 {
                *byte == b'-'
            } else {
                byte.is_ascii_digit()
            }
        });
    is_time.then_some((time, is_compressed))
}

/// Opens a rotated file; one that has been compressed meanwhile is found too. `None` if it is not there any more.
///
/// # Errors
/// As [`LogDir::file`].
pub(super) fn open(
    dir: &LogDir,
    log: &RotatedLog,
    interest: &ReadInterest,
) -> Result<Option<LogText>, ReadError> {
    if let Some(opened) = dir.file(&log.name)? {
        return Ok(Some(LogText::new(opened, log.is_compressed, interest)));
    }
    if log.is_compressed {
        return Ok(None);
    }
    let mut name = log.name.clone();
    name.push(".gz");
    Ok(dir
        .file(&name)?
        .map(|opened| LogText::new(opened, true, interest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotated_files_are_known_by_the_time_in_their_names() {
        let name = OsStr::new("0.log");
        for (found, expected) in [
            ("0.log.20260102-030405", Some(("20260102-030405", false))),
            ("0.log.20260102-030405.gz", Some(("20260102-030405", true))),
            ("0.log", None),
            ("0.log.1", None),
            ("0.log.20260102-030405.tmp", None),
            ("0.log.20260102x030405", None),
            ("0.log.20260102-03040x", None),
            ("1.log.20260102-030405", None),
        ] {
            let expected = expected
                .map(|(time, is_compressed): (&str, bool)| (time.as_bytes(), is_compressed));
            assert_eq!(rotation_time(found.as_bytes(), name), expected, "{found}");
        }
    }
}
