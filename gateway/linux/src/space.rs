//! The space of a file system.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

/// The space of the file system that a directory is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystemSpace {
    /// Its mount point: the uppermost directory above the one that was looked at, on the same device.
    pub mount_point: PathBuf,
    /// Its size in bytes, without those that are kept for root.
    pub size_bytes: u64,
    /// Bytes that programs without privileges can still write.
    pub avail_bytes: u64,
    /// The number of its inodes; 0 if it has no fixed number.
    pub inodes: u64,
    /// Number of inodes that such programs can still take.
    pub free_inodes: u64,
}

// === impl FileSystemSpace ===

impl FileSystemSpace {
    /// Looks at the file system of a directory. Blocks, on some file systems for ever.
    ///
    /// # Errors
    /// Those of the file system; `NotFound` if there is no such directory.
    pub fn of(dir: &Path) -> io::Result<Self> {
        let stat = statvfs(dir)?;
        let block = stat.fragment_size();
        let avail = stat.blocks_available();
        let kept = stat.blocks_free().saturating_sub(avail);
        Ok(Self {
            mount_point: mount_point(dir)?,
            size_bytes: stat.blocks().saturating_sub(kept).saturating_mul(block),
            avail_bytes: avail.saturating_mul(block),
            inodes: stat.files(),
            free_inodes: stat.files_available(),
        })
    }
}

/// The uppermost directory above this one, on the same device. The list of mounts is not read: it is long on a node with many
/// containers.
fn mount_point(dir: &Path) -> io::Result<PathBuf> {
    let dir = fs::canonicalize(dir)?;
    let device = fs::metadata(&dir)?.dev();
    let is_beside = |above: &&Path| fs::metadata(above).is_ok_and(|found| found.dev() == device);
    let uppermost = dir.ancestors().take_while(is_beside).last();
    Ok(uppermost.unwrap_or(&dir).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_that_of_the_file_system_with_its_mount_point() {
        let root = FileSystemSpace::of(Path::new("/")).unwrap();
        assert_eq!(root.mount_point, Path::new("/"));
        assert!(root.size_bytes >= root.avail_bytes && root.inodes >= root.free_inodes);
        // A file system of its own, with directories below its mount point.
        let proc = FileSystemSpace::of(Path::new("/proc/self/task")).unwrap();
        assert_eq!(proc.mount_point, Path::new("/proc"));
        let absent = FileSystemSpace::of(Path::new("/no/such/directory"));
        assert_eq!(absent.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
