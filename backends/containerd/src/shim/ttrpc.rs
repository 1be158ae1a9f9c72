//! A client of ttrpc, the protocol of shims: one call at a time over a connection of its own.
//!
//! A frame is a head of ten bytes (length of what follows, number of the call, kind, flags) and a message. A call is one frame there and
//! one back. More than one call at a time is not needed here: connections are cheap, and nothing has to be kept apart then.

use std::io;

use prost::Message;
use switchyard_proto::ttrpc::{KeyValue, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tonic::{Code, Status};

/// Before each message.
pub(crate) const HEADER_LEN: usize = 10;
/// The largest message that either side takes.
pub(crate) const MAX_MESSAGE: usize = 4 << 20;
/// The kind of a frame that asks.
const KIND_REQUEST: u8 = 1;
/// The kind of a frame that answers.
const KIND_RESPONSE: u8 = 2;

/// Why a call has no answer.
#[derive(Debug)]
pub(super) enum Fault {
    /// The other end says so.
    Refused(Status),
    /// The connection is of no use any more; whether the call was heard is not known.
    Lost(io::Error),
}

/// A connection. After a call that failed with [`Fault::Lost`] it must not be used again.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: UnixStream,
    namespace: String,
    /// What has come of the next answer.
    received: Vec<u8>,
    /// The number of the latest call; those of clients are odd.
    last_stream_id: u32,
}

impl Connection {
    /// Calls over `stream` are about this containerd namespace.
    pub(super) fn new(stream: UnixStream, namespace: &str) -> Self {
        Self { stream, namespace: namespace.to_owned(), received: Vec::new(), last_stream_id: 0 }
    }

    /// Asks and waits for the answer. Not cancel-safe: the connection must not be used again then.
    ///
    /// # Errors
    /// [`Fault`].
    pub(super) async fn call<T: Message + Default>(
        &mut self,
        service: &str,
        method: &str,
        payload: &impl Message,
    ) -> Result<T, Fault> {
        self.send_request(service, method, payload).await?;
        self.read_response().await
    }

    /// Asks. The answer, which must be taken before the next call, is [`Connection::answer`]. Not cancel-safe.
    ///
    /// # Errors
    /// [`Fault::Lost`].
    pub(super) async fn send_request(
        &mut self,
        service: &str,
        method: &str,
        payload: &impl Message,
    ) -> Result<(), Fault> {
        self.last_stream_id = if self.last_stream_id == 0 { 1 } else { self.last_stream_id.wrapping_add(2) };
        let request = Request {
            service: service.to_owned(),
            method: method.to_owned(),
            payload: payload.encode_to_vec(),
            // A limit there would break the work off; limits are set here.
            timeout_nano: 0,
            metadata: vec![KeyValue {
                key: "containerd-namespace-ttrpc".to_owned(),
                value: self.namespace.clone(),
            }],
        };
        let frame =
            frame(self.last_stream_id, KIND_REQUEST, &request.encode_to_vec()).map_err(Fault::Lost)?;
        self.stream.write_all(&frame).await.map_err(Fault::Lost)
    }

    /// The answer to the latest call. Cancel-safe.
    ///
    /// # Errors
    /// [`Fault`].
    pub(super) async fn read_response<T: Message + Default>(&mut self) -> Result<T, Fault> {
        let response = self.receive().await.map_err(Fault::Lost)?;
        if let Some(status) = response.status.filter(|status| status.code != 0) {
            return Err(Fault::Refused(Status::new(Code::from_i32(status.code), status.message)));
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

/// The answer to call `latest`, if all of it has come; it is taken away then. Looked at after each piece, `received` never holds more than
/// one frame and a piece.
pub(crate) fn take_response(received: &mut Vec<u8>, latest: u32) -> io::Result<Option<Response>> {
    let Some(([a, b, c, d, e, f, g, h, kind, _flags], rest)) = received.split_first_chunk::<HEADER_LEN>()
    else {
        return Ok(None);
    };
    let length = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).unwrap_or(usize::MAX);
    let call = u32::from_be_bytes([*e, *f, *g, *h]);
    if *kind != KIND_RESPONSE || call != latest || length > MAX_MESSAGE {
        return Err(invalid(format!(
            "a frame of kind {kind} for call {call} with {length} bytes is no answer to call {latest}"
        )));
    }
    let Some(message) = rest.get(..length) else { return Ok(None) };
    let response = Response::decode(message).map_err(invalid)?;
    received.drain(..HEADER_LEN + length);
    Ok(Some(response))
}

fn frame(call: u32, kind: u8, message: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(message.len()).ok().filter(|_| message.len() <= MAX_MESSAGE);
    let length = length.ok_or_else(|| invalid(format!("{} bytes are too many", message.len())))?;
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
