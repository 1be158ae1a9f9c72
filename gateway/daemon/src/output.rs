//! Output of the command line: the only module that writes to standard output and standard error.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;

use clap::ValueEnum;
use jiff::Timestamp;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::termios::tcgetwinsize;

/// How many digits of a digest are shown.
const DIGITS: usize = 12;

/// Registries and repositories that a reference need not name.
const IMPLIED: [&str; 2] = ["docker.io/library/", "docker.io/"];

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

/// Prints JSON on one line.
///
/// # Errors
/// As for [`announce`].
pub fn announce_json(value: &impl serde::Serialize) -> io::Result<()> {
    announce(&format!("{}\n", serde_json::to_string(value)?))
}

/// Prints to standard output, where a closed pipe is an error.
///
/// # Errors
/// Standard output cannot be written, or is a closed pipe.
pub fn announce(text: &str) -> io::Result<()> {
    announce_bytes(text.as_bytes())
}

/// Prints to standard output byte by byte, where a closed pipe is an error.
///
/// # Errors
/// As for [`announce`].
pub fn announce_bytes(bytes: &[u8]) -> io::Result<()> {
    write_all(&mut io::stdout().lock(), bytes)
}

/// Prints to standard error byte by byte, where a closed pipe is an error.
///
/// # Errors
/// Standard error cannot be written, or is a closed pipe.
pub fn announce_error_bytes(bytes: &[u8]) -> io::Result<()> {
    write_all(&mut io::stderr().lock(), bytes)
}

/// The height and width of a terminal, in characters; `None` if they are not known.
pub type ScreenSize = Option<(usize, usize)>;

/// Whether standard output is a terminal on which a text can be drawn again and again.
#[must_use]
pub fn has_screen() -> bool {
    let can_draw = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    can_draw && io::stdout().is_terminal()
}

/// Draws a text on the terminal in place of the one before, as much of it as there is room for.
///
/// # Errors
/// As for [`announce`].
pub fn draw(text: &str) -> io::Result<()> {
    let size = tcgetwinsize(io::stdout()).ok();
    let size = size.map(|size| (usize::from(size.ws_row), usize::from(size.ws_col)));
    let lines = fitted(text, size);
    // The cursor goes home, each line clears its place first, and the end what is below. Nothing blinks so, as it
    // would on a screen that is cleared as a whole.
    let lines: Vec<_> = lines.lines().map(|line| format!("\x1b[K{line}\n")).collect();
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
    let shown = if lines.len() > room { room - 1 } else { lines.len() };
    let mut fitted = String::new();
    for line in &lines[..shown] {
        fitted.extend(line.chars().take(width));
        fitted.push('\n');
    }
    if shown < lines.len() {
        let more: String = format!("({} more lines)", lines.len() - shown).chars().take(width).collect();
        fitted.push_str(&format!("{more}\n"));
    }
    fitted
}

/// Whether standard error is a terminal, on which progress can be shown.
#[must_use]
pub fn can_show_progress() -> bool {
    io::stderr().is_terminal()
}

/// Shows what is waited for on the current line of standard error, in place of what was there; an empty text clears
/// it. What cannot be shown is left out: it is for information only.
pub fn show_progress(text: &str) {
    let width = tcgetwinsize(io::stderr()).map_or(80, |size| usize::from(size.ws_col).max(2));
    let line: String = printable(text).chars().take(width - 1).collect();
    let _ = write_all(&mut io::stderr().lock(), format!("\r{line}\x1b[K").as_bytes());
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

/// Text on one line: control characters become blanks, and characters that are invisible or change the order of others become U+FFFD.
#[must_use]
pub fn printable(text: &str) -> String {
    let shown = |c: char| match c {
        c if c.is_control() => ' ',
        c if is_invisible(c) => '\u{fffd}',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// Whether a character is one of those that are not seen or change the direction of text: a name with one can look like another name.
#[must_use]
pub fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// The first digits of an id, enough to be unique on a node; commands accept them as an id.
#[must_use]
pub fn short(id: &str) -> String {
    id.chars().take(13).collect()
}

/// How long ago a time was that is given as RFC 3339, in its largest unit, such as `5m`; the text itself if it is no
/// time.
#[must_use]
pub fn age(at: &str, now: Timestamp) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    let Ok(at) = at.parse::<Timestamp>() else { return at.to_owned() };
    // A clock that was set back makes the past the future.
    let seconds = (now.as_second() - at.as_second()).max(0);
    // Two of a unit are told in the smaller one, as kubectl does.
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / MINUTE),
        7_200..172_800 => format!("{}h", seconds / HOUR),
        _ => format!("{}d", seconds / DAY),
    }
}

