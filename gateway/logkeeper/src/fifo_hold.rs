//! Keeps a container's FIFOs open, so that their content outlives both the logkeeper and the shim.

use std::fs::File;
use std::io;

use crate::fifo;
use crate::protocol::LogSpec;

/// Preserves the content of a container's FIFOs while the logkeeper is restarted.
///
/// The kernel discards a FIFO's content when its last descriptor is closed. A shim closes its own when the
/// container has exited. If that happens while the logkeeper is dead, up to a FIFO full of the last output
/// would be lost, and no later logkeeper could recover it. The client therefore opens a hold before the
/// container is created, and drops it after [`crate::Client::finish`] has returned. A hold never reads. It
/// has no write end either, so a finish still notices that all writers have closed.
#[derive(Debug)]
pub struct FifoHold {
    _fifos: Vec<File>,
}

// === impl FifoHold ===

impl FifoHold {
    /// Opens the FIFOs of a container; never blocks.
    ///
    /// # Errors
    /// A FIFO cannot be opened, or the file is not a FIFO (`InvalidInput`).
    pub fn open(spec: &LogSpec) -> io::Result<Self> {
        let paths = [&spec.stdout, &spec.stderr].into_iter().flatten();
        Ok(Self {
            _fifos: paths
                .map(|path| fifo::open(path, false))
                .collect::<io::Result<_>>()?,
        })
    }
}
