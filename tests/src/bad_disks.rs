//! Disks that are full, and such that cannot be written.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

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
            let mut file = File::options().append(true).open(&self.0).expect("it is there");
            while file.write_all(&[1; 512]).is_ok() {}
        }
    }
}

impl Drop for FilledDisk {
    fn drop(&mut self) {
        let _ = if self.0.is_dir() { fs::remove_dir_all(&self.0) } else { fs::remove_file(&self.0) };
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
        mount(Some(dir), dir, none, MsFlags::MS_BIND | MsFlags::MS_REC, none).expect("root can bind");
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
        mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::MS_RDONLY, Some("mode=0700,size=1m"))
            .expect("root can mount a tmpfs");
        Self(dir.to_owned())
    }
}

impl Drop for ReadOnlyDisk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}
