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

/// The last messages of a unit in the journal. They are asked for in reverse, so that what is beyond the limit
/// is the oldest.
pub(super) fn of_unit(view: &dyn NodeView, unit: &str) -> Result<Vec<u8>, String> {
    let dirs = PROGRAM_DIRS.map(Into::into);
    let journalctl = view
        .program("journalctl", &dirs)
        .ok_or("there is no journalctl")?;
    let args = [
        "--unit",
        unit,
        "--reverse",
        "--no-pager",
        "--quiet",
        "--output=short-iso-precise",
    ];
    let done = run_command(&journalctl, &args, &search_path(), JOURNAL_LIMIT, LOG_MAX);
    let done = done.map_err(|error| report(&error))?;
    if done.status.is_some_and(|status| status != 0) {
        return Err(format!(
            "journalctl: {}",
            String::from_utf8_lossy(&done.stderr).trim()
        ));
    }
    let text = in_order(&done.stdout, done.is_cut);
    if text.is_empty() {
        Err(format!("the journal has nothing of {unit}"))
    } else {
        Ok(text)
    }
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
    fn reversed_lines_are_put_in_order() {
        assert_eq!(in_order(b"3\n2\n1\n", false), b"1\n2\n3\n");
        assert_eq!(in_order(b"3\n2\n1", true), b"2\n3\n");
    }
}
