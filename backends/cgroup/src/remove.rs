//! Removes cgroups, groups inside groups first.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::reader::{MAX_DEPTH, children, is_gone};

/// How often a removal is tried while the kernel says that the group is busy.
const ATTEMPTS: u32 = 8;

/// The wait after the first attempt; each next one is twice as long, 635 ms in all.
const FIRST_WAIT: Duration = Duration::from_millis(5);

/// Removes a directory of a cgroup hierarchy with all groups below. Only `rmdir` is used: no file is ever deleted.
pub(crate) fn remove_tree(dir: &Path) -> Result<()> {
    remove_below(dir, MAX_DEPTH)
}

/// Removes a directory of a cgroup hierarchy, unless it has groups inside.
pub(crate) fn remove_one(dir: &Path) -> Result<()> {
    remove_below(dir, 0)
}

fn remove_below(dir: &Path, depth: usize) -> Result<()> {
    let mut wait = FIRST_WAIT;
    let mut attempt = 1;
    loop {
        if depth > 0 {
            for child in children(dir)? {
                remove_below(&child, depth - 1)?;
            }
        }
        let error = match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => error,
        };
        match error.raw_os_error().map(Errno::from_raw) {
            // The kernel lets go of a process a little after its parent was told; or somebody made a group inside.
            Some(Errno::EBUSY | Errno::ENOTEMPTY) if attempt < ATTEMPTS => {
                std::thread::sleep(wait);
                wait *= 2;
                attempt += 1;
            }
            Some(Errno::EBUSY) => return Err(Error::Busy { path: dir.to_owned(), source: error }),
            Some(_) | None => return Err(Error::File { path: dir.to_owned(), source: error }),
        }
    }
}
