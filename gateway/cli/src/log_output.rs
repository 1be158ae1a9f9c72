//! Prints entries of container logs: standard output to standard output, standard error to standard error, byte by
//! byte as the program wrote them; or a line of JSON for each entry.

use std::io;

use serde::Serialize;
use switchyard_linux::report;
use switchyard_logkeeper::format::Stream;
use switchyard_logkeeper::reader::{LogPiece, LogReader, ReadError};

use crate::output::{Format, announce_bytes, announce_error_bytes, print_error};

/// Amount of text that is collected before it is printed, in bytes.
const BUFFER: usize = 64 << 10;

/// Number of entries that are printed before other work of this process has a turn.
const ENTRIES_PER_TURN: u32 = 4096;

/// Reason why a log cannot be printed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrintError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

/// Prints the entries of one log.
#[derive(Debug)]
pub(super) struct LogPrinter {
    format: Format,
    with_times: bool,
    /// Text for one stream that is not printed yet.
    text: Vec<u8>,
    stream: Stream,
    /// By stream, whether the last line is unfinished.
    is_amid: [bool; 2],
    /// By stream, the beginning of a character at the end of a piece; the next piece has its rest.
    cut: [Vec<u8>; 2],
    /// True if parts of the log were left out.
    has_omitted: bool,
}

/// An entry as JSON.
#[derive(Debug, Serialize)]
struct EntryView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<&'a str>,
    stream: &'static str,
    /// True if the line continues in the stream's next entry.
    partial: bool,
    /// True if the log has something here that is not in its format.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    malformed: bool,
    text: String,
}

// === impl LogPrinter ===

impl LogPrinter {
    pub(super) const fn new(format: Format, with_times: bool) -> Self {
        Self {
            format,
            with_times,
            text: Vec::new(),
            stream: Stream::Stdout,
            is_amid: [false; 2],
            cut: [Vec::new(), Vec::new()],
            has_omitted: false,
        }
    }

    /// Returns whether all of the requested log could be read.
    pub(super) const fn is_complete(&self) -> bool {
        !self.has_omitted
    }

    /// Prints all that a reader has now; returns whether that was anything.
    ///
    /// # Errors
    /// The log cannot be read, or the output is closed.
    pub(super) async fn drain(&mut self, reader: &mut LogReader) -> Result<bool, PrintError> {
        let mut entries = 0_u32;
        loop {
            let found = reader.next_piece();
            let has_more = match found {
                Ok(Some(piece)) => {
                    self.push(&piece)?;
                    true
                }
                Ok(None) => false,
                Err(error) => {
                    self.flush()?;
                    return Err(error.into());
                }
            };
            if !has_more {
                self.flush()?;
                for omitted in reader.take_omitted() {
                    self.has_omitted = true;
                    print_error(format!(
                        "switchyard: a part of the log is left out: {}\n",
                        report(&omitted)
                    ))?;
                }
                return Ok(entries > 0);
            }
            entries = entries.saturating_add(1);
            if entries.is_multiple_of(ENTRIES_PER_TURN) {
                tokio::task::yield_now().await;
            }
        }
    }

    fn push(&mut self, piece: &LogPiece<'_>) -> io::Result<()> {
        // JSON goes to standard output alone.
        let stream = if self.format == Format::Json {
            Stream::Stdout
        } else {
            piece.stream
        };
        // Also at a change of the stream, so that the lines keep their order.
        if stream != self.stream || self.text.len() >= BUFFER {
            self.flush()?;
            self.stream = stream;
        }
        match self.format {
            Format::Json => self.push_json(piece)?,
            Format::Text => self.push_text(piece),
        }
        self.is_amid[piece.stream.index()] = !piece.is_ended;
        Ok(())
    }

