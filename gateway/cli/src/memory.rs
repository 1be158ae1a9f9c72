//! The memory of the daemon and the logkeeper: it hides credentials and output of containers, and goes back to the kernel when it
//! is free.

use tikv_jemalloc_ctl::background_thread;
use tikv_jemallocator::Jemalloc;

/// The allocator of the whole program. glibc's keeps what a burst of requests took; this one gives it back, by the settings in
/// `.cargo/config.toml` (ADR 96).
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Gives free memory back to the kernel also while this process has nothing to do, by a thread of the allocator.
pub(super) fn give_back() {
    if let Err(error) = background_thread::write(true) {
        tracing::warn!(%error, "free memory goes back to the kernel only while the process works");
    }
}

/// Makes this process not dumpable: its memory holds credentials and output of containers. So it leaves no
/// core dump, and only a process with CAP_SYS_PTRACE can read its memory. Programs that it executes are not
/// affected: execve(2) resets the attribute.
pub(super) fn hide() {
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!(%error, "the memory of this process may be in core dumps");
    }
}
