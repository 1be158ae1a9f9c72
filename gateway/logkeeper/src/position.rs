//! The position record: how far a container's output has reached its log. It is stored so that a kill at any
//! instruction neither loses nor duplicates a line.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const MAGIC: u64 = u64::from_le_bytes(*b"swlkpos1");
const FIELDS: usize = 14;
const RECORD_LEN: usize = FIELDS * 8;

/// The state between two batches. If the log is longer than `log_len`, the excess is (part of) a batch that
/// is still in a spool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// Device and inode of the log file to which `log_len` applies; zeros when none is open.
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// The log file's size in bytes.
    pub(crate) log_len: u64,
    /// Per stream, the spool offset up to which output has been logged or counted as dropped.
    pub(crate) logged: [u64; 2],
    /// Log lines and content bytes written.
    pub(crate) lines: u64,
    pub(crate) bytes: u64,
    /// Log lines and content bytes dropped since the beginning.
    pub(crate) dropped_lines: u64,
    pub(crate) dropped_bytes: u64,
    /// The dropped lines and bytes without a notice in the log yet, and the error that caused the loss
    /// (errno, 0 if unknown).
    pub(crate) unreported_lines: u64,
    pub(crate) unreported_bytes: u64,
    pub(crate) errno: u64,
}

/// The file that holds one [`Position`], overwritten in place.
#[derive(Debug)]
pub(crate) struct PositionFile {
    file: File,
}

// === impl Position ===

impl Position {
    fn encode(&self) -> [u8; RECORD_LEN] {
        let mut record = [0; RECORD_LEN];
        let fields = [
            MAGIC,
            self.device,
            self.inode,
            self.log_len,
            self.logged[0],
            self.logged[1],
            self.lines,
            self.bytes,
            self.dropped_lines,
            self.dropped_bytes,
            self.unreported_lines,
            self.unreported_bytes,
            self.errno,
        ];
        for (slot, field) in record.chunks_exact_mut(8).zip(fields) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        let (body, sum) = record.split_at_mut(RECORD_LEN - 8);
        sum.copy_from_slice(&checksum(body).to_le_bytes());
        record
    }

    /// Decodes a record; `None` if it was not written completely.
    fn decode(record: &[u8; RECORD_LEN]) -> Option<Self> {
        let mut fields = [0; FIELDS];
        for (field, slot) in fields.iter_mut().zip(record.chunks_exact(8)) {
            *field = u64::from_le_bytes(slot.try_into().expect("chunks are eight bytes long"));
        }
        let [
            magic,
            device,
            inode,
            log_len,
            stdout,
            stderr,
            lines,
            bytes,
            dropped_lines,
            dropped_bytes,
            untold_lines,
            untold_bytes,
            errno,
            sum,
        ] = fields;
        (magic == MAGIC && sum == checksum(&record[..RECORD_LEN - 8])).then_some(Self {
            device,
            inode,
            log_len,
            logged: [stdout, stderr],
            lines,
            bytes,
            dropped_lines,
            dropped_bytes,
            unreported_lines: untold_lines,
            unreported_bytes: untold_bytes,
            errno,
        })
    }
}

/// FNV-1a; it guards against a foreign or cut file, not against malice.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Checks that any record that decodes is encoded to the same bytes, also if its checksum was made to fit.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn check_record(data: &[u8]) {
    let mut record = [0; RECORD_LEN];
    let len = data.len().min(RECORD_LEN);
    record[..len].copy_from_slice(&data[..len]);
    if let Some(position) = Position::decode(&record) {
        assert_eq!(position.encode(), record);
    }
    record[..8].copy_from_slice(&MAGIC.to_le_bytes());
    let (body, sum) = record.split_at_mut(RECORD_LEN - 8);
    sum.copy_from_slice(&checksum(body).to_le_bytes());
    let position = Position::decode(&record).expect("its checksum is right");
    assert_eq!(position.encode(), record);
}

// === impl PositionFile ===

impl PositionFile {
    /// Creates the file, or truncates an existing one.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)?;
        Ok(Self { file })
    }

    /// Opens the file and reads the record, which is `None` if the file has no valid one.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, Option<Position>)> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut record = [0; RECORD_LEN];
        let position = match file.read_exact_at(&mut record, 0) {
            Ok(()) => Position::decode(&record),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(error) => return Err(error),
        };
        Ok((Self { file }, position))
    }

    /// Stores a record with one write inside one page, which a kill cannot tear.
    pub(crate) fn store(&self, position: &Position) -> io::Result<()> {
        self.file.write_all_at(&position.encode(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_record_round_trips() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pos");
        let position = Position {
            device: 1,
            inode: 2,
            log_len: 3,
            logged: [4, 5],
            lines: 6,
            bytes: 7,
            dropped_lines: 8,
            dropped_bytes: 9,
            unreported_lines: 10,
            unreported_bytes: 11,
            errno: 28,
        };
        PositionFile::create(&path)
            .unwrap()
            .store(&position)
            .unwrap();
        assert_eq!(PositionFile::open(&path).unwrap().1, Some(position));
    }

    #[test]
    fn damaged_or_missing_record_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pos");
        PositionFile::create(&path).unwrap();
        assert_eq!(PositionFile::open(&path).unwrap().1, None);
        let mut record = Position::default().encode();
        record[20] ^= 1;
        std::fs::write(&path, record).unwrap();
        assert_eq!(PositionFile::open(&path).unwrap().1, None);
    }
}
