//! The last lines of a task's log, for its page: few, and short ones. A log has any size and content, and its file
//! system may hang, so it is read on few threads, and for a bounded time.

use std::time::Duration;

use switchyard_core::blocking_pool::OwnerPools;
use switchyard_core::id::Owner;
use switchyard_core::{Error, Result, threads};
use switchyard_logkeeper::format::Stream;
use switchyard_logkeeper::reader::{
    LogLocation, LogQuery, LogReader, ReadError, ReadInterest, ReadWaiter,
};

use super::text::shown;

/// Number of lines that are shown; of plain text, for each stream.
const LINES: u64 = 50;

/// The longest line that is shown, in characters; what follows is left out.
const LINE_MAX: usize = 1000;

/// Maximum number of pieces that are read: a program can write one line in very many.
const PIECES_MAX: usize = 2000;

/// Time for reading a log.
const READ_LIMIT: Duration = Duration::from_secs(2);

/// The threads that read logs.
#[derive(Debug)]
pub(crate) struct LogThreads(OwnerPools);

/// The end of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LogTail {
    pub(crate) lines: Vec<LogLine>,
    /// Reason why lines are missing.
    pub(crate) note: Option<String>,
}

/// A line of output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LogLine {
    /// Time of the line according to the log; empty if it has none.
    pub(crate) time: String,
    pub(crate) is_error: bool,
    pub(crate) text: String,
}

/// JoinedLines while they are read in pieces.
#[derive(Debug, Default)]
struct JoinedLines {
    ended: Vec<LogLine>,
    /// The beginning of an unfinished line, by stream.
    begun: [Option<(String, Vec<u8>)>; 2],
}

// === impl LogThreads ===

impl Default for LogThreads {
    fn default() -> Self {
        Self(OwnerPools::new(threads::LOG_POOL, READ_LIMIT))
    }
}

impl LogThreads {
    /// The last lines of the log of an owner's task. Cancel-safe: the thread that reads it ends soon after, also when the
    /// time is over.
    pub(crate) async fn tail(
        &self,
        owner: Owner,
        task: &str,
        location: std::result::Result<LogLocation, String>,
    ) -> LogTail {
        let location = match location {
            Ok(location) => location,
            Err(why) => return LogTail::without_lines(format!("There is no log: {why}.")),
        };
        let waiter = ReadWaiter::default();
        let interest = waiter.interest();
        match self
            .0
            .of(owner)
            .run(format!("the log of task {task}"), move || {
                read(&location, &interest)
            })
            .await
        {
            Ok(tail) => tail,
            Err(error) => {
                LogTail::without_lines(format!("The log cannot be read: {}.", error.report()))
            }
        }
    }
}

// === impl LogTail ===

impl LogTail {
    pub(crate) fn without_lines(why: String) -> Self {
        Self {
            lines: Vec::new(),
            note: Some(why),
        }
    }
}

fn read(location: &LogLocation, interest: &ReadInterest) -> Result<LogTail> {
    let query = LogQuery {
        tail: Some(LINES),
        ..LogQuery::default()
    };
    let failed = |error| Error::unavailable("the file is not readable as a log").with_source(error);
    let mut reader = match LogReader::open(location, &query, interest) {
        Ok(reader) => reader,
        Err(ReadError::Absent(_)) => {
            return Ok(LogTail::without_lines(
                "There is no log: nothing was written, or it was removed.".to_owned(),
            ));
        }
        Err(error) => return Err(failed(error)),
    };
    let mut lines = JoinedLines::default();
    for _ in 0..PIECES_MAX {
        let Some(piece) = reader.next_piece().map_err(failed)? else {
            let lines = lines.finish();
            let note = note(&reader.take_omitted(), lines.is_empty());
            return Ok(LogTail {
                lines,
                note: note.map(str::to_owned),
            });
        };
        lines.push(
            piece.stream,
            piece.time.unwrap_or_default(),
            piece.text,
            piece.is_ended,
        );
    }
    let note = "Lines after these are left out: they are in very many pieces.".to_owned();
    Ok(LogTail {
        lines: lines.finish(),
        note: Some(note),
    })
}

/// The reason why lines are missing.
fn note(omitted: &[ReadError], has_none: bool) -> Option<&'static str> {
    if omitted
        .iter()
        .any(|error| matches!(error, ReadError::SearchTooLong(_)))
    {
        return Some(
            "Older lines are left out: to find them, too much of the log would be decompressed.",
        );
    }
    match (omitted.is_empty(), has_none) {
        (false, _) => Some("A part of the log is left out: it is unreadable."),
        (true, true) => Some("Nothing was written."),
        (true, false) => None,
    }
}

