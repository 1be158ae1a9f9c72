//! Reading the entries of a tar archive by their headers alone: the content of an entry is skipped, not read,
//! except for long names and extended headers, whose sizes are bounded.
//!
//! The archive is untrusted: sizes, names and the order of entries may be anything. The supported formats are
//! ustar, GNU's long names and PAX.

use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use switchyard_core::{Error, ErrorKind, Result};
use tar::{EntryType, Header, PaxExtensions};
use tokio_util::sync::CancellationToken;

use super::{malformed, unreadable};

/// The limit on headers in an archive, extended headers included: more than any image has.
pub(super) const MAX_HEADERS: usize = 100_000;

/// The longest path in bytes: the kernel's limit.
const MAX_PATH_BYTES: usize = 4096;

/// The largest extended header, which holds names and attributes of the next entry, in bytes. The limit of
/// Go's `archive/tar`.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;

/// The limit on all names and extended headers of an archive together, in bytes.
const MAX_NAME_BYTES: u64 = 32 << 20;

const BLOCK: u64 = 512;

/// A file or a link of an archive.
pub(super) struct TarEntry {
    /// Its path as it is in the archive, not normalized.
    pub(super) path: PathBuf,
    pub(super) kind: TarEntryKind,
}

/// The kind of an entry.
pub(super) enum TarEntryKind {
    /// A file, whose content are the `size` bytes from offset `at` of the archive.
    File { at: u64, size: u64 },
    /// A link to a path relative to the directory of the link.
    Symlink(PathBuf),
    /// A link to a path relative to the root of the archive.
    HardLink(PathBuf),
}

/// Iterates over the entries of an archive.
pub(super) struct TarReader<'a> {
    file: &'a File,
    length: u64,
    at: u64,
    headers: usize,
    name_bytes: u64,
    stop: &'a CancellationToken,
}

/// Properties of the following entry from extended headers.
#[derive(Default)]
struct ExtendedHeader {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

// === impl TarReader ===

impl<'a> TarReader<'a> {
    /// Starts at the first header. [`TarReader::next`] returns an error soon after `stop` is cancelled.
    ///
    /// # Errors
    /// If the size of the file cannot be determined.
    pub(super) fn new(file: &'a File, stop: &'a CancellationToken) -> Result<Self> {
        let length = file.metadata().map_err(unreadable)?.len();
        Ok(Self {
            file,
            length,
            at: 0,
            headers: 0,
            name_bytes: 0,
            stop,
        })
    }

    /// The next file or link; `None` at the end.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid header, a size beyond the end of the archive, or one over a limit;
    /// `Cancelled`.
    pub(super) fn next(&mut self) -> Result<Option<TarEntry>> {
        let mut ahead = ExtendedHeader::default();
        loop {
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            let kind = header.entry_type();
            let size = header.entry_size().map_err(|_| self.no_header())?;
            if kind.is_gnu_longname() {
                ahead.path = Some(self.extension(size)?);
            } else if kind.is_gnu_longlink() {
                ahead.link = Some(self.extension(size)?);
            } else if kind.is_pax_local_extensions() {
                ahead.apply_pax(&self.extension(size)?)?;
            } else if kind.is_pax_global_extensions() {
                // Global headers hold comments and times, which are not needed.
                self.check_extension(size)?;
                self.skip(size)?;
            } else if kind.is_gnu_sparse() {
                return Err(malformed(
                    "it has a sparse file, which docker save does not write",
                ));
            } else {
                let at = self.at;
                let size = if has_content(kind) {
                    ahead.size.unwrap_or(size)
                } else {
                    0
                };
                self.skip(size)?;
                if let Some(entry) = self.entry(&header, std::mem::take(&mut ahead), (at, size))? {
                    return Ok(Some(entry));
                }
            }
        }
    }

    /// Reads a header; `None` at the end.
    fn header(&mut self) -> Result<Option<Header>> {
        check_cancelled(self.stop)?;
        if self.at == self.length {
            return Ok(None);
        }
        let mut header = Header::new_old();
        self.file
            .read_exact_at(header.as_mut_bytes(), self.at)
            .map_err(unreadable)?;
        self.at += BLOCK;
        if header.as_bytes().iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        self.headers += 1;
        if self.headers > MAX_HEADERS {
            return Err(malformed(format!("it has more than {MAX_HEADERS} entries")));
        }
        let sum = header.cksum().map_err(|_| self.no_header())?;
        if sum != checksum(header.as_bytes()) {
            return Err(self.no_header());
        }
        Ok(Some(header))
    }

    /// The error for a block that was to be a header. It shows nothing of the block, which may be any bytes.
    fn no_header(&self) -> Error {
        malformed(format!(
            "the block at byte {} is not a header",
            self.at - BLOCK
        ))
    }

