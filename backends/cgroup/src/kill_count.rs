//! The number of OOM kills that a cgroup's file has counted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::parse::flat_keyed;

/// Larger than the files ever are, in bytes.
const MAX_BYTES: usize = 4096;

/// The number of kills in an open file. Reading it from its start also rearms polling for the next event.
pub(crate) fn count(file: &File) -> io::Result<u64> {
    let mut bytes = [0; MAX_BYTES];
    let length = file.read_at(&mut bytes, 0)?;
    Ok(kills(&String::from_utf8_lossy(&bytes[..length])))
}

/// The number of kills in the text of either file. A kill of a whole group counts at least once.
pub(crate) fn kills(text: &str) -> u64 {
    let counts = flat_keyed(text);
    let count = |key: &str| counts.get(key).copied().unwrap_or(0);
    count("oom_kill").max(count("oom_group_kill"))
}
