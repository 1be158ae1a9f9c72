//! Copies extended attributes.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr, lgetxattr, llistxattr, lsetxattr};
use rustix::io::Errno;

/// The kernel's limit on the size of a list of attributes, and of a value, in bytes.
const MOST: usize = 64 << 10;

/// Attributes that are not copied: those in which overlayfs keeps its own state, and the SELinux label, which
/// a new file gets from the node's policy.
const LEFT_OUT: [&[u8]; 2] = [b"trusted.overlay.", b"security.selinux"];

/// Copies attributes, with buffers of its own.
#[derive(Debug)]
pub(crate) struct Xattrs {
    names: Vec<u8>,
    value: Vec<u8>,
    /// Number of attributes that the target's file system does not support.
    pub(crate) refused: u64,
}

impl Xattrs {
    pub(crate) fn new() -> Self {
        Self {
            names: vec![0; MOST],
            value: vec![0; MOST],
            refused: 0,
        }
    }

    /// Copies the attributes of an open file or directory.
    pub(crate) fn copy_open(&mut self, from: impl AsFd, to: impl AsFd) -> Result<(), Errno> {
        let length = flistxattr(&from, &mut self.names[..]);
        self.copy_each(
            length,
            |name, value| fgetxattr(&from, name, value),
            |name, value| fsetxattr(&to, name, value, XattrFlags::empty()),
        )
    }

    /// Copies the attributes of an entry that is not opened (symlink, device), by its name in both
    /// directories.
    pub(crate) fn copy_named(
        &mut self,
        from: impl AsFd,
        to: impl AsFd,
        name: &CStr,
    ) -> Result<(), Errno> {
        // There is no such system call that takes a descriptor and a name.
        let path = |dir: &dyn AsRawFd| {
            let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
            path.extend_from_slice(name.to_bytes());
            path
        };
        let from = path(&from.as_fd());
        let to = path(&to.as_fd());
        let length = llistxattr(&from[..], &mut self.names[..]);
        self.copy_each(
            length,
            |name, value| lgetxattr(&from[..], name, value),
            |name, value| lsetxattr(&to[..], name, value, XattrFlags::empty()),
        )
    }

    fn copy_each(
        &mut self,
        length: Result<usize, Errno>,
        get: impl Fn(&[u8], &mut [u8]) -> Result<usize, Errno>,
        set: impl Fn(&[u8], &[u8]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Self {
            names,
            value,
            refused,
        } = self;
        let length = match length {
            Ok(length) => length,
            // The file system of the source has no extended attributes.
            Err(Errno::OPNOTSUPP) => 0,
            Err(errno) => return Err(errno),
        };
        for name in names[..length]
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
        {
            if LEFT_OUT.iter().any(|prefix| name.starts_with(prefix)) {
                continue;
            }
            let size = match get(name, &mut value[..]) {
                Ok(size) => size,
                Err(Errno::NODATA) => continue,
                Err(errno) => return Err(errno),
            };
            match set(name, &value[..size]) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP) => *refused += 1,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}
