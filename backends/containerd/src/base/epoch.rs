//! The epoch of the run directory: a random word in a file there that is as old as the other files. The
//! record of a task has the epoch in which it was created; if the directory has another one, its files were
//! lost since, and with them whether the task was started.
//!
//! Times of files would not show that: the clock may be set at any moment, and a tmpfs has no time of birth
//! before about Linux 5.18.

use std::fs;
use std::path::Path;

use switchyard_core::Result;
use switchyard_linux::files::if_present;

use crate::base::fs::{io_error, write_durable};
use crate::base::random::fill_random;

/// The file with the epoch, in the run directory.
const FILE: &str = "epoch";

/// The length of an epoch, in random bytes; the file has two digits for each.
const LEN: usize = 16;

/// The epoch of this directory, which begins now if there is none. `None`, and logged, if it can be neither read nor begun,
/// as on a full disk. Blocks.
pub(crate) fn load_or_begin(run: &Path) -> Option<String> {
    let path = run.join(FILE);
    let epoch = load(&path).and_then(|epoch| epoch.map_or_else(|| begin(&path), Ok));
    if let Err(error) = &epoch {
        tracing::warn!(
            error = error.report(),
            "the run directory has no epoch: a loss of its files does not show in containers that are created until the next start"
        );
    }
    epoch.ok()
}

/// Returns whether files of the run directory were lost since a record was written in this boot. Unknown, and
/// so `false`, if the record or the directory has no epoch. Pure.
pub(crate) fn has_changed(of_record: Option<&str>, of_run: Option<&str>) -> bool {
    matches!((of_record, of_run), (Some(then), Some(now)) if then != now)
}

/// The epoch in a file; `None` if there is no file, or no epoch in it.
fn load(path: &Path) -> Result<Option<String>> {
    let is_epoch =
        |text: &String| text.len() == 2 * LEN && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bytes = if_present(fs::read(path)).map_err(|fault| io_error("read", path, fault))?;
    Ok(bytes
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .filter(is_epoch))
}

fn begin(path: &Path) -> Result<String> {
    let mut random = [0; LEN];
    fill_random(&mut random);
    let epoch = hex::encode(random);
    write_durable(path, epoch.as_bytes(), 0o600)?;
    Ok(epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_lasts_until_its_file_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let first = load_or_begin(dir.path()).unwrap();
        assert_eq!(load_or_begin(dir.path()).as_ref(), Some(&first));
        fs::remove_file(&file).unwrap();
        let mut before = first;
        for damaged in [&b""[..], b"\0\0\0\0", b"an epoch", &[b'a'; 33]] {
            let next = load_or_begin(dir.path()).unwrap();
            assert!(next != before && load_or_begin(dir.path()).as_ref() == Some(&next));
            before = next;
            fs::write(&file, damaged).unwrap();
        }
        // As on a disk that fails, there is something that cannot be read.
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(load_or_begin(dir.path()), None);
        assert_eq!(load_or_begin(&dir.path().join("absent")), None);
    }

    #[test]
    fn loss_shows_only_where_both_epochs_are_known() {
        assert!(has_changed(Some("a"), Some("b")));
        for (of_record, of_run) in [
            (Some("a"), Some("a")),
            (None, Some("b")),
            (Some("a"), None),
            (None, None),
        ] {
            assert!(!has_changed(of_record, of_run), "{of_record:?} {of_run:?}");
        }
    }
}
