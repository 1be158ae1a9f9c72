//! Limits of this process.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit on open files of this process to the hard limit (setrlimit(2), `RLIMIT_NOFILE`).
///
/// Programs that use select(2) fail with descriptors above 1023, so a soft limit is low by default. Those that this process
/// starts inherit the raised one.
///
/// # Errors
/// Those of the system calls; the limit is unchanged then.
pub fn raise_open_files_limit() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_is_the_hard_limit_afterwards() {
        raise_open_files_limit().unwrap();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(soft, hard);
    }
}
