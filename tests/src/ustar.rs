//! Writes deterministic ustar archives: same entries, same bytes, whatever the machine or the hour.

const BLOCK: usize = 512;

/// What an archive entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file with these bytes.
    File(Vec<u8>),
    /// A directory.
    Directory,
    /// A hard link to an earlier entry of the same archive.
    HardLink(String),
    /// A symbolic link with this target.
    Symlink(String),
    /// A character device with these numbers (0, 0 is how overlay whiteouts look in a file system, not in a layer).
    Character(u32, u32),
    /// A named pipe.
    Fifo,
}

/// One entry of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Path below the root of the file system, without a leading slash. At most 100 bytes.
    pub path: String,
    /// Permission bits, set-id bits included.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// What it is.
    pub kind: Kind,
}

/// The archive of `entries` in the given order, with the two zero blocks at its end.
///
/// # Panics
/// When a path or link target is longer than the 100 bytes that the plain ustar header holds.
#[must_use]
pub fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries {
        out.extend_from_slice(&header(entry));
        if let Kind::File(bytes) = &entry.kind {
            out.extend_from_slice(bytes);
            out.resize(out.len().next_multiple_of(BLOCK), 0);
        }
    }
    out.resize(out.len() + 2 * BLOCK, 0);
    out
}

fn header(entry: &Entry) -> [u8; BLOCK] {
    let mut block = [0_u8; BLOCK];
    let (kind, link, size, device) = match &entry.kind {
        Kind::File(bytes) => (b'0', "", bytes.len(), (0, 0)),
        Kind::HardLink(target) => (b'1', target.as_str(), 0, (0, 0)),
        Kind::Symlink(target) => (b'2', target.as_str(), 0, (0, 0)),
        Kind::Character(major, minor) => (b'3', "", 0, (*major, *minor)),
        Kind::Directory => (b'5', "", 0, (0, 0)),
        Kind::Fifo => (b'6', "", 0, (0, 0)),
    };
    text(&mut block[0..100], &entry.path);
    octal(&mut block[100..108], u64::from(entry.mode));
    octal(&mut block[108..116], u64::from(entry.uid));
    octal(&mut block[116..124], u64::from(entry.gid));
    octal(&mut block[124..136], u64::try_from(size).expect("a length fits 64 bits"));
    octal(&mut block[136..148], 0); // The time of change: always the epoch.
    block[156] = kind;
    text(&mut block[157..257], link);
    block[257..265].copy_from_slice(b"ustar\x0000");
    octal(&mut block[329..337], u64::from(device.0));
    octal(&mut block[337..345], u64::from(device.1));

    // The checksum counts its own field as blanks, and ends in a NUL and a blank.
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
    octal(&mut block[148..155], sum);
    block
}

fn text(field: &mut [u8], value: &str) {
    assert!(value.len() <= field.len(), "{value:?} is too long for a ustar header");
    field[..value.len()].copy_from_slice(value.as_bytes());
}

fn octal(field: &mut [u8], value: u64) {
    let width = field.len() - 1;
    let digits = format!("{value:0width$o}");
    assert!(digits.len() == width, "{value} does not fit {width} octal digits");
    field[..width].copy_from_slice(digits.as_bytes());
    field[width] = 0;
}
