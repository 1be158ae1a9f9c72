//! The mounts of this process, with the kernel's word whether they have changed.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{MountTable, OWN_MOUNTS};

/// The open list of the mounts in the mount namespace of this process. The kernel reports for each such list whether a mount
/// was made, changed or removed since it was last asked (proc(5)), so that a long list need not be read again.
#[derive(Debug)]
pub struct OwnMounts(File);

// === impl OwnMounts ===

impl OwnMounts {
    /// Opens the list.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open() -> io::Result<Self> {
        File::open(OWN_MOUNTS).map(Self)
    }

    /// Returns whether something may have changed since the last call, or since it was opened.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn have_changed(&mut self) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.0, PollFlags::PRI)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        Ok(poll(&mut polled, Some(&now))? > 0)
    }

    /// Reads the list.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&mut self) -> io::Result<MountTable> {
        let mut text = Vec::new();
        self.0.seek(SeekFrom::Start(0))?;
        self.0.read_to_end(&mut text)?;
        Ok(MountTable::from_text(text))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn list_can_be_read_again_and_changes_are_reported_once() {
        let mut own = OwnMounts::open().unwrap();
        for _ in 0..2 {
            let table = own.read().unwrap();
            let proc = table.containing(Path::new("/proc/self")).unwrap();
            assert_eq!(&*proc.point, Path::new("/proc"));
        }
        // Other tests may mount something meanwhile, but not all the time.
        while own.have_changed().unwrap() {}
    }
}
