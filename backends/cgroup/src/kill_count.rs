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
    let text = String::from_utf8_lossy(&bytes[..length]);
    kills(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it counts no OOM kills"))
}

/// The number of kills in the text of either file; `None` if it has no such number. A kill of a whole group
/// counts at least once.
pub(crate) fn kills(text: &str) -> Option<u64> {
    let counts = flat_keyed(text);
    let count = |key: &str| counts.get(key).copied();
    count("oom_kill").max(count("oom_group_kill"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_count_of_kills_is_not_zero() {
        assert_eq!(kills("oom_kill_disable 0\nunder_oom 0\n"), None);
        assert_eq!(kills("oom 4\noom_kill 0\noom_group_kill 1\n"), Some(1));
        assert_eq!(kills("oom_kill_disable 0\noom_kill 2\n"), Some(2));
    }
}
