//! The log file of one container. Batches of lines are appended whole: a batch that does not fit leaves no
//! torn line behind, its lost lines are counted, and a notice is written once the log can be written again.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use switchyard_linux::files::if_present;

use switchyard_crash_points::{CrashPoint, reach};

use crate::clock::Stamp;
use crate::format::{Header, LINE_OVERHEAD, Stream, Tag};
use crate::log_file;
use crate::position::Position;
use crate::protocol::Counters;
use crate::write_timer::WriteTimer;

/// Writes a container's lines.
#[derive(Debug)]
pub(crate) struct Sink {
    /// `None` for a container whose output is not logged.
    path: Option<PathBuf>,
    /// `None` while the file cannot be opened; each batch tries again.
    file: Option<File>,
    /// True if the last batch was not written completely; a warning is logged when this begins.
    write_failing: bool,
    /// The part of the position record about the file, the counters and the losses; spool offsets are left
    /// zero.
    pub(crate) position: Position,
}

/// A log file that is open, and not written to yet.
#[derive(Debug)]
pub(crate) struct NextFile {
    file: File,
    metadata: Metadata,
}

/// Formatted lines that are written with one call.
#[derive(Debug)]
pub(crate) struct Batch {
    text: Vec<u8>,
    /// The length of the notice of lost lines at the front; 0 if there is none.
    notice: usize,
    lines: u64,
    bytes: u64,
    /// Counts the writes of all batches.
    timer: Arc<WriteTimer>,
}

// === impl Batch ===

impl Batch {
    pub(crate) fn new() -> Self {
        Self {
            text: Vec::new(),
            notice: 0,
            lines: 0,
            bytes: 0,
            timer: Arc::default(),
        }
    }

    fn clear(&mut self) {
        self.text.clear();
        self.notice = 0;
        self.lines = 0;
        self.bytes = 0;
    }

    /// Counts the times of the writes.
    pub(crate) fn timer(&self) -> Arc<WriteTimer> {
        Arc::clone(&self.timer)
    }

    /// The bytes to write.
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// Number of lines of output that were added.
    pub(crate) const fn lines(&self) -> u64 {
        self.lines
    }

    /// Adds a line of output.
    pub(crate) fn push(&mut self, header: &mut Header, tag: Tag, content: &[u8]) {
        header.push_line(&mut self.text, tag, content);
        self.lines += 1;
        self.bytes += content.len() as u64;
    }
}

// === impl Sink ===

impl Sink {
    /// Opens the log file of a new container, if it has one.
    pub(crate) fn create(path: Option<&Path>) -> io::Result<Self> {
        let path = path.map(PathBuf::from);
        let mut sink = Self {
            path,
            file: None,
            write_failing: false,
            position: Position::default(),
        };
        if sink.is_wanted() {
            sink.reopen()?;
        }
        Ok(sink)
    }

