//! How messages of the services are put on the wire: as tonic does, with less memory for each call that is open.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// What a call begins with in each direction; it grows with its messages, most of which fit. tonic has 8 KiB, and a call that follows a task or
/// events has them for as long as those last.
const BUFFER: usize = 1024;
/// How much is gathered of a stream before it is sent, as in tonic.
const SENT_AT_ONCE: usize = 32 * 1024;

/// Encodes `T` and decodes `U`.
#[derive(Debug, Clone)]
pub struct LeanCodec<T, U> {
    messages: PhantomData<(T, U)>,
}

// === impl LeanCodec ===

impl<T, U> Default for LeanCodec<T, U> {
    fn default() -> Self {
        Self { messages: PhantomData }
    }
}

impl<T: Message + 'static, U: Message + Default + 'static> Codec for LeanCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER, SENT_AT_ONCE))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER, SENT_AT_ONCE))
    }
}
