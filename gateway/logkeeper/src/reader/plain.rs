//! A reader of one stream as plain text, in numbered files: a Nomad agent writes `TASK.stdout.0`, then
//! `TASK.stdout.1`, and removes the oldest ones.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::dir::LogDir;
use super::error::ReadError;
use super::query::{LogPiece, LogQuery};
use super::scan;
use super::text::{BLOCK, LogText};
use super::waiter::ReadInterest;
use super::window::{LinePart, Window};
use crate::format::Stream;

/// The most files that are read, the newest ones.
const FILES_MAX: usize = 1000;

/// A reader of one stream.
#[derive(Debug)]
pub(super) struct PlainReader {
    /// `None` as long as there is no such directory.
    dir: Option<LogDir>,
    /// Beginning of the files' names.
    prefix: String,
    stream: Stream,
    /// The files to read after the present one, by number.
    files: VecDeque<u64>,
    /// The file that is read, with its number, and where it ends for this reader.
    text: Option<(u64, LogText)>,
    limits: Option<(u64, u64)>,
    window: Window,
    /// The present piece, and whether its line ends.
    piece: Option<(Range<usize>, bool)>,
    follows: bool,
    /// Position in the first file at which reading begins.
    begin: u64,
    is_absent: bool,
    interest: ReadInterest,
}

// === impl PlainReader ===

impl PlainReader {
    pub(super) fn open(
        root: &Path,
        dir: &Path,
        name: &str,
        stream: Stream,
        query: &LogQuery,
        interest: ReadInterest,
    ) -> Result<Self, ReadError> {
        let prefix = format!("{name}.{}.", stream.as_str());
        let dir = match LogDir::open(root, dir) {
            Err(ReadError::Absent(_)) => None,
            opened => Some(opened?),
        };
        let mut reader = Self {
            dir,
            prefix,
            stream,
            files: VecDeque::new(),
            text: None,
            limits: None,
            window: Window::at(0),
            piece: None,
            follows: query.follow,
            begin: 0,
            is_absent: false,
            interest,
        };
        reader.files = reader.numbers()?.into();
        reader.is_absent = reader.files.is_empty();
        if let Some(last) = reader.files.back()
            && !query.follow
        {
            let len = reader
                .open_file(*last)?
                .map_or(Ok(None), |text| text.plain_len());
            reader.limits = Some((*last, reader.checked(len)?.unwrap_or(0)));
        }
        if let Some(wanted) = query.tail {
            reader.seek(wanted)?;
        }
        Ok(reader)
    }

    /// Returns whether there was no file when it was opened.
    pub(super) const fn is_absent(&self) -> bool {
        self.is_absent
    }