    /// Returns whether the container has a log.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.path.is_some()
    }

    /// Recovers the log file of a container: what an interrupted batch has written is truncated, also if the
    /// file has been renamed meanwhile. If the file cannot be opened, each batch tries again.
    pub(crate) fn recover(path: Option<&Path>, position: Position) -> Self {
        let Some(path) = path else {
            return Self {
                path: None,
                file: None,
                write_failing: false,
                position,
            };
        };
        if let Err(error) = truncate_to_record(path, &position) {
            tracing::warn!(log = %path.display(), %error, "cannot undo an interrupted batch; lines may be duplicated");
        }
        let mut sink = Self {
            path: Some(path.into()),
            file: None,
            write_failing: false,
            position,
        };
        if let Err(error) = sink.reopen() {
            tracing::warn!(log = %path.display(), %error, "cannot open the log; output is dropped until it can be");
        }
        sink
    }

    /// Opens the file at the path, creating it if necessary, and closes the previous one.
    ///
    /// # Errors
    /// Those of [`Sink::open_next`]; the previous file then stays in use.
    pub(crate) fn reopen(&mut self) -> io::Result<()> {
        let next = self.open_next()?;
        self.switch(next);
        Ok(())
    }

    /// Opens the file at the path, creating it if necessary. The previous one stays in use until [`Sink::switch`].
    ///
    /// # Errors
    /// Those of [`log_file::open`]; `Unsupported` if there is no log.
    pub(crate) fn open_next(&self) -> io::Result<NextFile> {
        let Some(path) = self.path.as_deref() else {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the container has no log",
            ));
        };
        let file = log_file::open(path)?;
        let metadata = file.metadata()?;
        Ok(NextFile { file, metadata })
    }

    /// Closes the previous file, and writes to the next one from now on.
    pub(crate) fn switch(&mut self, NextFile { file, metadata }: NextFile) {
        self.position.device = metadata.dev();
        self.position.inode = metadata.ino();
        self.position.log_len = metadata.len();
        self.file = Some(file);
    }

    fn name(&self) -> std::path::Display<'_> {
        self.path.as_deref().unwrap_or(Path::new("none")).display()
    }

    /// The counters of lines and bytes written and dropped.
    pub(crate) const fn counters(&self) -> Counters {
        Counters {
            lines: self.position.lines,
            bytes: self.position.bytes,
            dropped_lines: self.position.dropped_lines,
            dropped_bytes: self.position.dropped_bytes,
        }
    }

    /// Returns whether lines were lost without a notice in the log.
    pub(crate) const fn has_unreported_loss(&self) -> bool {
        self.position.unreported_lines > 0 || self.position.unreported_bytes > 0
    }

    /// Puts a notice of lines that were lost before at the front of an empty batch, if there are any.
    pub(crate) fn begin(&self, batch: &mut Batch, stamp: &Stamp) {
        batch.clear();
        if self.has_unreported_loss() {
            let Position {
                unreported_lines: untold_lines,
                unreported_bytes: untold_bytes,
                errno,
                ..
            } = self.position;
            let cause = match i32::try_from(errno) {
                Ok(0) | Err(_) => "not a file that can be written".to_owned(),
                Ok(errno) => Errno::from_raw(errno).desc().to_lowercase(),
            };
            let text =
                format!("[switchyard: {untold_lines} lines lost: {cause} ({untold_bytes} bytes)]");
            let mut header = Header::new(stamp, Stream::Stderr);
            header.push_line(&mut batch.text, Tag::Full, text.as_bytes());
            batch.notice = batch.text.len();
        }
    }

    /// Writes a batch, or as many whole lines of it as fit; the rest is counted as lost. Never waits for disk
    /// space.
    pub(crate) fn commit(&mut self, batch: &Batch) {
        let began = Instant::now();
        let (kept, error) = self.append(&batch.text);
        batch.timer.add(began.elapsed());
        // The notice at the front is no output that could be lost.
        let lost = &batch.text[kept.max(batch.notice)..];
        let lost_lines = memchr::memchr_iter(b'\n', lost).count() as u64;
        let lost_bytes = (lost.len() as u64).saturating_sub(lost_lines * LINE_OVERHEAD as u64);
        let position = &mut self.position;
        // Earlier losses count as reported only with the whole notice in the file.
        if batch.notice > 0 && kept >= batch.notice {
            position.unreported_lines = 0;
            position.unreported_bytes = 0;
        }
        // The counters come from a stored record and may have any value.
        position.lines = position
            .lines
            .saturating_add(batch.lines.saturating_sub(lost_lines));
        position.bytes = position
            .bytes
            .saturating_add(batch.bytes.saturating_sub(lost_bytes));
        if let Some(error) = error {
            self.count_loss(lost_lines, lost_bytes, &error);
        } else if std::mem::take(&mut self.write_failing) {
            let dropped = self.position.dropped_lines;
            tracing::info!(log = %self.name(), dropped, "the log can be written again");
        }
    }

    /// Counts output as lost.
    pub(crate) fn count_loss(&mut self, lines: u64, bytes: u64, error: &io::Error) {
        if !std::mem::replace(&mut self.write_failing, true) {
            tracing::warn!(log = %self.name(), %error, "cannot write the log; output is dropped");
        }
        let position = &mut self.position;
        position.dropped_lines = position.dropped_lines.saturating_add(lines);
        position.dropped_bytes = position.dropped_bytes.saturating_add(bytes);
        position.unreported_lines = position.unreported_lines.saturating_add(lines);
        position.unreported_bytes = position.unreported_bytes.saturating_add(bytes);
        position.errno = log_file::errno(error)
            .and_then(|code| u64::try_from(code).ok())
            .unwrap_or(0);
    }

    /// Appends text, and returns how many bytes of it remain in the file; they always end with a newline.
    fn append(&mut self, text: &[u8]) -> (usize, Option<io::Error>) {
        if self.file.is_none()
            && let Err(error) = self.reopen()
        {
            return (0, Some(error));
        }
        let Some(file) = &mut self.file else {
            return (0, Some(io::ErrorKind::NotFound.into()));
        };
        let (written, error) = write_fully(file, text);
        let kept = match &error {
            None => written,
            // Only whole lines are kept: the next batch would continue a torn one.
            Some(_) => memchr::memrchr(b'\n', &text[..written]).map_or(0, |end| end + 1),
        };
        // The size is read from the file, since other processes may have truncated it.
        let trimmed = file
            .metadata()
            .map(|metadata| metadata.len())
            .and_then(|len| {
                let torn = (written - kept) as u64;
                if torn > 0 {
                    file.set_len(len.saturating_sub(torn))?;
                }
                Ok(len.saturating_sub(torn))
            });
        match trimmed {
            Ok(len) => self.position.log_len = len,
            Err(error) => {
                tracing::warn!(log = %self.name(), %error, "cannot truncate a torn line at the end of the log");
                self.position.log_len = self.position.log_len.saturating_add(written as u64);
            }
        }
        (kept, error)
    }
}

