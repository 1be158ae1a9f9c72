//! Disks that are full, and such that cannot be written.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{major, minor};
use nix::sys::statvfs::statvfs;

use crate::host::eventually;
use crate::host::processes::{self, Process};
use crate::prereq;

/// The size of an [`Ext4Disk`], in bytes; its file is sparse.
const EXT4_SIZE: u64 = 512 << 20;

/// Limit until nobody has an [`Ext4Disk`] mounted any more: a daemon that starts keeps a copy of all mounts
/// for up to ten seconds.
const REPAIR_LIMIT: Duration = Duration::from_secs(40);

/// A disk that takes no writes: who writes waits in the kernel, and no signal ends it. Dropping this thaws the disk.
#[derive(Debug)]
pub struct FrozenDisk(PathBuf);

impl FrozenDisk {
    /// Freezes the disk that is mounted on `dir`.
    ///
    /// # Panics
    /// If it cannot be frozen.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        let frozen = Self(dir.to_owned());
        let done = frozen.call("--freeze");
        assert!(done, "{} cannot be frozen", dir.display());
        frozen
    }

    /// Returns whether fsfreeze succeeds.
    fn call(&self, word: &str) -> bool {
        let status = Command::new(prereq::require("fsfreeze", "util-linux"))
            .arg(word)
            .arg(&self.0)
            .status();
        status.is_ok_and(|status| status.success())
    }
}

impl Drop for FrozenDisk {
    fn drop(&mut self) {
        let _ = self.call("--unfreeze");
    }
}

/// Files that fill a disk; dropping this removes them.
#[derive(Debug)]
pub struct FilledDisk(PathBuf);

impl FilledDisk {
    /// Uses up all bytes of the disk that `dir` is on.
    ///
    /// # Panics
    /// If it has no inode left.
    #[must_use]
    pub fn bytes(dir: &Path) -> Self {
        let filling = Self(dir.join("filling"));
        let mut file = File::create(&filling.0).expect("there is an inode left");
        let mut size = 1 << 20;
        while size > 0 {
            // Smaller and smaller pieces, until not even one byte can be written.
            if file.write_all(&vec![1; size]).is_err() {
                size /= 2;
            }
        }
        filling
    }

    /// Writes a file until so much of the disk that it is on is used.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn up_to(file: PathBuf, percent: u64) -> Self {
        let filling = Self(file);
        let mut file = File::create(&filling.0).expect("there is an inode left");
        let piece = vec![1; 64 << 10];
        loop {
            let disk = statvfs(&filling.0).expect("the file is there");
            let used = disk.blocks() - disk.blocks_available();
            if used * 100 >= disk.blocks() * percent {
                return filling;
            }
            file.write_all(&piece).expect("there is space left");
        }
    }

    /// Uses up all inodes of the disk that `dir` is on.
    ///
    /// # Panics
    /// If it has no inode left.
    #[must_use]
    pub fn inodes(dir: &Path) -> Self {
        let filling = Self(dir.join("filling"));
        fs::create_dir(&filling.0).expect("there is an inode left");
        let mut number = 0;
        while File::create(filling.0.join(number.to_string())).is_ok() {
            number += 1;
        }
        filling
    }

    /// Makes so many inodes of a disk without any free again.
    ///
    /// # Panics
    /// If the files that fill it were removed.
    pub fn free_inodes(&self, count: usize) {
        for file in fs::read_dir(&self.0).expect("it is there").take(count) {
            fs::remove_file(file.expect("it can be listed").path()).expect("it is there");
        }
    }

    /// Uses up the space that has become free since.
    ///
    /// # Panics
    /// If the files that fill it were removed.
    pub fn refill(&self) {
        let mut number = 0;
        while self.0.is_dir() && File::create(self.0.join(format!("more{number}"))).is_ok() {
            number += 1;
        }
        if self.0.is_file() {
            let mut file = File::options()
                .append(true)
                .open(&self.0)
                .expect("it is there");
            while file.write_all(&[1; 512]).is_ok() {}
        }
    }
}

impl Drop for FilledDisk {
    fn drop(&mut self) {
        let _ = if self.0.is_dir() {
            fs::remove_dir_all(&self.0)
        } else {
            fs::remove_file(&self.0)
        };
    }
}

/// A file system that cannot be written, over a directory until it is dropped. Whoever has files below it open keeps
/// them.
#[derive(Debug)]
pub struct ReadOnlyDisk(PathBuf);

impl ReadOnlyDisk {
    /// With what the directory has.
    ///
    /// # Panics
    /// If that cannot be mounted.
    #[must_use]
    pub fn with_content_of(dir: &Path) -> Self {
        let none = None::<&str>;
        mount(
            Some(dir),
            dir,
            none,
            MsFlags::MS_BIND | MsFlags::MS_REC,
            none,
        )
        .expect("root can bind");
        let disk = Self(dir.to_owned());
        let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(none, dir, none, read_only, none).expect("root can make a mount read-only");
        disk
    }

