//! Tests of a disk by writing to it, which shows faults that its file system does not report.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::{major, minor};

/// The file that is written, in a directory of the gateway.
const FILE: &str = "write-test";

/// The result of a test write to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteTest {
    /// The disk has what was written.
    Written,
    /// There was no space for it.
    NoSpace,
    /// Nothing: this process or the node is short of descriptors or memory, so that it was not written.
    Unknown,
}

/// Writes to the disk of a directory, and waits until the disk has it. Some of what is wrong with a disk shows in nothing
/// else: on Linux 6.18, ext4 does not call itself read-only after an error; a local disk that hangs still answers what is in
/// memory. Blocks, for ever if the disk hangs.
///
/// # Errors
/// Those of the file system.
pub(crate) fn try_write(dir: &Path) -> io::Result<WriteTest> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false).mode(0o600);
    // Always the same place: on a file system that does not copy on write, only the first write needs space, so that a quota
    // that is exhausted later does not show.
    let written = options.open(dir.join(FILE)).and_then(|file| {
        file.write_all_at(
            b"written from time to time, to learn whether the disk can be used\n",
            0,
        )?;
        file.sync_data()
    });
    shown_by(written)
}

/// Returns the result of a test write that ended so. Pure.
fn shown_by(written: io::Result<()>) -> io::Result<WriteTest> {
    let Err(fault) = written else {
        return Ok(WriteTest::Written);
    };
    match fault.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSPC | Errno::EDQUOT) => Ok(WriteTest::NoSpace),
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) => Ok(WriteTest::Unknown),
        _ => Err(fault),
    }
}

/// Blocks of the file system of `dir` that it counts as free and that nobody can use, root included: ext4 keeps some for
/// itself, up to 16 MiB. With `bigalloc` the number is that of clusters, which are larger than blocks and whose size ext4 does not
/// show: the number returned is too small then.
///
/// # Errors
/// If there is no such directory.
pub(crate) fn reserved_blocks(dir: &Path) -> io::Result<u64> {
    Ok(reserved_on(Path::new("/sys"), fs::metadata(dir)?.dev()))
}

/// Those of the file system of a device, by this `sysfs`.
fn reserved_on(sys: &Path, device: u64) -> u64 {
    // Only file systems on block devices have such a link, and only ext4 has such a file.
    let link = sys.join(format!("dev/block/{}:{}", major(device), minor(device)));
    let name = fs::read_link(link)
        .ok()
        .and_then(|target| Some(target.file_name()?.to_owned()));
    let file = name.map(|name| sys.join("fs/ext4").join(name).join("reserved_clusters"));
    let reserved = file.and_then(|file| fs::read_to_string(file).ok());
    reserved
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::makedev;

    use super::*;

    #[test]
    fn directory_is_written_to_and_a_full_one_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            assert_eq!(try_write(dir.path()).unwrap(), WriteTest::Written);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        fs::remove_file(dir.path().join(FILE)).unwrap();
        symlink("/dev/full", dir.path().join(FILE)).unwrap();
        assert_eq!(try_write(dir.path()).unwrap(), WriteTest::NoSpace);
        assert!(try_write(&dir.path().join("absent")).is_err());
    }

    #[test]
    fn shortage_of_the_daemon_is_told_from_one_of_the_disk_and_from_a_fault() {
        let shown_by =
            |errno: Errno| shown_by(Err(errno.into())).map_err(|fault| fault.raw_os_error());
        for disk in [Errno::ENOSPC, Errno::EDQUOT] {
            assert_eq!(shown_by(disk), Ok(WriteTest::NoSpace), "{disk}");
        }
        for own in [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM] {
            assert_eq!(shown_by(own), Ok(WriteTest::Unknown), "{own}");
        }
        for fault in [Errno::EIO, Errno::EROFS, Errno::EACCES] {
            assert_eq!(
                shown_by(fault),
                Err(io::Error::from(fault).raw_os_error()),
                "{fault}"
            );
        }
    }

    #[test]
    fn what_ext4_keeps_for_itself_is_found_by_the_device() {
        let sys = tempfile::tempdir().unwrap();
        let sys = sys.path();
        fs::create_dir_all(sys.join("dev/block")).unwrap();
        for (device, name) in [("254:1", "vda1"), ("254:2", "vda2")] {
            symlink(
                format!("../../devices/virtual/{name}"),
                sys.join("dev/block").join(device),
            )
            .unwrap();
        }
        let ext4 = sys.join("fs/ext4/vda1");
        fs::create_dir_all(&ext4).unwrap();
        fs::write(ext4.join("reserved_clusters"), "4096\n").unwrap();
        assert_eq!(reserved_on(sys, makedev(254, 1)), 4096);
        // One of another kind, and one without a device.
        assert_eq!(reserved_on(sys, makedev(254, 2)), 0);
        assert_eq!(reserved_on(sys, makedev(0, 21)), 0);
        fs::write(ext4.join("reserved_clusters"), "none").unwrap();
        assert_eq!(reserved_on(sys, makedev(254, 1)), 0);
    }
}