/// Writes until all is written or an error occurs; a short write is continued.
fn write_fully(file: &mut File, text: &[u8]) -> (usize, Option<io::Error>) {
    let mut written = 0;
    while written < text.len() {
        match file.write(&text[written..]) {
            Ok(0) => return (written, Some(io::ErrorKind::WriteZero.into())),
            Ok(len) => written += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Some(error)),
        }
    }
    (written, None)
}

/// Truncates the recorded log file to its recorded size; the file is found by its inode, at its path or under
/// a new name in the same directory.
fn truncate_to_record(path: &Path, position: &Position) -> io::Result<()> {
    let mut recorded = open_recorded(path, position)?;
    if recorded.is_none() {
        let Some(parent) = path.parent() else {
            return Ok(());
        };
        let Some(entries) = if_present(parent.read_dir())? else {
            return Ok(());
        };
        for entry in entries.flatten() {
            recorded = open_recorded(&entry.path(), position)?;
            if recorded.is_some() {
                break;
            }
        }
    }
    let Some(file) = recorded else { return Ok(()) };
    if file.metadata()?.len() > position.log_len {
        file.set_len(position.log_len)?;
        reach(CrashPoint::LogCutBack);
    }
    Ok(())
}

/// Opens the file at this path, if it is the recorded one. Only the open file is compared, since names can be
/// reused.
fn open_recorded(candidate: &Path, position: &Position) -> io::Result<Option<File>> {
    let is_recorded = |metadata: &Metadata| {
        metadata.is_file() && metadata.ino() == position.inode && metadata.dev() == position.device
    };
    if !candidate
        .symlink_metadata()
        .is_ok_and(|metadata| is_recorded(&metadata))
    {
        return Ok(None);
    }
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(flags.bits())
        .open(candidate)?;
    Ok(is_recorded(&file.metadata()?).then_some(file))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::clock::Clock;

    #[test]
    fn symlink_at_the_log_path_is_rejected_and_target_untouched() {
        let temp = tempfile::tempdir().unwrap();
        let log = temp.path().join("0.log");
        let target = temp.path().join("precious");
        fs::write(&target, "as it was").unwrap();
        symlink(&target, &log).unwrap();
        let error = Sink::create(Some(&log)).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
        // No file is created through a dangling link either.
        let absent = temp.path().join("absent");
        fs::remove_file(&log).unwrap();
        symlink(&absent, &log).unwrap();
        Sink::create(Some(&log)).unwrap_err();
        assert!(!absent.exists());
        assert_eq!(fs::read_to_string(&target).unwrap(), "as it was");
    }

    #[test]
    fn log_rotation_continues_after_a_symlink_was_at_its_name() {
        let temp = tempfile::tempdir().unwrap();
        let log = temp.path().join("0.log");
        let aside = temp.path().join("0.log.1");
        let target = temp.path().join("precious");
        fs::write(&target, "as it was").unwrap();
        let mut sink = Sink::create(Some(&log)).unwrap();
        let mut batch = Batch::new();
        let write = |sink: &mut Sink, batch: &mut Batch| {
            let stamp = *Clock::new().format(Clock::now());
            sink.begin(batch, &stamp);
            batch.push(&mut Header::new(&stamp, Stream::Stdout), Tag::Full, b"line");
            sink.commit(batch);
        };
        write(&mut sink, &mut batch);
        fs::rename(&log, &aside).unwrap();
        symlink(&target, &log).unwrap();
        sink.reopen().unwrap_err();
        write(&mut sink, &mut batch);
        fs::remove_file(&log).unwrap();
        sink.reopen().unwrap();
        write(&mut sink, &mut batch);
        let lines = |path: &Path| fs::read_to_string(path).unwrap().lines().count();
        assert_eq!((lines(&aside), lines(&log)), (2, 1));
        assert_eq!(fs::read_to_string(&target).unwrap(), "as it was");
    }

    #[test]
    fn only_the_recorded_file_is_truncated() {
        let temp = tempfile::tempdir().unwrap();
        let log = temp.path().join("0.log");
        let target = temp.path().join("precious");
        fs::write(&target, "as it was").unwrap();
        fs::write(&log, "whole\ntorn").unwrap();
        let metadata = log.metadata().unwrap();
        let position = Position {
            device: metadata.dev(),
            inode: metadata.ino(),
            log_len: 6,
            ..Position::default()
        };
        fs::rename(&log, temp.path().join("0.log.1")).unwrap();
        symlink(&target, &log).unwrap();
        let of_target = target.metadata().unwrap();
        let other = Position {
            inode: of_target.ino(),
            ..position
        };
        truncate_to_record(&log, &position).unwrap();
        assert_eq!(
            fs::read_to_string(temp.path().join("0.log.1")).unwrap(),
            "whole\n"
        );
        assert!(
            open_recorded(&log, &other).unwrap().is_none(),
            "a link is not what it leads to"
        );
        assert_eq!(fs::read_to_string(&target).unwrap(), "as it was");
    }
}