    pub(super) fn piece(&self) -> Option<LogPiece<'_>> {
        let (text, is_ended) = self.piece.clone()?;
        let text = self.window.bytes(text);
        Some(LogPiece {
            time: None,
            stream: self.stream,
            text,
            is_ended,
            is_malformed: false,
        })
    }

    /// Advances to the next piece; `false` if all that was written was read.
    pub(super) fn advance(&mut self) -> Result<bool, ReadError> {
        loop {
            // A part of a line is passed on only if no more is there.
            if let Some(part) = self.window.take_line(BLOCK) {
                return Ok(self.take(part));
            }
            if self.text.is_none() && !self.open_next()? {
                return Ok(false);
            }
            let filled = self.fill();
            if self.checked(filled)? {
                continue;
            }
            if let Some(part) = self.window.take_line(1) {
                return Ok(self.take(part));
            }
            if !self.files.is_empty() {
                self.text = None;
            } else if self.follows
                && let Some(successor) = self.find_successor()?
            {
                // The present file is read once more: it may have been written until the other one was created.
                self.files.push_back(successor);
            } else {
                return Ok(false);
            }
        }
    }

    fn take(
        &mut self,
        LinePart {
            bytes,
            is_ended,
            at: _,
        }: LinePart,
    ) -> bool {
        self.piece = Some((bytes, is_ended));
        true
    }

    fn fill(&mut self) -> io::Result<bool> {
        let Some((number, text)) = &mut self.text else {
            return Ok(false);
        };
        let limit = self
            .limits
            .filter(|(last, _)| last == number)
            .map_or(u64::MAX, |(_, limit)| limit);
        let len = self.window.fill(text, limit)?;
        if self.follows
            && len == 0
            && text
                .plain_len()?
                .is_some_and(|size| size < self.window.position())
        {
            self.window.move_to(0);
            return Ok(true);
        }
        Ok(len > 0)
    }

    /// Finds where the last lines begin.
    fn seek(&mut self, wanted: u64) -> Result<(), ReadError> {
        let mut found = 0;
        for (place, number) in self.files.clone().into_iter().enumerate().rev() {
            let Some(mut text) = self.open_file(number)? else {
                continue;
            };
            let limit = self
                .limits
                .filter(|(last, _)| *last == number)
                .map(|(_, limit)| limit);
            let searched = text.plain_len().and_then(|len| {
                let end = limit.or(len).unwrap_or(0);
                if found >= wanted {
                    return Ok(ControlFlow::Break(end));
                }
                scan::backward(&mut text, end, |at, _| {
                    found += 1;
                    if found == wanted {
                        ControlFlow::Break(at)
                    } else {
                        ControlFlow::Continue(())
                    }
                })
            });
            if let ControlFlow::Break(at) = self.checked(searched)? {
                self.files.drain(..place);
                self.begin = at;
                return Ok(());
            }
        }
        Ok(())
    }

    fn open_next(&mut self) -> Result<bool, ReadError> {
        if self.files.is_empty() && self.follows {
            self.files = self.numbers()?.into();
        }
        while let Some(number) = self.files.pop_front() {
            let begin = std::mem::take(&mut self.begin);
            if let Some(text) = self.open_file(number)? {
                self.window.move_to(begin);
                self.text = Some((number, text));
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The lowest number above that of the present file.
    fn find_successor(&self) -> Result<Option<u64>, ReadError> {
        let (Some((number, text)), Some(dir)) = (&self.text, &self.dir) else {
            return Ok(None);
        };
        let Some(next) = number.checked_add(1) else {
            return Ok(None);
        };
        if dir.id_of(&self.name(next))?.is_some() {
            return Ok(Some(next));
        }
        // As long as the present file has its name, the next one has the next number.
        if dir.id_of(&self.name(*number))? == Some(text.id) {
            return Ok(None);
        }
        Ok(self.numbers()?.into_iter().find(|other| other > number))
    }

    fn name(&self, number: u64) -> OsString {
        format!("{}{number}", self.prefix).into()
    }

    fn open_file(&self, number: u64) -> Result<Option<LogText>, ReadError> {
        let Some(dir) = &self.dir else {
            return Ok(None);
        };
        Ok(dir
            .file(&self.name(number))?
            .map(|opened| LogText::new(opened, false, &self.interest)))
    }

    /// The numbers of the newest files, in order.
    fn numbers(&self) -> Result<Vec<u64>, ReadError> {
        let Some(dir) = &self.dir else {
            return Ok(Vec::new());
        };
        let number = |name: &[u8]| -> Option<u64> {
            let digits = std::str::from_utf8(name.strip_prefix(self.prefix.as_bytes())?).ok()?;
            let number: u64 = digits.parse().ok()?;
            (number.to_string() == digits).then_some(number)
        };
        let names = dir.names(|name| number(name).is_some())?;
        let mut numbers: Vec<u64> = names
            .iter()
            .filter_map(|name| number(name.as_bytes()))
            .collect();
        numbers.sort_unstable();
        numbers.drain(..numbers.len().saturating_sub(FILES_MAX));
        Ok(numbers)
    }

    fn checked<T>(&self, result: io::Result<T>) -> Result<T, ReadError> {
        result.map_err(|source| {
            let name = OsString::from(format!("{}*", self.prefix));
            let path = self
                .dir
                .as_ref()
                .map_or_else(|| name.clone().into(), |dir| dir.path_of(&name));
            ReadError::File {
                action: "read",
                path,
                source,
            }
        })
    }
}
