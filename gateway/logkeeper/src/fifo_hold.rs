//! Holding a container's FIFOs open, so that their content outlives both the keeper and the shim.

use std::fs::File;
use std::io;

use crate::fifo;
use crate::protocol::LogSpec;

/// Keeps what is in a container's FIFOs alive while the keeper is being restarted.
///
/// The kernel discards a FIFO's content when its last descriptor is closed. A shim closes its own when the container
/// has ended, so if that happens while the keeper is dead, up to a FIFO full of last output would be gone, and nothing
/// the next keeper does could bring it back. Whoever drives the keeper therefore takes a hold before the container is
/// created and drops it after [`crate::Client::finish`] has returned. A hold never reads; and as it only reads, it
/// does not hide from a finish that all writers are gone.
#[derive(Debug)]
pub struct FifoHold {
    _fifos: Vec<File>,
}

// === impl Hold ===

impl FifoHold {
    /// Opens the FIFOs of a container; never blocks.
    ///
    /// # Errors
    /// A FIFO cannot be opened, or is something else (`InvalidInput`).
    pub fn open(spec: &LogSpec) -> io::Result<Self> {
        let paths = [&spec.stdout, &spec.stderr].into_iter().flatten();
        Ok(Self { _fifos: paths.map(|path| fifo::open(path, false)).collect::<io::Result<_>>()? })
    }
}
