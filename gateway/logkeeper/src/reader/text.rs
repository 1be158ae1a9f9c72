//! The text of one log file, compressed or not, by position.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::os::unix::fs::FileExt;

use flate2::bufread::GzDecoder;

use super::dir::{FileId, OpenLog};
use super::waiter::ReadInterest;

/// The most bytes to which a compressed file may expand. A few kilobytes can expand to millions of times as much.
const EXPANDED_MAX: u64 = 1 << 30;

/// Number of bytes of one read.
pub(super) const BLOCK: usize = 64 << 10;

/// The text of a log file.
#[derive(Debug)]
pub(super) struct LogText {
    pub(super) id: FileId,
    source: Source,
    interest: ReadInterest,
}

#[derive(Debug)]
enum Source {
    Plain(File),
    Gzip(Box<Gzip>),
}

/// A compressed file can only be read forward, from its beginning.
#[derive(Debug)]
struct Gzip {
    decoder: GzDecoder<BufReader<File>>,
    /// Amount of the text that was read.
    position: u64,
    /// Amount that was decompressed, including parts that were read more than once.
    expanded: u64,
}

// === impl LogText ===

impl LogText {
    /// The text of an open file, for as long as somebody waits for it.
    pub(super) fn new(log: OpenLog, is_compressed: bool, interest: &ReadInterest) -> Self {
        let OpenLog { file, id, len: _ } = log;
        let source = if is_compressed {
            let decoder = GzDecoder::new(BufReader::new(file));
            Source::Gzip(Box::new(Gzip {
                decoder,
                position: 0,
                expanded: 0,
            }))
        } else {
            Source::Plain(file)
        };
        Self {
            id,
            source,
            interest: interest.clone(),
        }
    }

    /// Number of bytes that were decompressed so far; 0 for a file that is not compressed.
    pub(super) const fn expanded(&self) -> u64 {
        match &self.source {
            Source::Plain(_) => 0,
            Source::Gzip(gzip) => gzip.expanded,
        }
    }

    /// The present size of a file that can be read at any position; `None` for a compressed one.
    pub(super) fn plain_len(&self) -> io::Result<Option<u64>> {
        match &self.source {
            Source::Plain(file) => Ok(Some(file.metadata()?.len())),
            Source::Gzip(_) => Ok(None),
        }
    }

    /// Reads text from this position on; 0 at its end. In a compressed file, going back restarts
    /// decompression.
    ///
    /// # Errors
    /// The file's; `InvalidData` for a damaged compressed file, `FileTooLarge` for one that expands too far; any kind
    /// if nobody waits for it any more.
    pub(super) fn read_at(&mut self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        match &mut self.source {
            Source::Plain(file) => loop {
                self.interest.check()?;
                match file.read_at(buffer, position) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => return other,
                }
            },
            Source::Gzip(gzip) => gzip.read_at(buffer, position, &self.interest),
        }
    }

    /// Reads until the buffer is full or the text ends; how much was read.
    pub(super) fn read_fully_at(&mut self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut len = 0;
        while len < buffer.len() {
            match self.read_at(&mut buffer[len..], position + len as u64)? {
                0 => break,
                more => len += more,
            }
        }
        Ok(len)
    }
}

// === impl Gzip ===

impl Gzip {
    fn read_at(
        &mut self,
        buffer: &mut [u8],
        position: u64,
        interest: &ReadInterest,
    ) -> io::Result<usize> {
        if position < self.position {
            let mut file = self.decoder.get_mut().get_mut().try_clone()?;
            file.rewind()?;
            self.decoder = GzDecoder::new(BufReader::new(file));
            self.position = 0;
        }
        let mut skipped = [0; 8192];
        while self.position < position {
            interest.check()?;
            let wanted = usize::try_from(position - self.position)
                .map_or(skipped.len(), |n| n.min(skipped.len()));
            if self.read(&mut skipped[..wanted])? == 0 {
                return Ok(0);
            }
        }
        interest.check()?;
        self.read(buffer)
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.position >= EXPANDED_MAX {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "it expands to more than 1 GiB",
            ));
        }
        let len = self.decoder.read(buffer)?;
        self.position += len as u64;
        self.expanded += len as u64;
        Ok(len)
    }
}
