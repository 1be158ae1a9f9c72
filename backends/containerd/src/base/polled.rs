//! Descriptors that are waited for.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor whose readiness the tokio runtime reports. Must be called within one.
///
/// # Errors
/// The system refuses to watch it.
#[expect(
    deprecated,
    reason = "the other way is not safe code, and an OwnedFd is what this one needs to be sound"
)]
pub(crate) fn polled(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, interest)
}
