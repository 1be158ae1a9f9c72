//! Reads a pipe or FIFO on its own thread, until end of file or until it is stopped.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// Interval at which a pipe is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Reads until its end. Dropping it closes the pipe.
#[derive(Debug)]
pub(super) struct PipeReader {
    state: Arc<PipeState>,
    thread: Option<JoinHandle<()>>,
}

/// The meaning of an end of file, which is the end of all writers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnEof {
    /// The end of a pipe.
    EndOfInput,
    /// Not the end of a FIFO: another writer may come.
    Ignored,
}

#[derive(Debug, Default)]
struct PipeState {
    stop: AtomicBool,
    read: Mutex<PipeContent>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PipeContent {
    bytes: Vec<u8>,
    ended: bool,
    /// All writers of a FIFO were gone once.
    hung_up: bool,
}

// === impl PipeReader ===

impl PipeReader {
    pub(super) fn start(fd: OwnedFd, eof: OnEof) -> Self {
        let flags =
            OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL).expect("a pipe has flags"));
        fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))
            .expect("a pipe's flags can be set");
        let state = Arc::new(PipeState::default());
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || shared.read_loop(File::from(fd), eof));
        Self {
            state,
            thread: Some(thread),
        }
    }

    /// Returns the text read so far.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.state.lock().bytes).into_owned()
    }

    /// Returns whether its end was seen.
    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().ended
    }

    /// Returns whether all writers of a FIFO were gone once, at which a collector of an agent ends.
    pub(super) fn has_hung_up(&self) -> bool {
        self.state.lock().hung_up
    }

    /// Waits until `condition` holds of what was read, or the end was seen; whether it holds.
    pub(super) fn wait(&self, limit: Duration, mut condition: impl FnMut(&str) -> bool) -> bool {
        let mut read = self.state.lock();
        let holds = |read: &mut PipeContent| condition(&String::from_utf8_lossy(&read.bytes));
        let mut holds = holds;
        self.state
            .changed
            .wait_while_for(&mut read, |read| !read.ended && !holds(read), limit);
        holds(&mut read)
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            // It panics over nothing that it reads.
            let _ = thread.join();
        }
    }
}

// === impl PipeState ===

impl PipeState {
    fn lock(&self) -> MutexGuard<'_, PipeContent> {
        self.read.lock()
    }

    fn read_loop(&self, mut file: File, eof: OnEof) {
        let mut chunk = vec![0; 64 << 10];
        while !self.stop.load(Ordering::SeqCst) {
            match file.read(&mut chunk) {
                Ok(0) if eof == OnEof::EndOfInput => break,
                Ok(0) => {
                    // Not before the first writer.
                    if polled(&file, 0).contains(PollFlags::POLLHUP) {
                        self.lock().hung_up = true;
                    }
                    std::thread::sleep(POLL_INTERVAL);
                }
                Ok(count) => {
                    self.lock().bytes.extend_from_slice(&chunk[..count]);
                    self.changed.notify_all();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // The next read shows the outcome.
                    let _ = polled(&file, 20);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.lock().ended = true;
        self.changed.notify_all();
    }
}

/// The events at a file within this time, ms.
fn polled(file: &File, limit: u16) -> PollFlags {
    let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, limit) {
        Ok(_) => fds[0].revents().unwrap_or(PollFlags::empty()),
        Err(_) => PollFlags::empty(),
    }
}
