//! Finds where reading of a log begins, over its files, from the newest to the oldest.

use std::ffi::OsStr;
use std::io;
use std::time::Duration;

use super::dir::LogDir;
use super::error::ReadError;
use super::rotation::{self, RotatedLog};
use super::start::{self, Mark, Searched, TailSearch};
use super::text::LogText;
use super::waiter::ReadInterest;

/// A search in the files of one log.
#[derive(Debug)]
pub(super) struct StartSearch<'a> {
    pub(super) dir: &'a LogDir,
    pub(super) name: &'a OsStr,
    /// Oldest first.
    pub(super) rotated: &'a [RotatedLog],
    /// The newest file, with its size when it was opened.
    pub(super) newest: Option<&'a mut (LogText, u64)>,
    pub(super) interest: &'a ReadInterest,
    /// Number of bytes that may still be decompressed.
    pub(super) left: u64,
    /// Gets what is left out.
    pub(super) omitted: &'a mut Vec<ReadError>,
}

/// A file is left out, because it cannot be read.
#[derive(Debug)]
struct Unreadable;

// === impl StartSearch ===

impl StartSearch<'_> {
    /// Finds the start of each stream, for so many lines at the end of both.
    pub(super) fn last_lines(&mut self, wanted: u64, selected: [bool; 2]) -> [Mark; 2] {
        let newest = self.rotated.len();
        let at = self.newest.as_ref().map_or(0, |(_, len)| *len);
        let mut search = TailSearch::new(wanted, selected, Mark { file: newest, at });
        for file in (0..=newest).rev() {
            match self.look_at(file, |text, left| search.search(file, text, left)) {
                Ok(Some(Searched::GoOn) | None) => {}
                Ok(Some(Searched::TooLong)) => {
                    self.omit_from(file);
                    break;
                }
                Ok(Some(Searched::Over)) | Err(Unreadable) => break,
            }
        }
        search.starts()
    }

    /// A place before the first entry that is not older than `since`, and close to it. With the place `tail` of the last
    /// lines, nothing before that is looked at, and it is returned if the time is not found after it: whoever reads from
    /// there passes over what is too old.
    pub(super) fn since(&mut self, since: Duration, tail: Option<Mark>) -> Mark {
        let oldest = tail.map_or(0, |tail| tail.file);
        for file in (oldest..=self.rotated.len()).rev() {
            if self.left == 0 && self.rotated.get(file).is_some_and(|log| log.is_compressed) {
                return tail.unwrap_or_else(|| {
                    self.omit_from(file);
                    Mark {
                        file: file + 1,
                        at: 0,
                    }
                });
            }
            let older = self.look_at(file, |text, _| match start::first_time(text)? {
                Some(first) if first < since => start::since(text, since).map(Some),
                Some(_) | None => Ok(None),
            });
            if let Ok(Some(Some(at))) = older {
                return Mark { file, at };
            }
        }
        tail.unwrap_or(Mark { file: 0, at: 0 })
    }

    /// Looks at a file; `look` gets how many bytes it may decompress. `None` if there is no such file.
    fn look_at<R>(
        &mut self,
        file: usize,
        look: impl FnOnce(&mut LogText, u64) -> io::Result<R>,
    ) -> Result<Option<R>, Unreadable> {
        let (found, name) = match self.rotated.get(file) {
            Some(log) => match rotation::open(self.dir, log, self.interest) {
                Ok(Some(mut text)) => {
                    let found = look(&mut text, self.left);
                    self.left = self.left.saturating_sub(text.expanded());
                    (found, log.name.as_os_str())
                }
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.omitted.push(error);
                    return Err(Unreadable);
                }
            },
            None => match self.newest.as_deref_mut() {
                Some((text, _)) => (look(text, self.left), self.name),
                None => return Ok(None),
            },
        };
        found.map(Some).map_err(|source| {
            let path = self.dir.path_of(name);
            self.omitted.push(ReadError::File {
                action: "read",
                path,
                source,
            });
            Unreadable
        })
    }

    /// Leaves out a file and those before it, because too much was decompressed.
    fn omit_from(&mut self, file: usize) {
        let name = self
            .rotated
            .get(file)
            .map_or(self.name, |log| log.name.as_os_str());
        self.omitted
            .push(ReadError::SearchTooLong(self.dir.path_of(name)));
    }
}
