//! The segments of the history: files of records in a directory of their own.
//!
//! ```text
//! <state>/history/events-1-0000000007.jsonl      the version of the format, and the number of the segment
//! ```
//!
//! The newest segment is appended to until it is full or a day old. Nothing is synced: a power cut may take the last
//! records, and a kill or a full disk may leave a torn one, which is skipped. Files with other names are left alone, so
//! that an earlier version leaves what a later one wrote. Everything here blocks.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use switchyard_linux::files::if_present;
use switchyard_node_files::RegularFile;
use switchyard_operator_api::EventView;

use super::filter::EventFilter;
use super::place::Place;
use super::record;
use crate::line_file;

/// The size to which a segment grows, in bytes.
const SEGMENT_BYTES: u64 = 4 << 20;

/// Maximum size of all segments, in bytes.
const BYTES_MAX: u64 = 64 << 20;

/// Maximum number of segments.
const SEGMENTS_MAX: usize = 64;

/// The age at which a segment is full.
const SEGMENT_AGE: Duration = Duration::from_secs(24 * 3600);

/// The age at which a segment is removed, counted from its last record.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Maximum number of bytes that one page looks at.
const SCAN_BYTES: u64 = 4 << 20;

/// Maximum number of events of a page.
pub(super) const PAGE: usize = 500;

/// Number of bytes that are read at a time: more than any record has.
const CHUNK: usize = 1 << 20;

/// The names of segments, around their number.
const PREFIX: &str = "events-1-";
const SUFFIX: &str = ".jsonl";

/// Number of digits of a number in a name.
const DIGITS: usize = 10;

/// Appends records to the newest segment.
#[derive(Debug)]
pub(super) struct SegmentWriter {
    dir: PathBuf,
    /// `None` before the first record, and after an error: then the next record looks for its segment again.
    open: Option<OpenSegment>,
}

#[derive(Debug)]
struct OpenSegment {
    file: File,
    length: u64,
    begun: SystemTime,
    /// True if it ends with a torn record, after which the next one begins a line of its own.
    is_torn: bool,
}

/// Some records, and the place at which to continue.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) events: Vec<EventView>,
    /// `None` at the end.
    pub(super) next: Option<Place>,
    /// Number of lines and segments that could not be read.
    pub(super) unreadable: u64,
}

fn path_of(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{number:0DIGITS$}{SUFFIX}"))
}

/// The number of the segment with this name; `None` if it is none of this version.
fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let is_number = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

/// The numbers of the newest segments, at most [`SEGMENTS_MAX`]; `surplus` gets each of the others. None without the
/// directory.
fn newest(dir: &Path, mut surplus: impl FnMut(u64)) -> io::Result<BTreeSet<u64>> {
    let mut numbers = BTreeSet::new();
    let Some(entries) = if_present(fs::read_dir(dir))? else {
        return Ok(numbers);
    };
    for entry in entries {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(number_of) else {
            continue;
        };
        numbers.insert(number);
        if numbers.len() > SEGMENTS_MAX
            && let Some(oldest) = numbers.pop_first()
        {
            surplus(oldest);
        }
    }
    Ok(numbers)
}

// === impl SegmentWriter ===

impl SegmentWriter {
    /// A writer into this directory, which is made for the first record.
    pub(super) const fn new(dir: PathBuf) -> Self {
        Self { dir, open: None }
    }

    /// Appends a line, given with its line feed.
    ///
    /// # Errors
    /// Those of the file system; a part of the line may be in the segment.
    pub(super) fn write(&mut self, line: &str) -> io::Result<()> {
        let now = SystemTime::now();
        let kept = match self.open.take() {
            Some(segment) if segment.has_room(now) && segment.is_linked()? => Some(segment),
            Some(_) | None => None,
        };
        let mut segment = match kept {
            Some(segment) => segment,
            None => self.open_segment(now)?,
        };
        // A disk that is still full must not begin a segment for each torn record: here it is an error of this one.
        if segment.is_torn {
            segment.file.write_all(b"\n")?;
            segment.is_torn = false;
            segment.length = segment.length.saturating_add(1);
        }
        segment.file.write_all(line.as_bytes())?;
        let written = u64::try_from(line.len()).unwrap_or(u64::MAX);
        segment.length = segment.length.saturating_add(written);
        self.open = Some(segment);
        Ok(())
    }

    /// The newest segment if it has room, or else a new one.
    fn open_segment(&self, now: SystemTime) -> io::Result<OpenSegment> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)?;
        let numbers = newest(&self.dir, |_| {})?;
        let last = numbers.last().copied().unwrap_or_default();
        // Whatever is there instead of a segment, such as a link, is not touched.
        if numbers.contains(&last)
            && let Ok(Some(segment)) = OpenSegment::resume(&path_of(&self.dir, last), now)
        {
            return Ok(segment);
        }
        let segment = OpenSegment::create(&path_of(&self.dir, last.saturating_add(1)), now)?;
        if let Err(error) = self.prune(now) {
            tracing::warn!(%error, "old events cannot be removed: it is tried again in an hour");
        }
        Ok(segment)
    }

    /// Removes the oldest segments while there are too many or they are too large, and one that is too old. It is only one,
    /// so that a clock that is wrong for a moment does not take the whole history away. The newest one stays.
    ///
    /// # Errors
    /// Those of the file system; a segment that cannot be removed does not keep the others.
    pub(super) fn prune(&self, now: SystemTime) -> io::Result<()> {
        let mut failed = None;
        let mut remove = |number| {
            if let Err(error) = if_present(fs::remove_file(path_of(&self.dir, number))) {
                failed = Some(error);
            }
        };
        let numbers = newest(&self.dir, &mut remove)?;
        let mut bytes = 0_u64;
        let mut too_old = None;
        for (place, number) in numbers.iter().rev().enumerate() {
            let Some(metadata) = if_present(fs::symlink_metadata(path_of(&self.dir, *number)))?
            else {
                continue;
            };
            if place == 0 {
                // It is to have room.
                bytes = metadata.len().max(SEGMENT_BYTES);
                continue;
            }
            bytes = bytes.saturating_add(metadata.len());
            let modified = metadata.modified()?;
            if bytes > BYTES_MAX {
                remove(*number);
            } else if now.duration_since(modified).is_ok_and(|age| age > KEPT) {
                too_old = Some(*number);
            }
        }
        if let Some(oldest) = too_old {
            remove(oldest);
        }
        failed.map_or(Ok(()), Err)
    }
}