/// Thousandths of a processor as a decimal, `1.50`.
#[must_use]
pub fn processors(milli: u64) -> String {
    format!("{}.{:02}", milli / 1000, milli % 1000 / 10)
}

/// A size in the largest unit in which it is at least 1.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let mut unit = 0;
    let mut tenths = bytes.saturating_mul(10);
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit]) }
}

/// A reference as people write it: without the registry if that is the default one, and with the beginning of a
/// digest.
#[must_use]
pub fn short_reference(reference: &str) -> String {
    let implied = IMPLIED.iter().find_map(|prefix| reference.strip_prefix(prefix));
    let reference = implied.unwrap_or(reference);
    match reference.split_once("@sha256:") {
        Some((name, digest)) => format!("{name}@{}", first_digits(digest)),
        None => short_digest(reference).to_owned(),
    }
}

/// The beginning of a digest; another text as it is.
#[must_use]
pub fn short_digest(digest: &str) -> &str {
    digest.strip_prefix("sha256:").map_or(digest, first_digits)
}

fn first_digits(digest: &str) -> &str {
    digest.get(..DIGITS).unwrap_or(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_shown_as_people_write_them() {
        let digest = "0123456789abcdef".repeat(4);
        for (reference, expected) in [
            ("docker.io/library/busybox:latest", "busybox:latest".to_owned()),
            ("docker.io/acme/web:1", "acme/web:1".to_owned()),
            ("127.0.0.1:5000/library/busybox:1", "127.0.0.1:5000/library/busybox:1".to_owned()),
            (&format!("ghcr.io/a/b@sha256:{digest}"), "ghcr.io/a/b@0123456789ab".to_owned()),
            (&format!("sha256:{digest}"), "0123456789ab".to_owned()),
            ("sha256:ä", "ä".to_owned()),
            ("", String::new()),
        ] {
            assert_eq!(short_reference(reference), expected, "{reference}");
        }
    }

    #[test]
    fn names_cannot_end_a_line_or_look_like_another_name() {
        assert_eq!(printable("a\u{202e}b\nc\u{200b}d\u{1b}[31m é"), "a\u{fffd}b c\u{fffd}d [31m é");
    }

    #[test]
    fn ages_and_sizes_are_human_readable() {
        let now: Timestamp = "2026-11-26T12:00:00Z".parse().unwrap();
        for (at, expected) in [
            ("2026-11-26T12:00:00.500Z", "0s"),
            ("2026-11-26T13:00:00Z", "0s"),
            ("2026-11-26T11:58:01Z", "119s"),
            ("2026-11-26T11:58:00Z", "2m"),
            ("2026-11-26T10:00:01Z", "119m"),
            ("2026-11-26T10:00:00Z", "2h"),
            ("2026-11-24T12:00:00Z", "2d"),
            ("2025-11-26T12:00:00Z", "365d"),
            ("", ""),
            ("soon", "soon"),
        ] {
            assert_eq!(age(at, now), expected, "{at}");
        }
        assert_eq!((processors(2_550), processors(9)), ("2.55".to_owned(), "0.00".to_owned()));
        let sizes = [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")];
        for (bytes, expected) in sizes {
            assert_eq!(size(bytes), expected);
        }
    }

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
