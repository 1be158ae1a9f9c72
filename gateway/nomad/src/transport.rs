//! Limits of the connections between launchers and the daemon.

use tonic::transport::Server;

/// The longest message that is read or written, in bytes; Nomad's own clients have no limit.
pub(crate) const MAX_MESSAGE: usize = 64 << 20;

/// Maximum number of bytes of a stream that wait for its reader.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;

/// The same for a connection. It must never be the bottleneck: an unread stream must not block the others.
pub(crate) const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// The maximum number of concurrent streams of one connection. Each task has a few endless streams, and an
/// agent whose streams are all in use hangs: it is far more than all tasks of a node need.
const MAX_STREAMS: u32 = 100_000;

/// Configures a server for agents or launchers: an unread call does not block the others.
#[must_use]
pub fn tune(server: Server) -> Server {
    server
        .max_concurrent_streams(MAX_STREAMS)
        // A daemon that was held up finds many calls whose callers have given up: these must not end the others'.
        .http2_max_pending_accept_reset_streams(usize::try_from(MAX_STREAMS).ok())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
}
