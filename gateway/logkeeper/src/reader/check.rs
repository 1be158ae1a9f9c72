//! Properties that hold for a log file of any content.

use std::fs::File;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{MemfdFlags, memfd_create};

use super::cri::{CriReader, LogFiles};
use super::dir::{FileId, LogDir, OpenLog};
use super::entry::EntryHead;
use super::error::SEARCH_MAX;
use super::query::{LogPiece, LogQuery};
use super::scan;
use super::text::LogText;
use super::waiter::ReadWaiter;
use crate::format::{MAX_LINE_LIMIT, Stream};

/// Lines of output, by stream. A line is marked if it has no end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lines(pub(super) [Vec<(Vec<u8>, bool)>; 2]);

impl Lines {
    /// Adds a piece.
    pub(super) fn push(&mut self, piece: &LogPiece<'_>) {
        assert!(
            piece.text.len() <= MAX_LINE_LIMIT as usize + (65 << 10),
            "a piece has {} bytes",
            piece.text.len()
        );
        assert!(!piece.text.contains(&b'\n'));
        let lines = &mut self.0[piece.stream.index()];
        match lines.last_mut() {
            Some((line, is_ended @ false)) => {
                line.extend_from_slice(piece.text);
                *is_ended = piece.is_ended;
            }
            Some(_) | None => lines.push((piece.text.to_vec(), piece.is_ended)),
        }
    }

    /// Number of lines.
    fn count(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
}

/// Reads a log file in several ways, and compares the results.
pub(crate) fn log_file(data: &[u8]) {
    let Some((first, content)) = data.split_first() else {
        return;
    };
    let query = LogQuery::default();
    let all = read(content, &query);
    let tail = u64::from(first % 16);
    let last = read(
        content,
        &LogQuery {
            tail: Some(tail),
            ..query
        },
    );
    assert!(
        last.count() as u64 <= tail,
        "{} lines of {tail}",
        last.count()
    );
    let expected = all.count().min(usize::from(first % 16));
    assert_eq!(last.count(), expected, "of {} lines", all.count());
    for stream in Stream::ALL {
        let all = &all.0[stream.index()];
        let last = &last.0[stream.index()];
        assert!(
            all.ends_with(last),
            "the last lines of {stream:?} are others: {last:?} of {all:?}"
        );
        let alone = read(
            content,
            &LogQuery {
                stream: Some(stream),
                ..query
            },
        );
        assert_eq!(alone.0[stream.index()], *all);
        assert_eq!(alone.count(), all.len());
    }
    let since = UNIX_EPOCH + Duration::from_secs(u64::from(*first) << 24);
    assert!(
        read(
            content,
            &LogQuery {
                since: Some(since),
                ..query
            }
        )
        .count()
            <= all.count()
    );
    assert_eq!(line_starts_backward(content), line_starts(content));
    if let Some(head) = EntryHead::parse(content) {
        assert!(
            head.len <= content.len() && !head.time.contains(|c: char| c.is_control() || c == ' ')
        );
    }
    compressed(content);
}

/// Reads the whole log.
fn read(content: &[u8], query: &LogQuery) -> Lines {
    let dir = LogDir::open(Path::new("/proc"), Path::new("")).expect("proc is mounted");
    let waiter = ReadWaiter::default();
    let files = LogFiles {
        dir,
        name: "no such log".into(),
        rotated: Vec::new(),
        newest: Some(in_memory(content)),
    };
    let mut reader = CriReader::of_files(files, query, waiter.interest(), SEARCH_MAX);
    reader.end();
    let mut lines = Lines::default();
    let mut len = 0;
    while let Some(piece) = reader.next_piece().expect("memory can be read") {
        lines.push(&piece);
        len += piece.text.len();
    }
    assert!(len <= content.len(), "{len} bytes of {}", content.len());
    lines
}

fn line_starts(content: &[u8]) -> Vec<u64> {
    let waiter = ReadWaiter::default();
    let mut text = LogText::new(in_memory(content), false, &waiter.interest());
    let mut starts = Vec::new();
    let all = scan::forward(&mut text, 0, u64::MAX, u64::MAX, |at, _| {
        starts.push(at);
        ControlFlow::<()>::Continue(())
    });
    assert!(all.expect("memory can be read").is_continue());
    starts
}

fn line_starts_backward(content: &[u8]) -> Vec<u64> {
    let waiter = ReadWaiter::default();
    let mut text = LogText::new(in_memory(content), false, &waiter.interest());
    let mut starts = Vec::new();
    let all = scan::backward(&mut text, content.len() as u64, |at, _| {
        starts.push(at);
        ControlFlow::<()>::Continue(())
    });
    assert!(all.expect("memory can be read").is_continue());
    starts.reverse();
    starts
}

/// Any bytes as a compressed file are read to an end, or to an error.
fn compressed(content: &[u8]) {
    let waiter = ReadWaiter::default();
    let mut text = LogText::new(in_memory(content), true, &waiter.interest());
    let mut block = vec![0; 4096];
    let mut position = 0;
    // A small input expands to a bounded number of blocks.
    for _ in 0..64 {
        match text.read_at(&mut block, position) {
            Ok(0) | Err(_) => return,
            Ok(len) => position += len as u64,
        }
    }
}

/// A file with this content that has no name.
fn in_memory(content: &[u8]) -> OpenLog {
    let file: OwnedFd = memfd_create("log", MemfdFlags::CLOEXEC).expect("memory is there");
    let mut file = File::from(file);
    file.write_all(content).expect("memory is there");
    OpenLog {
        file,
        id: FileId::default(),
        len: content.len() as u64,
    }
}
