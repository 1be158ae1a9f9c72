//! SPDY/3.1, the server's side: frames, header compression, streams with flow control, and the connection
//! over them.

mod connection;
mod dictionary;
mod flow;
pub(crate) mod frame;
pub(crate) mod header;
mod table;

pub(crate) use connection::{Incoming, MAX_STREAMS, serve};
pub(crate) use flow::Flow;
