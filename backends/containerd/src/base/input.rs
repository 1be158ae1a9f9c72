//! Standard input of processes. The shim holds the write end of the FIFO open too, so that the input does not
//! end when this daemon dies; a call (`CloseIO`) makes the shim close it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use tokio::net::unix::pipe;
use tokio::time::{Sleep, sleep};

/// The character that ends the input of a terminal's reader: Ctrl-D.
const END_OF_TRANSMISSION: u8 = 4;

/// The first and the longest pause before the end of a terminal's input is written again.
const RETYPE_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Called once when the input is closed.
type OnClose = Box<dyn FnOnce() + Send + Sync>;

/// The write end of a FIFO, with one writer; others may close it.
#[derive(Debug, Default)]
pub(crate) struct StdinPipe {
    state: Mutex<PipeState>,
}

#[derive(Debug, Default)]
struct PipeState {
    /// `None` once closed.
    pipe: Option<pipe::Sender>,
    waiting: Option<Waker>,
}

/// The writer of a [`StdinPipe`]. Shutting it down or dropping it closes the pipe.
pub(crate) struct StdinWriter {
    end: Arc<StdinPipe>,
    on_close: Option<OnClose>,
    eof_sender: Option<EofSender>,
}

/// Writes the end-of-input character to a terminal, repeatedly. Unlike the end of a pipe, the character is
/// good for a single read, and it is lost if the program switches the terminal to raw mode meanwhile, as
/// shells do before each line.
struct EofSender {
    /// The pause before the next one; `None` before the first.
    again: Option<Pin<Box<Sleep>>>,
    pause: Duration,
}

// === impl StdinPipe ===

impl StdinPipe {
    pub(crate) fn open(pipe: pipe::Sender) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(PipeState {
                pipe: Some(pipe),
                waiting: None,
            }),
        })
    }

    /// Writes fail from now on.
    pub(crate) fn close(&self) {
        let PipeState { pipe, waiting } = std::mem::take(&mut *self.state.lock());
        drop(pipe);
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    fn poll(
        &self,
        cx: &mut Context<'_>,
        act: impl FnOnce(Pin<&mut pipe::Sender>, &mut Context<'_>) -> Poll<std::io::Result<usize>>,
    ) -> Poll<std::io::Result<usize>> {
        let mut state = self.state.lock();
        let Some(pipe) = state.pipe.as_mut() else {
            return Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into()));
        };
        let polled = act(Pin::new(pipe), cx);
        if polled.is_pending() {
            state.waiting = Some(cx.waker().clone());
        }
        polled
    }
}

// === impl StdinWriter ===

impl StdinWriter {
    /// The only writer of this pipe; `on_close` is called when it closes the pipe.
    pub(crate) fn new(
        end: Arc<StdinPipe>,
        on_close: impl FnOnce() + Send + Sync + 'static,
    ) -> Self {
        Self {
            end,
            on_close: Some(Box::new(on_close)),
            eof_sender: None,
        }
    }

    /// A writer to a terminal. Shutting it down writes the end-of-input character until the terminal has no
    /// reader any more. Closing the FIFO would make the shim hang up the terminal, which ends the process
    /// before it has read the input written so far.
    pub(crate) fn terminal(end: Arc<StdinPipe>) -> Self {
        Self {
            end,
            on_close: None,
            eof_sender: Some(EofSender {
                again: None,
                pause: RETYPE_PAUSE.0,
            }),
        }
    }

    /// A writer to an input that is closed already.
    pub(crate) fn closed() -> Self {
        Self {
            end: Arc::default(),
            on_close: None,
            eof_sender: None,
        }
    }

    fn close(&mut self) {
        self.end.close();
        if let Some(on_close) = self.on_close.take() {
            on_close();
        }
    }
}

impl AsyncWrite for StdinWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.end.poll(cx, |pipe, cx| pipe.poll_write(cx, bytes))
    }

    /// There is no buffer to flush.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let Self {
            end, eof_sender, ..
        } = &mut *self;
        if let Some(sender) = eof_sender {
            // The error says that the terminal has no reader any more.
            let _gone = ready!(sender.poll(end, cx));
        }
        self.close();
        Poll::Ready(Ok(()))
    }
}

impl Drop for StdinWriter {
    fn drop(&mut self) {
        self.close();
    }
}

// === impl EofSender ===

impl EofSender {
    /// Ready, with the error of the write, once the pipe has no reader any more.
    fn poll(&mut self, end: &StdinPipe, cx: &mut Context<'_>) -> Poll<std::io::Error> {
        loop {
            if let Some(again) = &mut self.again {
                ready!(again.as_mut().poll(cx));
            }
            match ready!(end.poll(cx, |pipe, cx| pipe.poll_write(cx, &[END_OF_TRANSMISSION]))) {
                Ok(_) => self.again = Some(Box::pin(sleep(self.pause))),
                Err(fault) => return Poll::Ready(fault),
            }
            self.pause = (self.pause * 2).min(RETYPE_PAUSE.1);
        }
    }
}
