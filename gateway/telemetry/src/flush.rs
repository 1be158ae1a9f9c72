//! The wait for a thread that writes what is in a bounded queue.

use std::sync::mpsc::{self, Sender, SyncSender, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

/// The pause between two tries to put a message into a full queue.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until what is in a queue is written, at most for this time; returns whether it is. The reader of the queue answers the
/// message with which this asks it, when it has written everything before it. Blocks.
pub fn flush_queue<M>(
    queue: &SyncSender<M>,
    message: impl FnOnce(Sender<()>) -> M,
    limit: Duration,
) -> bool {
    let deadline = Instant::now() + limit;
    let (flushed, wait) = mpsc::channel();
    let mut message = message(flushed);
    while let Err(TrySendError::Full(same)) = queue.try_send(message) {
        if Instant::now() >= deadline {
            return false;
        }
        message = same;
        thread::sleep(PAUSE);
    }
    let left = deadline.saturating_duration_since(Instant::now());
    wait.recv_timeout(left).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_that_nobody_reads_is_waited_for_no_longer_than_the_limit() {
        let limit = Duration::from_millis(50);
        for room in [0, 1] {
            let (queue, reader) = mpsc::sync_channel(room);
            let begin = Instant::now();
            assert!(!flush_queue(&queue, |flushed| flushed, limit));
            assert!(begin.elapsed() >= limit);
            drop(reader);
            // Its reader is gone: there is nothing to wait for.
            assert!(!flush_queue(
                &queue,
                |flushed| flushed,
                Duration::from_secs(600)
            ));
        }
    }

    #[test]
    fn queue_is_flushed_when_its_reader_answers() {
        let (queue, reader) = mpsc::sync_channel::<Sender<()>>(0);
        let writer = thread::spawn(move || reader.recv().unwrap().send(()).unwrap());
        let limit = Duration::from_secs(60);
        assert!(flush_queue(&queue, |flushed| flushed, limit));
        writer.join().unwrap();
    }
}
