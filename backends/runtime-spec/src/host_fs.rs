//! Access to files, mounts and devices of the node.

use std::io;
use std::path::{Path, PathBuf};

use switchyard_core::spec::MissingSource;
pub use switchyard_linux::mounts::Propagation as HostPropagation;

/// A device node of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// True for a block device, false for a character device.
    pub block: bool,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// The kind of file at a path of the host, as far as devices are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostNode {
    /// A device.
    Device(DeviceInfo),
    /// A directory, with the devices in it and below, by path.
    Directory(Vec<(PathBuf, DeviceInfo)>),
    /// Anything else.
    Other,
}

/// Files, mounts and devices of the node. Each call is short and may block on the file system.
pub trait HostFs: Send + Sync {
    /// The source of a bind mount with symlinks resolved; created first if it is missing and `missing`
    /// requests that.
    ///
    /// # Errors
    /// Those of the file system.
    fn source(&self, path: &Path, missing: MissingSource) -> io::Result<PathBuf>;

    /// The propagation of the mount that `path` is on. `path` has no symlinks.
    ///
    /// # Errors
    /// Those of the file system.
    fn propagation(&self, path: &Path) -> io::Result<HostPropagation>;

    /// The propagation of the mounts that these paths are on, in their order.
    fn propagations(&self, paths: &[PathBuf]) -> Vec<io::Result<HostPropagation>> {
        paths.iter().map(|path| self.propagation(path)).collect()
    }

    /// The kind of file at `path`, with symlinks followed.
    ///
    /// # Errors
    /// Those of the file system.
    fn node(&self, path: &Path) -> io::Result<HostNode>;

    /// All devices of the host that a privileged task gets, by path.
    ///
    /// # Errors
    /// Those of the file system.
    fn all_devices(&self) -> io::Result<Vec<(PathBuf, DeviceInfo)>>;

    /// The text of a file of at most `limit` bytes.
    ///
    /// # Errors
    /// Those of the file system; `FileTooLarge` for a file that is larger, and an error for one that is not regular.
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>>;

    /// The files in a directory, by path, in any order.
    ///
    /// # Errors
    /// Those of the file system.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;
}
