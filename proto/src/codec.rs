//! Wire codec of the services' messages: tonic's encoding, with less memory for each open call. Received
//! messages are [counted](crate::shape) before they are decoded.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::Buf as _;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

use crate::shape::{self, Shaped};

/// Initial buffer of a call in each direction; it grows with its messages, most of which fit. tonic's has 8
/// KiB, which a call that follows a task or events would occupy for as long as it lasts.
const BUFFER: usize = 1024;
/// Bytes of a stream that are gathered before they are sent, as in tonic.
const SENT_AT_ONCE: usize = 32 * 1024;

/// Encodes `T` and decodes `U`.
#[derive(Debug, Clone)]
pub struct LeanCodec<T, U> {
    messages: PhantomData<(T, U)>,
}

/// Decodes messages that take bounded memory.
#[derive(Debug)]
pub struct CountingDecoder<U>(ProstDecoder<U>);

// === impl LeanCodec ===

impl<T, U> Default for LeanCodec<T, U> {
    fn default() -> Self {
        Self {
            messages: PhantomData,
        }
    }
}

impl<T: Message + 'static, U: Message + Default + Shaped + 'static> Codec for LeanCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = CountingDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER, SENT_AT_ONCE))
    }

    fn decoder(&mut self) -> Self::Decoder {
        CountingDecoder(ProstCodec::<T, U>::raw_decoder(BufferSettings::new(
            BUFFER,
            SENT_AT_ONCE,
        )))
    }
}

// === impl CountingDecoder ===

impl<U: Message + Default + Shaped> Decoder for CountingDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let message = buf.chunk();
        debug_assert_eq!(
            message.len(),
            buf.remaining(),
            "tonic gathers a message in one piece"
        );
        // As tonic answers a message that has too many bytes.
        shape::check::<U>(message).map_err(|error| Status::out_of_range(error.to_string()))?;
        self.0.decode(buf)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}
