//! Work that is repeated by a thread, such as that of an orchestrator.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::host::eventually;

/// Time for which the end of a load waits for work that has begun. What takes longer, such as a call to a node that
/// hangs, ends with the node.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Work that is repeated until this is dropped.
#[derive(Debug)]
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// Repeats work, with this pause after each time.
    pub(super) fn start(pause: Duration, mut work: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                work();
                eventually(pause, || stopped.load(Ordering::Acquire));
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && eventually(END_LIMIT, || thread.is_finished())
        {
            // Work that panicked has printed why.
            let _ = thread.join();
        }
    }
}
