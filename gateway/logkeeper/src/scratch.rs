//! The buffers through which output passes from its spool to its log.

use crate::clock::Clock;
use crate::sink::Batch;

/// The most bytes that are read from a FIFO before other streams are served.
pub(crate) const BATCH: usize = 64 * 1024;

/// Buffers that the containers of one thread share; one uses them at a time.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) input: Vec<u8>,
    pub(crate) batch: Batch,
    pub(crate) clock: Clock,
}

// === impl Scratch ===

impl Scratch {
    pub(crate) fn new() -> Self {
        Self {
            input: Vec::new(),
            batch: Batch::new(),
            clock: Clock::new(),
        }
    }

    /// Makes the input buffer large enough for a batch after a held-back line.
    pub(crate) fn fit(&mut self, max_line: usize) {
        let wanted = BATCH + max_line + 2;
        if self.input.len() < wanted {
            self.input.resize(wanted, 0);
        }
    }
}
