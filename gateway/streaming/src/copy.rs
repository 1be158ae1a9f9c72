//! Copies bytes between a stream and a process or a dialled connection.

use std::future::ready;
use std::io;
use std::pin::pin;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::buffers::Buffers;
use crate::channel::{Inbound, Outbound};
use crate::ends::{Input, Output, Source};
use crate::gone::Gone;

/// The first and the largest size of reads from an output: it grows for outputs that fill it.
const READ: (usize, usize) = (8 * 1024, 128 * 1024);

/// The capacity of a pipe whose bytes are sent to a client.
const PIPE: usize = 256 * 1024;

/// Reason why copying stopped before the end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error(transparent)]
    Gone(#[from] Gone),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Copies an output to the client until its end; once `cut` has returned, only what can be read at once, and
/// at most the capacity of a pipe, because a process may continue to write. The stream is not ended.
pub(crate) async fn outward(
    mut output: Output,
    outbound: &mut Outbound,
    cut: impl Future<Output = ()>,
) -> Result<(), CopyError> {
    if let Source::Pipe(pipe) = &output.0 {
        // Saves switches between the writer and this process. If the kernel refuses, only speed is lost.
        let _as_it_is = rustix::pipe::fcntl_setpipe_size(pipe, PIPE);
    }
    let mut cut = pin!(cut);
    let mut buffer = BytesMut::new();
    let mut buffers = Buffers::default();
    let mut size = READ.0;
    let mut left_after_cut = None;
    while left_after_cut != Some(0) {
        buffers.make_room(&mut buffer, size / 2, size);
        let room = buffer.capacity();
        let read = async {
            match &mut output.0 {
                Source::Pipe(pipe) => pipe.read_buf(&mut buffer).await,
                Source::Reader(reader) => reader.read_buf(&mut buffer).await,
            }
        };
        let read = tokio::select! {
            biased;
            () = &mut cut, if left_after_cut.is_none() => {
                left_after_cut = Some(PIPE);
                continue;
            }
            read = read => read?,
            () = ready(()), if left_after_cut.is_some() => return Ok(()),
        };
        if read == 0 {
            return Ok(());
        }
        left_after_cut = left_after_cut.map(|left| left.saturating_sub(read));
        if read == room {
            size = (size * 2).min(READ.1);
        }
        outbound.send(buffer.split().freeze()).await?;
    }
    Ok(())
}

/// Copies a stream to an input, and ends the input when the client ends the stream.
pub(crate) async fn inward(inbound: &mut Inbound, input: &mut Input) -> Result<(), CopyError> {
    while let Some(piece) = inbound.next().await? {
        // The client may send more during the write: the piece keeps its share of the memory budget.
        inbound.consumed(piece.bytes.len()).await;
        input.0.write_all(&piece.bytes).await?;
        input.0.flush().await?;
    }
    input.0.shutdown().await?;
    Ok(())
}

/// Sends a text.
pub(crate) async fn text(outbound: &mut Outbound, text: String) {
    let _gone = outbound.send(Bytes::from(text)).await;
}
