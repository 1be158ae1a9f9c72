//! Limits of the connections between launchers and the daemon.

use tonic::transport::Server;

/// The longest message that is read or written, in bytes; Nomad's own clients have no limit.
pub(crate) const MAX_MESSAGE: usize = 64 << 20;

/// Maximum number of bytes of a stream that wait for its reader.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;

/// The same for a connection. It must never be the bottleneck: an unread stream must not block the others.
pub(crate) const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// Configures a server for launchers, with this many concurrent calls on one connection: each task of an
/// agent has endless calls, and an unread call does not block the others.
#[must_use]
pub fn tune(server: Server, max_streams: u32) -> Server {
    server
        .max_concurrent_streams(max_streams)
        // A daemon that was held up finds many calls whose callers have given up: these must not end the others'.
        .http2_max_pending_accept_reset_streams(usize::try_from(max_streams).ok())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
}
