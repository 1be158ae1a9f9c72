//! Output of the command line: the only module that writes to standard output and standard error.

use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;

use clap::ValueEnum;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// Aligned text, for people.
    #[default]
    Text,
    /// JSON, for programs.
    Json,
}

/// Prints to standard output.
///
/// # Errors
/// Standard output cannot be written; a closed pipe is not an error.
pub fn print(bytes: impl AsRef<[u8]>) -> io::Result<()> {
    ignore_broken_pipe(write_all(&mut io::stdout().lock(), bytes.as_ref()))
}

/// Prints to standard error.
///
/// # Errors
/// As for [`print()`].
pub fn print_error(bytes: impl AsRef<[u8]>) -> io::Result<()> {
    ignore_broken_pipe(write_all(&mut io::stderr().lock(), bytes.as_ref()))
}

/// Prints indented JSON and a newline.
///
/// # Errors
/// As for [`print()`].
pub fn print_json(value: &impl serde::Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    print(text)
}

/// Prints to standard output, where a closed pipe is an error.
///
/// # Errors
/// Standard output cannot be written, or is a closed pipe.
pub fn announce(text: &str) -> io::Result<()> {
    write_all(&mut io::stdout().lock(), text.as_bytes())
}

/// Prints one line of at most 4096 bytes to standard error, if that does not block; returns whether it was
/// printed.
///
/// # Errors
/// Standard error cannot be written, for example because it is a closed pipe.
pub fn print_error_if_room(line: &str) -> io::Result<bool> {
    let mut stderr = io::stderr().lock();
    let mut room = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    // A pipe polls as writable only if it accepts this much at once.
    if poll(&mut room, PollTimeout::ZERO)? == 0 {
        return Ok(false);
    }
    write_all(&mut stderr, line.as_bytes()).map(|()| true)
}

fn write_all(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes)?;
    out.flush()
}

/// Ignores a closed pipe, as in `switchyard ps | head -1`.
fn ignore_broken_pipe(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// A table with headings, in columns as wide as their cells. Control characters, which names and messages of
/// clients may have, become blanks: they could change what a terminal shows.
#[must_use]
pub fn table<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<_> = rows.iter().map(|row| row.each_ref().map(|cell| printable(cell))).collect();
    let mut widths = headings.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let headings = headings.map(str::to_owned);
    for row in std::iter::once(&headings).chain(&rows) {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(row) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Text on one line: control characters become blanks.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The first digits of an id, enough to be unique on a node; commands accept them as an id.
#[must_use]
pub fn short(id: &str) -> String {
    id.chars().take(13).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_without_trailing_blanks() {
        let rows = [["a".to_owned(), "long cell".to_owned()], ["bcd".to_owned(), String::new()]];
        assert_eq!(table(["X", "NAME"], &rows), "X    NAME\na    long cell\nbcd\n");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let rows = [["a\u{1b}[31m\nb".to_owned(), "\u{9b}2J".to_owned()]];
        assert_eq!(table(["X", "Y"], &rows), "X         Y\na [31m b   2J\n");
    }

    #[test]
    fn closed_output_pipe_is_not_an_error() {
        ignore_broken_pipe(Err(ErrorKind::BrokenPipe.into())).unwrap();
        assert!(ignore_broken_pipe(Err(ErrorKind::StorageFull.into())).is_err());
    }
}
