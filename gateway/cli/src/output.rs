//! Output of the command line: the only module of the commands that writes to standard output and standard error. The log of a
//! launcher is written by `telemetry::hclog`.

use std::io::{self, ErrorKind, IsTerminal, Write};

use clap::ValueEnum;
use rustix::termios::tcgetwinsize;
use switchyard_operator_api::text::printable;

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
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
pub(crate) fn print(bytes: impl AsRef<[u8]>) -> io::Result<()> {
    ignore_broken_pipe(write_all(&mut io::stdout().lock(), bytes.as_ref()))
}

/// Prints to standard error.
///
/// # Errors
/// As for [`print()`].
pub(crate) fn print_error(bytes: impl AsRef<[u8]>) -> io::Result<()> {
    ignore_broken_pipe(write_all(&mut io::stderr().lock(), bytes.as_ref()))
}

/// Prints indented JSON and a newline.
///
/// # Errors
/// As for [`print()`].
pub(crate) fn print_json(value: &impl serde::Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    print(text)
}

/// Prints JSON on one line.
///
/// # Errors
/// As for [`announce`].
pub(crate) fn announce_json(value: &impl serde::Serialize) -> io::Result<()> {
    announce(&format!("{}\n", serde_json::to_string(value)?))
}

/// Prints to standard output, where a closed pipe is an error.
///
/// # Errors
/// Standard output cannot be written, or is a closed pipe.
pub(crate) fn announce(text: &str) -> io::Result<()> {
    announce_bytes(text.as_bytes())
}

/// Prints to standard output byte by byte, where a closed pipe is an error.
///
/// # Errors
/// As for [`announce`].
pub(crate) fn announce_bytes(bytes: &[u8]) -> io::Result<()> {
    write_all(&mut io::stdout().lock(), bytes)
}

/// Prints to standard error byte by byte, where a closed pipe is an error.
///
/// # Errors
/// Standard error cannot be written, or is a closed pipe.
pub(crate) fn announce_error_bytes(bytes: &[u8]) -> io::Result<()> {
    write_all(&mut io::stderr().lock(), bytes)
}

/// The height and width of a terminal, in characters; `None` if they are not known.
pub(crate) type ScreenSize = Option<(usize, usize)>;

/// Returns whether standard output is a terminal on which a text can be redrawn.
#[must_use]
pub(crate) fn has_screen() -> bool {
    let can_draw = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    can_draw && io::stdout().is_terminal()
}

/// Draws a text on the terminal in place of the one before, as much of it as there is room for.
///
/// # Errors
/// As for [`announce`].
pub(crate) fn draw(text: &str) -> io::Result<()> {
    let size = tcgetwinsize(io::stdout()).ok();
    let size = size.map(|size| (usize::from(size.ws_row), usize::from(size.ws_col)));
    let lines = fitted(text, size);
    // The cursor goes home, each line clears its place first, and the end what is below. Nothing blinks so, as it
    // would on a screen that is cleared as a whole.
    let lines: Vec<_> = lines
        .lines()
        .map(|line| format!("\x1b[K{line}\n"))
        .collect();
    announce(&format!("\x1b[H{}\x1b[J", lines.concat()))
}

/// The text cut to a screen: lines to its width, and the last line says how many are missing. Pure.
fn fitted(text: &str, size: ScreenSize) -> String {
    let Some((height, width)) = size.filter(|(height, width)| *height > 1 && *width > 0) else {
        return text.to_owned();
    };
    let lines: Vec<_> = text.lines().collect();
    // The cursor stands on a line of its own.
    let room = height - 1;
    let shown = if lines.len() > room {
        room - 1
    } else {
        lines.len()
    };
    let mut fitted = String::new();
    for line in &lines[..shown] {
        fitted.extend(line.chars().take(width));
        fitted.push('\n');
    }
    if shown < lines.len() {
        let more: String = format!("({} more lines)", lines.len() - shown)
            .chars()
            .take(width)
            .collect();
        fitted.push_str(&format!("{more}\n"));
    }
    fitted
}

/// Returns whether standard error is a terminal, on which progress can be shown.
#[must_use]
pub(crate) fn can_show_progress() -> bool {
    io::stderr().is_terminal()
}

/// Shows what is waited for on the current line of standard error, in place of what was there; an empty text clears
/// it. What cannot be shown is left out: it is for information only.
pub(crate) fn show_progress(text: &str) {
    let width = tcgetwinsize(io::stderr()).map_or(80, |size| usize::from(size.ws_col).max(2));
    let line: String = printable(text).chars().take(width - 1).collect();
    let _ = write_all(
        &mut io::stderr().lock(),
        format!("\r{line}\x1b[K").as_bytes(),
    );
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
pub(crate) fn table<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| row.each_ref().map(|cell| printable(cell)))
        .collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_to_the_screen() {
        let text = "one\ntwo\nthree\nfour\n";
        assert_eq!(fitted(text, None), text);
        assert_eq!(fitted(text, Some((0, 0))), text);
        assert_eq!(fitted(text, Some((5, 80))), text);
        assert_eq!(fitted(text, Some((4, 80))), "one\ntwo\n(2 more lines)\n");
        assert_eq!(fitted(text, Some((2, 80))), "(4 more lines)\n");
        assert_eq!(fitted(text, Some((9, 3))), "one\ntwo\nthr\nfou\n");
        assert_eq!(fitted("öffnen\n", Some((9, 2))), "öf\n");
    }

    #[test]
    fn columns_are_aligned_without_trailing_blanks() {
        let rows = [
            ["a".to_owned(), "long cell".to_owned()],
            ["bcd".to_owned(), String::new()],
        ];
        assert_eq!(
            table(["X", "NAME"], &rows),
            "X    NAME\na    long cell\nbcd\n"
        );
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
