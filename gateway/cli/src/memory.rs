//! The memory of processes that hold credentials and output of containers.

/// Makes this process not dumpable: its memory holds credentials and output of containers. So it leaves no
/// core dump, and only a process with CAP_SYS_PTRACE can read its memory. Programs that it executes are not
/// affected: execve(2) resets the attribute.
pub(super) fn hide() {
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!(%error, "the memory of this process may be in core dumps");
    }
}
