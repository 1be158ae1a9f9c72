//! What a file system does not say of itself.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::sys::stat::{major, minor};

/// The file that is written, in a directory of the gateway.
const FILE: &str = "write-test";

/// Writes to the disk of a directory, and waits until the disk has it. Some of what is wrong with a disk shows in nothing
/// else: on Linux 6.18, ext4 does not call itself read-only after an error; a local disk that hangs still answers
/// what is in memory. A full disk is no error. Blocks, for ever if the disk hangs.
///
/// # Errors
/// Those of the file system.
pub(crate) fn try_write(dir: &Path) -> io::Result<()> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    // Always the same place: it needs no space but for the first time.
    let written = options.open(dir.join(FILE)).and_then(|file| {
        file.write_all_at(b"written from time to time, to learn whether the disk can be used\n", 0)?;
        file.sync_data()
    });
    match written {
        Err(fault) if matches!(fault.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
            Ok(())
        }
        written => written,
    }
}

/// Blocks of the file system of `dir` that it counts as free and that nobody can use, root included: ext4 keeps some for
/// itself, up to 16 MiB.
///
/// # Errors
/// If there is no such directory.
pub(crate) fn reserved_blocks(dir: &Path) -> io::Result<u64> {
    let device = fs::metadata(dir)?.dev();
    let device = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    // Only ext4 has such a file, and only file systems on block devices have such a link.
    let Ok(target) = fs::read_link(device) else { return Ok(0) };
    let Some(name) = target.file_name() else { return Ok(0) };
    let reserved = fs::read_to_string(Path::new("/sys/fs/ext4").join(name).join("reserved_clusters"));
    Ok(reserved.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn directory_is_written_to_and_a_full_one_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            try_write(dir.path()).unwrap();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        fs::remove_file(dir.path().join(FILE)).unwrap();
        symlink("/dev/full", dir.path().join(FILE)).unwrap();
        try_write(dir.path()).unwrap();
        assert!(try_write(&dir.path().join("absent")).is_err());
    }
}