    /// Without any content.
    ///
    /// # Panics
    /// If that cannot be mounted.
    #[must_use]
    pub fn empty_over(dir: &Path) -> Self {
        fs::create_dir_all(dir).expect("the scratch directory can be written");
        mount(
            Some("tmpfs"),
            dir,
            Some("tmpfs"),
            MsFlags::MS_RDONLY,
            Some("mode=0700,size=1m"),
        )
        .expect("root can mount a tmpfs");
        Self(dir.to_owned())
    }
}

impl Drop for ReadOnlyDisk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// An ext4 file system in a file, over a directory: see [`PrivateRoot::ext4_disk`](crate::root::PrivateRoot::ext4_disk).
#[derive(Debug)]
pub struct Ext4Disk {
    image: PathBuf,
    point: PathBuf,
}

impl Ext4Disk {
    /// Makes the file and mounts it.
    #[track_caller]
    pub(crate) fn mounted(image: PathBuf, point: &Path) -> Self {
        assert!(
            Path::new("/dev/loop-control").exists(),
            "/dev/loop-control is missing: this test needs loop devices, so the kernel's module `loop`, and in a container \
             the devices of the host"
        );
        fs::create_dir_all(point).expect("the scratch directory can be written");
        let file = File::create(&image).expect("the scratch directory can be written");
        file.set_len(EXT4_SIZE).expect("a file can have holes");
        run(
            "mkfs.ext4",
            "e2fsprogs",
            &[OsStr::new("-q"), OsStr::new("-F"), image.as_os_str()],
            0,
        );
        let disk = Self {
            image,
            point: point.to_owned(),
        };
        disk.mount();
        disk
    }

    #[track_caller]
    fn mount(&self) {
        let options = OsStr::new("loop,errors=remount-ro");
        run(
            "mount",
            "mount",
            &[
                OsStr::new("-o"),
                options,
                self.image.as_os_str(),
                self.point.as_os_str(),
            ],
            0,
        );
    }

    /// Its device number, as mount tables have it.
    #[track_caller]
    fn device(&self) -> String {
        let device = fs::metadata(&self.point).expect("it is mounted").dev();
        format!("{}:{}", major(device), minor(device))
    }

    /// Returns its directory in sysfs.
    #[track_caller]
    fn in_sysfs(&self) -> PathBuf {
        let link = fs::read_link(format!("/sys/dev/block/{}", self.device()));
        let link = link.expect("it is on a block device");
        Path::new("/sys/fs/ext4").join(link.file_name().expect("a device has a name"))
    }

    /// Makes the kernel find an error in it: from now on it refuses writes, also to files that are open,
    /// until it is mounted again.
    ///
    /// # Panics
    /// If it is not mounted.
    #[track_caller]
    pub fn fail(&self) {
        fs::write(self.in_sysfs().join("trigger_fs_error"), "1")
            .expect("root can trigger an error");
    }

    /// Checks it and mounts it again, as the next boot does.
    ///
    /// # Panics
    /// If anything still uses it.
    #[track_caller]
    pub fn repair(&self) {
        let device = self.device();
        let in_sysfs = self.in_sysfs();
        umount2(&self.point, MntFlags::empty()).expect("nobody uses it any more");
        let gone = eventually(REPAIR_LIMIT, || !in_sysfs.exists());
        assert!(
            gone,
            "{} or a file below it is still mounted, here or in the mount namespaces of these processes: {:#?}",
            self.point.display(),
            processes_with_mount(&device)
        );
        // 1 says that it has repaired something.
        run(
            "e2fsck",
            "e2fsprogs",
            &[OsStr::new("-f"), OsStr::new("-y"), self.image.as_os_str()],
            1,
        );
        self.mount();
    }
}

/// The processes in whose mount namespaces a device is mounted.
fn processes_with_mount(device: &str) -> Vec<Process> {
    let mut all = processes::all();
    all.retain(|process| {
        let table =
            fs::read_to_string(format!("/proc/{}/mountinfo", process.pid)).unwrap_or_default();
        table
            .lines()
            .any(|line| line.split(' ').nth(2) == Some(device))
    });
    all
}

/// Runs a program that succeeds with an exit status of at most `most`.
#[track_caller]
fn run(program: &str, package: &str, words: &[&OsStr], most: i32) {
    let output = Command::new(prereq::require(program, package))
        .args(words)
        .output()
        .expect("it was found, so it starts");
    let succeeded = output.status.code().is_some_and(|code| code <= most);
    assert!(
        succeeded,
        "{program}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}
