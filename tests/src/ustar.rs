//! Writes deterministic ustar archives: the same entries give the same bytes on every machine. Paths that do
//! not fit are in PAX records.

const BLOCK: usize = 512;
/// The longest path that a header can hold, in bytes.
const NAME: usize = 100;

/// The kind of an archive entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TarEntryKind {
    /// A regular file with these bytes.
    File(Vec<u8>),
    /// A directory.
    Directory,
    /// A hard link to an earlier entry of the same archive.
    HardLink(String),
    /// A symbolic link with this target.
    Symlink(String),
    /// A character device with these numbers (0, 0 is how overlay whiteouts look in a file system, not in a
    /// layer).
    Character(u32, u32),
    /// A named pipe.
    Fifo,
}

/// One entry of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarEntry {
    /// Path below the root of the file system, without a leading slash.
    pub path: String,
    /// Permission bits, set-id bits included.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The kind.
    pub kind: TarEntryKind,
}

/// The archive of `entries` in the given order, with the two zero blocks at its end.
#[must_use]
pub fn archive(entries: &[TarEntry]) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries {
        if let Some(records) = records(entry) {
            let size = records.len();
            out.extend_from_slice(&header(
                &TarEntry {
                    path: "records".to_owned(),
                    kind: TarEntryKind::File(records.clone()),
                    ..entry.clone()
                },
                Some(b'x'),
            ));
            out.extend_from_slice(&records);
            out.resize(out.len() + size.next_multiple_of(BLOCK) - size, 0);
        }
        out.extend_from_slice(&header(entry, None));
        if let TarEntryKind::File(bytes) = &entry.kind {
            out.extend_from_slice(bytes);
            out.resize(out.len().next_multiple_of(BLOCK), 0);
        }
    }
    out.resize(out.len() + 2 * BLOCK, 0);
    out
}

/// The fields that do not fit into the header of an entry, as PAX records.
fn records(entry: &TarEntry) -> Option<Vec<u8>> {
    let target = match &entry.kind {
        TarEntryKind::HardLink(target) | TarEntryKind::Symlink(target) => target.as_str(),
        TarEntryKind::File(_)
        | TarEntryKind::Directory
        | TarEntryKind::Character(..)
        | TarEntryKind::Fifo => "",
    };
    let long = [("path", entry.path.as_str()), ("linkpath", target)];
    let records = long
        .into_iter()
        .filter(|(_, value)| value.len() > NAME)
        .map(|(key, value)| {
            // The length of a record includes its own digits.
            let rest = format!(" {key}={value}\n");
            let mut length = rest.len();
            while length != rest.len() + length.to_string().len() {
                length = rest.len() + length.to_string().len();
            }
            format!("{length}{rest}")
        });
    let all: String = records.collect();
    (!all.is_empty()).then(|| all.into_bytes())
}

/// The header of an entry, of the entry's own type or of `flag`.
fn header(entry: &TarEntry, flag: Option<u8>) -> [u8; BLOCK] {
    let mut block = [0_u8; BLOCK];
    let (kind, link, size, device) = match &entry.kind {
        TarEntryKind::File(bytes) => (b'0', "", bytes.len(), (0, 0)),
        TarEntryKind::HardLink(target) => (b'1', target.as_str(), 0, (0, 0)),
        TarEntryKind::Symlink(target) => (b'2', target.as_str(), 0, (0, 0)),
        TarEntryKind::Character(major, minor) => (b'3', "", 0, (*major, *minor)),
        TarEntryKind::Directory => (b'5', "", 0, (0, 0)),
        TarEntryKind::Fifo => (b'6', "", 0, (0, 0)),
    };
    text(&mut block[0..100], &entry.path);
    octal(&mut block[100..108], u64::from(entry.mode));
    octal(&mut block[108..116], u64::from(entry.uid));
    octal(&mut block[116..124], u64::from(entry.gid));
    octal(
        &mut block[124..136],
        u64::try_from(size).expect("a length fits 64 bits"),
    );
    octal(&mut block[136..148], 0); // The time of change: always the epoch.
    block[156] = flag.unwrap_or(kind);
    text(&mut block[157..257], link);
    block[257..265].copy_from_slice(b"ustar\x0000");
    octal(&mut block[329..337], u64::from(device.0));
    octal(&mut block[337..345], u64::from(device.1));

    // The checksum is computed with its own field as blanks, and is terminated by a NUL and a blank.
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
    octal(&mut block[148..155], sum);
    block
}

fn text(field: &mut [u8], value: &str) {
    let length = value.len().min(field.len());
    field[..length].copy_from_slice(&value.as_bytes()[..length]);
}

fn octal(field: &mut [u8], value: u64) {
    let width = field.len() - 1;
    let digits = format!("{value:0width$o}");
    assert!(
        digits.len() == width,
        "{value} does not fit {width} octal digits"
    );
    field[..width].copy_from_slice(digits.as_bytes());
    field[width] = 0;
}
