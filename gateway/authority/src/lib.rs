//! Server-side connections that let every gRPC client in.
//!
//! A client of a unix socket has no host name to send as `:authority`. Clients on gRPC's C core (Python, C++, Ruby, PHP, C#), grpc-java
//! and old versions of grpc-go send the path of the socket instead, bare or percent-encoded. HTTP/2 forbids such a value, and `h2`
//! answers it with `PROTOCOL_ERROR`; Go's servers take it. Nothing in Switchyard reads the value.
//!
//! [`AuthorityFilter`] sits between the socket and `h2`. It rewrites a value that `h2` would refuse to one of the same length:
//!
//! ```text
//!                    ┌ everything but header blocks: passed on at once
//! client ─► frames ──┤
//!                    └ HEADERS, CONTINUATION: held until the block is whole (at most 64 KiB)
//!                        :authority is taken ─► passed on as it came; if it was the first, everything is from here on
//!                        :authority is not   ─► its bytes outside [A-Za-z0-9.-] become '-', in new frames
//! ```
//!
//! The length stays, so an entry of the client's dynamic table has the same size in the table of `h2`: what is evicted is the same on both
//! sides, and an index means the same entry. The filter follows the table by the sizes of its entries and stores no header.
//!
//! It is no check: what it cannot parse or hold goes on as it came, with all that follows, and `h2` says what is wrong with it.

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
mod table;

use frames::Rewriter;

/// What a connection keeps allocated for its output between two reads, in bytes.
const KEPT_OUTPUT: usize = 16 << 10;

/// A server-side connection whose `:authority` is one that `h2` takes. What is written passes unchanged.
///
/// `G` is dropped with the connection, for example its place within a limit.
#[derive(Debug)]
pub struct AuthorityFilter<S, G = ()> {
    stream: S,
    /// `None` once nothing can need rewriting any more.
    watch: Option<Box<Watch>>,
    _guard: G,
}

/// What reading needs while header blocks are looked into.
#[derive(Debug, Default)]
struct Watch {
    rewriter: Rewriter,
    /// What may be read, of which the first `given` bytes have been.
    out: Vec<u8>,
    delivered: usize,
}

// === impl AuthorityFilter ===

impl<S> AuthorityFilter<S> {
    /// Around a connection that has just been accepted.
    pub fn new(stream: S) -> Self {
        Self::with_guard(stream, ())
    }
}

impl<S, G> AuthorityFilter<S, G> {
    /// Around a connection that has just been accepted; `guard` lives as long as the connection.
    pub fn with_guard(stream: S, guard: G) -> Self {
        Self { stream, watch: Some(Box::default()), _guard: guard }
    }

    /// Whether header blocks are still looked into.
    #[must_use]
    pub const fn is_watching(&self) -> bool {
        self.watch.is_some()
    }
}

impl<S: AsyncRead + Unpin, G: Unpin> AsyncRead for AuthorityFilter<S, G> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Some(watch) = &mut this.watch else { return Pin::new(&mut this.stream).poll_read(cx, buf) };
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
            buf.set_filled(before);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin, G: Unpin> AsyncWrite for AuthorityFilter<S, G> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
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

/// Handlers see the peer as without the filter, for example a unix socket's credentials.
impl<S: Connected, G> Connected for AuthorityFilter<S, G> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> S::ConnectInfo {
        self.stream.connect_info()
    }
}

// === impl Watch ===

impl Watch {
    /// Takes what was read; nothing is the end of the connection. Returns whether there may be anything to give after it.
    fn push(&mut self, read: &[u8]) -> bool {
        if read.is_empty() {
            self.rewriter.finish(&mut self.out);
            return !self.out.is_empty();
        }
        self.rewriter.push(read, &mut self.out);
        true
    }

    /// Gives as much as fits; whether that was anything.
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
