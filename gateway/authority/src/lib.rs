//! Server-side connections that accept every gRPC client.
//!
//! A client of a unix socket has no host name to send as `:authority`. Clients based on gRPC's C core
//! (Python, C++, Ruby, PHP, C#), grpc-java and old versions of grpc-go send the path of the socket instead,
//! plain or percent-encoded. HTTP/2 forbids such a value, and `h2` answers it with `PROTOCOL_ERROR`; Go's
//! servers accept it. Nothing in Switchyard uses the value.
//!
//! [`AuthorityFilter`] sits between the socket and `h2`. It replaces a value that `h2` would refuse by one of
//! the same length:
//!
//! ```text
//!                    ┌ all frames without header blocks: passed on at once
//! client ─► frames ──┤
//!                    └ HEADERS, CONTINUATION: buffered until the block is complete (at most 64 KiB)
//!                      :authority is valid   ─► passed on unchanged; after a first valid one, all is
//!                      :authority is invalid ─► its bytes outside [A-Za-z0-9.-] become '-', in new frames
//! ```
//!
//! Since the length is kept, an entry of the client's dynamic table has the same size in the table of `h2`:
//! both sides evict the same entries, and an index refers to the same entry. The filter tracks the table by
//! the sizes of its entries, and stores no headers.
//!
//! The filter does not validate: bytes that it cannot parse or buffer are passed on unchanged, with all that
//! follow, and `h2` reports the error.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

mod block;
mod frames;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod huffman;
mod malformed;
mod table;

use frames::Rewriter;

/// Size of the output buffer that stays allocated between two reads, in bytes.
const KEPT_OUTPUT: usize = 16 << 10;

/// A server-side connection with `:authority` values that `h2` accepts. Writes are passed through unchanged.
///
/// `G` is dropped with the connection, for example a permit of a connection limit.
#[derive(Debug)]
pub struct AuthorityFilter<S, G = ()> {
    stream: S,
    /// `None` once nothing needs to be rewritten any more.
    watch: Option<Box<Watch>>,
    _guard: G,
}

/// The state for reading while header blocks are checked.
#[derive(Debug, Default)]
struct Watch {
    rewriter: Rewriter,
    /// The output, of which the first `delivered` bytes have been read.
    out: Vec<u8>,
    delivered: usize,
}

// === impl AuthorityFilter ===

impl<S> AuthorityFilter<S> {
    /// Wraps a newly accepted connection.
    pub fn new(stream: S) -> Self {
        Self::with_guard(stream, ())
    }
}

impl<S, G> AuthorityFilter<S, G> {
    /// Wraps a newly accepted connection; `guard` is dropped with it.
    pub fn with_guard(stream: S, guard: G) -> Self {
        Self {
            stream,
            watch: Some(Box::default()),
            _guard: guard,
        }
    }

    /// Returns whether header blocks are still checked.
    #[must_use]
    pub const fn is_watching(&self) -> bool {
        self.watch.is_some()
    }
}

impl<S: AsyncRead + Unpin, G: Unpin> AsyncRead for AuthorityFilter<S, G> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Some(watch) = &mut this.watch else {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        };
        while buf.remaining() > 0 {
            if watch.deliver(buf) {
                return Poll::Ready(Ok(()));
            }
            if watch.rewriter.is_pass_through() {
                this.watch = None;
                return Pin::new(&mut this.stream).poll_read(cx, buf);
            }
            let before = buf.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
            if !watch.push(&buf.filled()[before..]) {
                return Poll::Ready(Ok(()));
            }
            // The bytes that were read are withdrawn: the rewriter's output is delivered in their place.
            buf.set_filled(before);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin, G: Unpin> AsyncWrite for AuthorityFilter<S, G> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Handlers see the peer's information of the wrapped connection, for example a unix socket's credentials.
impl<S: Connected, G> Connected for AuthorityFilter<S, G> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> S::ConnectInfo {
        self.stream.connect_info()
    }
}

// === impl Watch ===

impl Watch {
    /// Processes bytes that were read; an empty slice is the end of the connection. Returns whether there may
    /// be output afterwards.
    fn push(&mut self, read: &[u8]) -> bool {
        if read.is_empty() {
            self.rewriter.finish(&mut self.out);
            return !self.out.is_empty();
        }
        self.rewriter.push(read, &mut self.out);
        true
    }

    /// Copies output into `buf`, as much as fits; returns whether there was any.
    fn deliver(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let left = &self.out[self.delivered..];
        let fits = left.len().min(buf.remaining());
        buf.put_slice(&left[..fits]);
        self.delivered += fits;
        if self.delivered == self.out.len() {
            self.out.clear();
            self.out.shrink_to(KEPT_OUTPUT);
            self.delivered = 0;
        }
        fits > 0
    }
}

#[cfg(test)]
mod tests;