    /// Reads the content of an extended header.
    fn extension(&mut self, size: u64) -> Result<Vec<u8>> {
        self.check_extension(size)?;
        self.count(size)?;
        let mut bytes = vec![0; usize::try_from(size).unwrap_or_default()];
        let at = self.at;
        self.skip(size)?;
        self.file
            .read_exact_at(&mut bytes, at)
            .map_err(unreadable)?;
        Ok(bytes)
    }

    fn check_extension(&self, size: u64) -> Result<()> {
        if size <= MAX_EXTENSION_BYTES {
            return Ok(());
        }
        let at = self.at - BLOCK;
        Err(malformed(format!(
            "the name or header at byte {at} has {size} bytes, and may have {MAX_EXTENSION_BYTES}"
        )))
    }

    /// Counts the bytes of names and extended headers against their limit.
    fn count(&mut self, bytes: u64) -> Result<()> {
        self.name_bytes += bytes;
        if self.name_bytes > MAX_NAME_BYTES {
            return Err(malformed(format!(
                "its names and headers have more than {MAX_NAME_BYTES} bytes together"
            )));
        }
        Ok(())
    }

    /// Skips the content of an entry, with its padding.
    fn skip(&mut self, size: u64) -> Result<()> {
        let end = size
            .checked_next_multiple_of(BLOCK)
            .and_then(|padded| self.at.checked_add(padded));
        // The padding of the last entry may be missing.
        let is_complete = self
            .at
            .checked_add(size)
            .is_some_and(|end| end <= self.length);
        match end {
            Some(end) if is_complete => {
                self.at = end.min(self.length);
                Ok(())
            }
            Some(_) | None => Err(malformed(format!(
                "the entry at byte {} has {size} bytes, and the archive ends before: it is cut off",
                self.at - BLOCK
            ))),
        }
    }

    /// The entry of a header, with what extended headers say about it; `None` if it is neither a file nor a
    /// link.
    fn entry(
        &mut self,
        header: &Header,
        ahead: ExtendedHeader,
        (at, size): (u64, u64),
    ) -> Result<Option<TarEntry>> {
        let kind = header.entry_type();
        let path = ahead
            .path
            .unwrap_or_else(|| header.path_bytes().into_owned());
        let link = ahead
            .link
            .or_else(|| header.link_name_bytes().map(|link| link.into_owned()));
        let kind = if kind.is_file() || kind.is_contiguous() {
            TarEntryKind::File { at, size }
        } else if let (true, Some(link)) = (kind.is_symlink(), &link) {
            TarEntryKind::Symlink(self.path(link.clone())?)
        } else if let (true, Some(link)) = (kind.is_hard_link(), &link) {
            TarEntryKind::HardLink(self.path(link.clone())?)
        } else {
            return Ok(None);
        };
        Ok(Some(TarEntry {
            path: self.path(path)?,
            kind,
        }))
    }

    /// A path from its bytes, within the limits.
    fn path(&mut self, mut name: Vec<u8>) -> Result<PathBuf> {
        // GNU's long names end with a zero byte.
        name.truncate(
            name.iter()
                .position(|byte| *byte == 0)
                .unwrap_or(name.len()),
        );
        if name.len() > MAX_PATH_BYTES {
            return Err(malformed(format!(
                "a name in it has {} bytes, and may have {MAX_PATH_BYTES}",
                name.len()
            )));
        }
        self.count(u64::try_from(name.len()).unwrap_or(u64::MAX))?;
        Ok(PathBuf::from(std::ffi::OsString::from_vec(name)))
    }
}

// === impl ExtendedHeader ===

impl ExtendedHeader {
    fn apply_pax(&mut self, records: &[u8]) -> Result<()> {
        for record in PaxExtensions::new(records) {
            let record = record.map_err(unreadable)?;
            let value = record.value_bytes();
            match record.key_bytes() {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => {
                    let size = std::str::from_utf8(value)
                        .ok()
                        .and_then(|text| text.parse().ok());
                    self.size =
                        Some(size.ok_or_else(|| malformed("a size in it is not a number"))?);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns an error if the caller has given up, so that the thread that reads the archive ends.
pub(in crate::image::load) fn check_cancelled(stop: &CancellationToken) -> Result<()> {
    if stop.is_cancelled() {
        return Err(Error::new(
            ErrorKind::Cancelled,
            "the load of the archive was cancelled",
        ));
    }
    Ok(())
}

/// Returns whether content follows a header of this type. For other types the size in the header has no
/// meaning.
fn has_content(kind: EntryType) -> bool {
    let header_alone = kind.is_hard_link()
        || kind.is_symlink()
        || kind.is_character_special()
        || kind.is_block_special()
        || kind.is_dir()
        || kind.is_fifo();
    !header_alone
}

/// The checksum of a header: the sum of its bytes, with those of the checksum field taken as blanks.
fn checksum(block: &[u8; 512]) -> u32 {
    let blanks = 8 * u32::from(b' ');
    block[..148]
        .iter()
        .chain(&block[156..])
        .map(|byte| u32::from(*byte))
        .sum::<u32>()
        + blanks
}