// === impl OpenSegment ===

impl OpenSegment {
    fn create(path: &Path, now: SystemTime) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.append(true).create_new(true).mode(0o600);
        Ok(Self {
            file: options.open(path)?,
            length: 0,
            begun: now,
            is_torn: false,
        })
    }

    /// Opens a segment to append to it; `None` if it has no room.
    fn resume(path: &Path, now: SystemTime) -> io::Result<Option<Self>> {
        let (file, metadata) = line_file::open(&mut OpenOptions::new(), path)?;
        let mut segment = Self {
            file,
            length: metadata.len(),
            begun: metadata.created().or_else(|_| metadata.modified())?,
            is_torn: false,
        };
        if !segment.has_room(now) {
            return Ok(None);
        }
        segment.is_torn = line_file::is_torn(&segment.file, segment.length)?;
        Ok(Some(segment))
    }

    /// Returns whether it takes another record. A clock that was set back does not fill it.
    fn has_room(&self, now: SystemTime) -> bool {
        let age = now.duration_since(self.begun).unwrap_or_default();
        self.length < SEGMENT_BYTES && age < SEGMENT_AGE
    }

    /// Returns whether the file still has a name: somebody may have removed it.
    fn is_linked(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() > 0)
    }
}

// === reading ===

/// The events of the last `most` bytes of all segments, in order. What cannot be read is left out.
pub(super) fn tail(dir: &Path, most: u64) -> io::Result<Vec<EventView>> {
    let numbers = newest(dir, |_| {})?;
    let mut left = most;
    let mut parts = Vec::new();
    for number in numbers.iter().rev() {
        if left == 0 {
            break;
        }
        let Ok(segment) = RegularFile::open_no_link(&path_of(dir, *number)) else {
            continue;
        };
        let length = segment.metadata().len();
        let begin = length.saturating_sub(left);
        left -= length - begin;
        let mut bytes = vec![0; usize::try_from(length - begin).unwrap_or_default()];
        let read = read_at(&segment.into_file(), &mut bytes, begin)?;
        let mut lines = bytes[..read].split_inclusive(|byte| *byte == b'\n');
        if begin > 0 {
            // Only its end is there.
            lines.next();
        }
        let whole = lines.filter_map(|line| line.strip_suffix(b"\n"));
        parts.push(whole.filter_map(record::decode).collect::<Vec<_>>());
    }
    Ok(parts.into_iter().rev().flatten().collect())
}

/// The events from a place on that a filter wants, as many as fit into a page.
///
/// # Errors
/// The directory cannot be read. A segment that cannot be read is counted.
pub(super) fn scan(dir: &Path, from: Place, filter: &EventFilter) -> io::Result<Scan> {
    let mut scan = Scan::default();
    let mut left = SCAN_BYTES;
    let mut buffer = vec![0; CHUNK];
    for number in newest(dir, |_| {})?.range(from.segment..) {
        let file = match RegularFile::open_no_link(&path_of(dir, *number)) {
            Ok(segment) => segment.into_file(),
            // It was removed meanwhile.
            Err(error) if error.is_not_found() => continue,
            Err(_) => {
                scan.unreadable += 1;
                continue;
            }
        };
        let mut offset = if *number == from.segment {
            from.offset
        } else {
            0
        };
        loop {
            if left == 0 || scan.events.len() >= PAGE {
                scan.next = Some(Place {
                    segment: *number,
                    offset,
                });
                return Ok(scan);
            }
            let Ok(read) = read_at(&file, &mut buffer, offset) else {
                scan.unreadable += 1;
                break;
            };
            let chunk = &buffer[..read];
            let used = match scan.take_lines(chunk, filter) {
                // A record that is torn, or being written.
                0 if read < CHUNK => break,
                // No record is that long.
                0 => {
                    scan.unreadable += 1;
                    read
                }
                used => used,
            };
            let used = u64::try_from(used).unwrap_or(u64::MAX);
            offset = offset.saturating_add(used);
            left = left.saturating_sub(used);
        }
    }
    Ok(scan)
}

/// Reads until the buffer is full or the file ends; returns the number of bytes.
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        let at = offset.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        match file.read_at(&mut buffer[read..], at) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

// === impl Scan ===

impl Scan {
    /// Takes the events of the whole lines, until the page is full; returns the number of bytes that these lines have.
    fn take_lines(&mut self, chunk: &[u8], filter: &EventFilter) -> usize {
        let mut used = 0;
        for line in chunk.split_inclusive(|byte| *byte == b'\n') {
            let Some(text) = line.strip_suffix(b"\n") else {
                break;
            };
            if self.events.len() >= PAGE {
                break;
            }
            used += line.len();
            match record::decode(text) {
                Some(event) if filter.matches(&event) => self.events.push(event),
                Some(_) => {}
                None => self.unreadable += 1,
            }
        }
        used
    }
}

#[cfg(test)]
mod tests;