// === impl JoinedLines ===

impl JoinedLines {
    fn push(&mut self, stream: Stream, time: &str, text: &[u8], is_ended: bool) {
        let begun = &mut self.begun[stream.index()];
        let (begin, mut bytes) = begun
            .take()
            .unwrap_or_else(|| (time.to_owned(), Vec::new()));
        // A character has at most 4 bytes; one character more than fits shows that the line is cut.
        let room = (4 * (LINE_MAX + 1)).saturating_sub(bytes.len());
        bytes.extend_from_slice(&text[..text.len().min(room)]);
        if is_ended {
            self.ended.push(line(stream, &begin, &bytes));
        } else {
            *begun = Some((begin, bytes));
        }
    }

    fn finish(self) -> Vec<LogLine> {
        let Self { mut ended, begun } = self;
        for (stream, begun) in Stream::ALL.into_iter().zip(begun) {
            ended.extend(begun.map(|(time, bytes)| line(stream, &time, &bytes)));
        }
        ended
    }
}

fn line(stream: Stream, time: &str, bytes: &[u8]) -> LogLine {
    let text = String::from_utf8_lossy(bytes).replace('\t', "    ");
    // To the millisecond, as a person reads it.
    let time = time.get(..23).unwrap_or(time).replace('T', " ");
    LogLine {
        time: shown(&time, 40),
        is_error: stream == Stream::Stderr,
        text: shown(&text, LINE_MAX),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    async fn tail(content: &str) -> LogTail {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("0.log"), content).unwrap();
        let location = LogLocation::Cri {
            root: dir.path().to_owned(),
            path: "0.log".into(),
        };
        LogThreads::default()
            .tail(Owner::Nomad, "a", Ok(location))
            .await
    }

    #[tokio::test]
    async fn last_lines_are_read_and_pieces_are_joined() {
        let mut content = String::new();
        for number in 0..80 {
            content.push_str(&format!("2026-11-26T10:00:00.5Z stdout F line {number}\n"));
        }
        content
            .push_str("2026-11-26T10:00:01Z stderr P half\n2026-11-26T10:00:02Z stderr F  whole\n");
        let tail = tail(&content).await;
        assert_eq!(tail.note, None);
        assert!(
            tail.lines.len() <= 50 && tail.lines.len() >= 49,
            "{}",
            tail.lines.len()
        );
        let last = tail.lines.last().unwrap();
        assert_eq!((last.text.as_str(), last.is_error), ("half whole", true));
        assert_eq!(last.time, "2026-11-26 10:00:01Z");
        assert!(
            tail.lines
                .iter()
                .any(|line| line.text == "line 79" && !line.is_error)
        );
    }

    #[tokio::test]
    async fn hostile_lines_are_cut_and_harmless() {
        let long = "x".repeat(100_000);
        let content = format!(
            "2026-11-26T10:00:00Z stdout F \u{1b}[2J<b>\u{202e}&\n2026-11-26T10:00:00Z stdout F {long}\nno log at all\n"
        );
        let tail = tail(&content).await;
        assert_eq!(tail.lines[0].text, "\u{fffd}[2J<b>\u{fffd}&");
        assert_eq!(tail.lines[1].text.chars().count(), LINE_MAX + 1);
        assert_eq!(tail.lines.len(), 3);
    }

    #[tokio::test]
    async fn line_in_very_many_pieces_is_bounded() {
        let content = "2026-11-26T10:00:00Z stdout P x\n".repeat(5 * PIECES_MAX);
        let tail = tail(&content).await;
        assert!(tail.lines.len() <= 1, "{}", tail.lines.len());
        let note = "Lines after these are left out: they are in very many pieces.";
        assert_eq!(tail.note.as_deref(), Some(note));
    }

    #[tokio::test]
    async fn log_that_is_absent_or_nowhere_is_told_in_words() {
        let threads = LogThreads::default();
        let none = threads
            .tail(Owner::Nomad, "a", Err("its job collects none".to_owned()))
            .await;
        assert_eq!(
            none.note.unwrap(),
            "There is no log: its job collects none."
        );
        let dir = tempfile::tempdir().unwrap();
        let location = LogLocation::Cri {
            root: dir.path().to_owned(),
            path: "0.log".into(),
        };
        let absent = threads.tail(Owner::Nomad, "a", Ok(location)).await;
        assert!(absent.note.unwrap().starts_with("There is no log"));
    }
}