    fn push_text(&mut self, piece: &LogPiece<'_>) {
        if self.with_times
            && !self.is_amid[piece.stream.index()]
            && let Some(time) = piece.time
        {
            self.text.extend_from_slice(time.as_bytes());
            self.text.push(b' ');
        }
        self.text.extend_from_slice(piece.text);
        if piece.is_ended {
            self.text.push(b'\n');
        }
    }

    fn push_json(&mut self, piece: &LogPiece<'_>) -> io::Result<()> {
        let LogPiece {
            time,
            stream,
            text,
            is_ended,
            is_malformed,
        } = *piece;
        let cut = &mut self.cut[stream.index()];
        let mut bytes = std::mem::take(cut);
        bytes.extend_from_slice(text);
        // A character may be split between two pieces: its beginning waits for the rest.
        if !is_ended
            && let Err(error) = std::str::from_utf8(&bytes)
            && error.error_len().is_none()
        {
            *cut = bytes.split_off(error.valid_up_to());
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let view = EntryView {
            time,
            stream: stream.as_str(),
            partial: !is_ended,
            malformed: is_malformed,
            text,
        };
        serde_json::to_writer(&mut self.text, &view)?;
        self.text.push(b'\n');
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.text.is_empty() {
            return Ok(());
        }
        match self.stream {
            Stream::Stdout => announce_bytes(&self.text)?,
            Stream::Stderr => announce_error_bytes(&self.text)?,
        }
        self.text.clear();
        Ok(())
    }
}

impl PrintError {
    /// Returns whether nobody reads the output any more, as in `switchyard logs … | head -1`.
    pub(super) fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(stream: Stream, text: &[u8], is_ended: bool) -> LogPiece<'_> {
        LogPiece {
            time: Some("2026-11-26T00:17:09Z"),
            stream,
            text,
            is_ended,
            is_malformed: false,
        }
    }

    #[test]
    fn time_is_at_the_beginning_of_each_line() {
        let mut printer = LogPrinter::new(Format::Text, true);
        printer.push(&piece(Stream::Stdout, b"par", false)).unwrap();
        printer
            .push(&piece(Stream::Stdout, b"tial\x1b[31m\xff", true))
            .unwrap();
        printer.push(&piece(Stream::Stdout, b"", true)).unwrap();
        let malformed = LogPiece {
            time: None,
            is_malformed: true,
            ..piece(Stream::Stdout, b"torn", true)
        };
        printer.push(&malformed).unwrap();
        let expected = b"2026-11-26T00:17:09Z partial\x1b[31m\xff\n2026-11-26T00:17:09Z \ntorn\n";
        assert_eq!(printer.text, expected);
    }

    #[test]
    fn entry_is_a_line_of_json() {
        let mut printer = LogPrinter::new(Format::Json, false);
        let text = "ä".as_bytes();
        printer
            .push(&piece(Stream::Stderr, &text[..1], false))
            .unwrap();
        printer
            .push(&piece(Stream::Stdout, b"a\n\"b\"", true))
            .unwrap();
        printer
            .push(&piece(Stream::Stderr, &text[1..], true))
            .unwrap();
        let torn = LogPiece {
            time: None,
            is_malformed: true,
            ..piece(Stream::Stdout, b"\xff\0", true)
        };
        printer.push(&torn).unwrap();
        let expected = concat!(
            r#"{"time":"2026-11-26T00:17:09Z","stream":"stderr","partial":true,"text":""}"#,
            "\n",
            r#"{"time":"2026-11-26T00:17:09Z","stream":"stdout","partial":false,"text":"a\n\"b\""}"#,
            "\n",
            r#"{"time":"2026-11-26T00:17:09Z","stream":"stderr","partial":false,"text":"ä"}"#,
            "\n",
            "{\"stream\":\"stdout\",\"partial\":false,\"malformed\":true,\"text\":\"\u{fffd}\\u0000\"}\n",
        );
        assert_eq!(String::from_utf8(printer.text.clone()).unwrap(), expected);
        printer.text.clear();
    }
}
