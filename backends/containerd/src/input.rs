//! Standard input of processes. The shim holds the FIFO open too, so that no death of ours ends it; its end is told by a call.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::AsyncWrite;
use tokio::net::unix::pipe;
use tokio::time::{Sleep, sleep};

/// What is typed into a terminal to end the input of whoever reads it: Ctrl-D.
const END_OF_TRANSMISSION: u8 = 4;

/// How soon, and how seldom at last, the end of a terminal's input is typed again.
const RETYPE_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What is done once the input has been closed.
type OnClose = Box<dyn FnOnce() + Send + Sync>;

/// One writer's end of a FIFO, which others may close.
#[derive(Debug, Default)]
pub(crate) struct StdinPipe {
    state: Mutex<PipeState>,
}

#[derive(Debug, Default)]
struct PipeState {
    /// `None` once it is closed.
    pipe: Option<pipe::Sender>,
    waiting: Option<Waker>,
}

/// A writer; it is closed by shutting it down and by dropping it.
pub(crate) struct StdinWriter {
    end: Arc<StdinPipe>,
    on_close: Option<OnClose>,
    eof_sender: Option<EofSender>,
}

/// Types the end of a terminal's input, and again after a while. The end of a pipe stays; what is typed is there once, for one read, and
/// is lost if the program takes the terminal to its raw mode meanwhile, as shells do before each line.
struct EofSender {
    /// `None` until the first time.
    again: Option<Pin<Box<Sleep>>>,
    pause: Duration,
}

// === impl End ===

impl StdinPipe {
    pub(crate) fn open(pipe: pipe::Sender) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(PipeState { pipe: Some(pipe), waiting: None }) })
    }

    /// Writes fail from now on.
    pub(crate) fn close(&self) {
        let PipeState { pipe, waiting } =
            std::mem::take(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner));
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
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
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

// === impl Input ===

impl StdinWriter {
    /// A writer to this end, which is the only one.
    pub(crate) fn new(end: Arc<StdinPipe>, on_close: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { end, on_close: Some(Box::new(on_close)), eof_sender: None }
    }

    /// A writer to a terminal, which has no end: shutting it down types one until nobody reads it any more. The shim would hang up
    /// instead, and end the process before it has read what came before.
    pub(crate) fn terminal(end: Arc<StdinPipe>) -> Self {
        Self { end, on_close: None, eof_sender: Some(EofSender { again: None, pause: RETYPE_PAUSE.0 }) }
    }

    /// A writer to an input that is closed already.
    pub(crate) fn closed() -> Self {
        Self { end: Arc::default(), on_close: None, eof_sender: None }
    }

    fn close(&mut self) {
        self.end.close();
        if let Some(on_close) = self.on_close.take() {
            on_close();
        }
    }
}

impl AsyncWrite for StdinWriter {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.end.poll(cx, |pipe, cx| pipe.poll_write(cx, bytes))
    }

    /// Nothing is kept back.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let Self { end, eof_sender: typist, .. } = &mut *self;
        if let Some(typist) = typist {
            // An error means that nobody reads it any more.
            let _gone = ready!(typist.poll(end, cx));
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

// === impl Typist ===

impl EofSender {
    /// Ready once nobody can read it any more.
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
