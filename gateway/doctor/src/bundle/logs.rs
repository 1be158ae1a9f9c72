//! The logs of the daemon and of the processes that it needs: their ends.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use switchyard_linux::report;
use switchyard_node_files::{ReadError, RegularFile};

use crate::{NodeView, PROGRAM_DIRS, run_command, search_path};

/// Amount of the end of a log that is taken, in bytes.
pub(super) const LOG_MAX: usize = 5 << 20;

/// Time limit of journalctl.
const JOURNAL_LIMIT: Duration = Duration::from_secs(30);

/// The end of a log file.
pub(super) fn of_file(path: &Path) -> Result<Vec<u8>, String> {
    RegularFile::open_no_link(path)
        .and_then(end)
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// The end of the file that a process writes its messages to; an error if it writes them elsewhere.
pub(super) fn of_process(pid: u32) -> Result<Vec<u8>, String> {
    let path = format!("/proc/{pid}/fd/2");
    RegularFile::open(Path::new(&path))
        .and_then(end)
        .map_err(|error| {
            format!("standard error of process {pid} is no file that can be read: {error}")
        })
}

/// The last lines of a file.
fn end(file: RegularFile) -> Result<Vec<u8>, ReadError> {
    let max = u64::try_from(LOG_MAX).unwrap_or(u64::MAX);
    let start = file.metadata().len().saturating_sub(max);
    let mut file = file.into_file();
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    // The first line is not whole.
    let whole = if start == 0 {
        0
    } else {
        bytes
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1)
    };
    bytes.drain(..whole);
    Ok(bytes)
}

/// The last messages of a unit in the journal, of those that further options of journalctl select; an error if there are none.
pub(super) fn of_unit(
    view: &dyn NodeView,
    unit: &str,
    options: &[&str],
) -> Result<Vec<u8>, String> {
    let text = journal(view, &[&["--unit", unit][..], options].concat())?;
    if text.is_empty() {
        Err(format!("the journal has nothing of {unit}"))
    } else {
        Ok(text)
    }
}

/// The last messages in the journal that options of journalctl select. They are asked for in reverse, so that what is beyond the
/// limit is the oldest.
pub(super) fn journal(view: &dyn NodeView, selection: &[&str]) -> Result<Vec<u8>, String> {
    let dirs = PROGRAM_DIRS.map(Into::into);
    let journalctl = view
        .program("journalctl", &dirs)
        .ok_or("there is no journalctl")?;
    let form = [
        "--reverse",
        "--no-pager",
        "--quiet",
        "--output=short-iso-precise",
    ];
    let args = [selection, &form[..]].concat();
    let done = run_command(&journalctl, &args, &search_path(), JOURNAL_LIMIT, LOG_MAX);
    let done = done.map_err(|error| report(&error))?;
    if done.status.is_some_and(|status| status != 0) {
        return Err(format!(
            "journalctl: {}",
            String::from_utf8_lossy(&done.stderr).trim()
        ));
    }
    Ok(in_order(&done.stdout, done.is_cut))
}

/// The lines of a log that are warnings or errors, in both forms of the daemon's log.
pub(super) fn warnings(log: &[u8]) -> Vec<u8> {
    const LEVELS: [&str; 4] = [
        r#""level":"WARN""#,
        r#""level":"ERROR""#,
        " WARN ",
        " ERROR ",
    ];
    let is_warning = |line: &&[u8]| {
        let line = String::from_utf8_lossy(line);
        LEVELS.iter().any(|level| line.contains(level))
    };
    let lines = log.split_inclusive(|byte| *byte == b'\n');
    lines.filter(is_warning).flatten().copied().collect()
}

/// Leaves the last lines of a text, which have at most `max` bytes.
pub(super) fn keep_end(text: &mut Vec<u8>, max: usize) {
    let over = text.len().saturating_sub(max);
    if over == 0 {
        return;
    }
    let end_of_line = text[over - 1..].iter().position(|byte| *byte == b'\n');
    let whole = end_of_line.map_or(text.len(), |at| over + at);
    text.drain(..whole);
}

/// Lines in reverse; the last one is left out if it is not whole.
fn in_order(bytes: &[u8], is_cut: bool) -> Vec<u8> {
    let mut lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    if is_cut {
        lines.pop();
    }
    lines.reverse();
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_long_file_begins_with_a_whole_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let line = "0123456789abcde\n";
        let count = 2 * LOG_MAX / line.len();
        std::fs::write(&path, line.repeat(count)).unwrap();
        let end = of_file(&path).unwrap();
        assert!(
            end.len() <= LOG_MAX && end.len() > LOG_MAX - 100 && end.starts_with(line.as_bytes())
        );
        std::fs::write(&path, "short").unwrap();
        assert_eq!(of_file(&path).unwrap(), b"short");
    }

    #[test]
    fn only_regular_files_are_logs() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert!(of_file(&link).is_err() && of_file(Path::new("/dev/zero")).is_err());
        assert!(
            of_file(&dir.path().join("missing"))
                .unwrap_err()
                .contains("missing")
        );
    }

    #[test]
    fn warnings_are_found_in_both_forms_of_the_log() {
        let log =
            b"{\"level\":\"INFO\",\"message\":\"a\"}\n{\"level\":\"WARN\",\"message\":\"b\"}\n\
                    2026-11-29T03:00:00Z  WARN c\n2026-11-29T03:00:01Z  INFO d\n";
        let text = String::from_utf8(warnings(log)).unwrap();
        assert_eq!(
            text,
            "{\"level\":\"WARN\",\"message\":\"b\"}\n2026-11-29T03:00:00Z  WARN c\n"
        );
    }

    #[test]
    fn end_of_a_text_has_whole_lines() {
        for (max, expected) in [
            (9, "ab\ncd\ne\n"),
            (8, "ab\ncd\ne\n"),
            (7, "cd\ne\n"),
            (5, "cd\ne\n"),
            (1, ""),
        ] {
            let mut text = b"ab\ncd\ne\n".to_vec();
            keep_end(&mut text, max);
            assert_eq!(text, expected.as_bytes(), "{max}");
        }
    }

    #[test]
    fn reversed_lines_are_put_in_order() {
        assert_eq!(in_order(b"3\n2\n1\n", false), b"1\n2\n3\n");
        assert_eq!(in_order(b"3\n2\n1", true), b"2\n3\n");
    }
}
