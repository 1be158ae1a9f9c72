//! A client of ttrpc, the protocol of shims: one call at a time over a connection.
//!
//! A frame is a header of ten bytes (message length, stream id, type, flags) and a message. A call is one
//! request frame and one response frame. Concurrent calls over one connection are not needed: connections are
//! cheap, and this avoids dispatching responses.

use std::io;
use std::time::Duration;

use prost::Message;
use switchyard_proto::ttrpc::{KeyValue, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tonic::{Code, Status};

/// The length of a frame's header, in bytes.
pub(crate) const HEADER_LEN: usize = 10;
/// The largest message that either side accepts, in bytes.
pub(crate) const MAX_MESSAGE: usize = 4 << 20;
/// The message type of a request frame.
const KIND_REQUEST: u8 = 1;
/// The message type of a response frame.
const KIND_RESPONSE: u8 = 2;

/// The reason why a call failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The server answered with an error status.
    Refused(Status),
    /// The connection is broken and must not be used again; whether the server received the call is not
    /// known.
    Lost(io::Error),
}

impl Fault {
    /// The status of the call, for metrics.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Refused(status) => status.code(),
            Self::Lost(_) => Code::Unavailable,
        }
    }
}

/// A connection. After a call that failed with [`Fault::Lost`] it must not be used again.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: UnixStream,
    namespace: String,
    /// The bytes received so far of the next response.
    received: Vec<u8>,
    /// The stream id of the latest call; clients use odd ids. 0 before the first.
    last_stream_id: u32,
}

impl Connection {
    /// A connection over `stream`; its calls are in this containerd namespace.
    pub(crate) fn new(stream: UnixStream, namespace: &str) -> Self {
        Self {
            stream,
            namespace: namespace.to_owned(),
            received: Vec::new(),
            last_stream_id: 0,
        }
    }

    /// Sends a request with this metadata beside the namespace. Its response must be read with [`Connection::read_response`] before the next request.
    /// The server breaks off its work after `timeout`: only for work that may be broken off anywhere, as other timeouts are applied on this side.
    /// Not cancel-safe.
    ///
    /// # Errors
    /// [`Fault::Lost`].
    pub(crate) async fn send_request(
        &mut self,
        service: &str,
        method: &str,
        payload: &impl Message,
        metadata: Vec<(&'static str, String)>,
        timeout: Option<Duration>,
    ) -> Result<(), Fault> {
        self.last_stream_id = if self.last_stream_id == 0 {
            1
        } else {
            self.last_stream_id.wrapping_add(2)
        };
        let request = Request {
            service: service.to_owned(),
            method: method.to_owned(),
            payload: payload.encode_to_vec(),
            // Zero is no timeout.
            timeout_nano: timeout.map_or(0, |timeout| {
                i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX)
            }),
            metadata: std::iter::once(("containerd-namespace-ttrpc", self.namespace.clone()))
                .chain(metadata)
                .map(|(key, value)| KeyValue {
                    key: key.to_owned(),
                    value,
                })
                .collect(),
        };
        let frame = frame(self.last_stream_id, KIND_REQUEST, &request.encode_to_vec())
            .map_err(Fault::Lost)?;
        self.stream.write_all(&frame).await.map_err(Fault::Lost)
    }

    /// The response to the latest request. Cancel-safe.
    ///
    /// # Errors
    /// [`Fault`].
    pub(crate) async fn read_response<T: Message + Default>(&mut self) -> Result<T, Fault> {
        let response = self.receive().await.map_err(Fault::Lost)?;
        if let Some(status) = response.status.filter(|status| status.code != 0) {
            return Err(Fault::Refused(Status::new(
                Code::from_i32(status.code),
                status.message,
            )));
        }
        T::decode(&*response.payload).map_err(|fault| Fault::Lost(invalid(fault)))
    }

    async fn receive(&mut self) -> io::Result<Response> {
        loop {
            if let Some(response) = take_response(&mut self.received, self.last_stream_id)? {
                return Ok(response);
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Removes the response to the request `latest` from `received`; `None` until it is complete. Called after
/// each read, so `received` never holds more than one frame and one read.
///
/// # Errors
/// `InvalidData` for a frame that is not a response to that request, or is too large.
pub(crate) fn take_response(received: &mut Vec<u8>, latest: u32) -> io::Result<Option<Response>> {
    let Some(([a, b, c, d, e, f, g, h, kind, _flags], rest)) =
        received.split_first_chunk::<HEADER_LEN>()
    else {
        return Ok(None);
    };
    let length = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).unwrap_or(usize::MAX);
    let call = u32::from_be_bytes([*e, *f, *g, *h]);
    if *kind != KIND_RESPONSE || call != latest || length > MAX_MESSAGE {
        return Err(invalid(format!(
            "a frame of type {kind} for stream {call} with {length} bytes is not a response on stream {latest}"
        )));
    }
    let Some(message) = rest.get(..length) else {
        return Ok(None);
    };
    let response = Response::decode(message).map_err(invalid)?;
    received.drain(..HEADER_LEN + length);
    Ok(Some(response))
}

fn frame(call: u32, kind: u8, message: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(message.len())
        .ok()
        .filter(|_| message.len() <= MAX_MESSAGE);
    let length = length.ok_or_else(|| {
        invalid(format!(
            "a message of {} bytes exceeds the limit of {MAX_MESSAGE}",
            message.len()
        ))
    })?;
    let mut frame = Vec::with_capacity(HEADER_LEN + message.len());
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&call.to_be_bytes());
    frame.extend_from_slice(&[kind, 0]);
    frame.extend_from_slice(message);
    Ok(frame)
}

fn invalid(fault: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault)
}

#[cfg(test)]
mod tests;
