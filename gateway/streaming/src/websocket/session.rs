//! Exec, attach and port-forward on the channels of a WebSocket.

use bytes::Bytes;
use futures::future::join_all;
use tokio_util::sync::CancellationToken;

use super::channels::{Channels, Wanted, serve};
use crate::io::Io;
use crate::port_forward::{Pair, forward};
use crate::remote_command::{self, Version};
use crate::session::{Command, Dial, Streams};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;

/// Serves an exec or attach.
pub(crate) async fn remote_command(
    io: Io,
    streams: Streams,
    version: Version,
    command: Box<dyn Command>,
    end: CancellationToken,
) {
    let inputs = [
        streams.stdin.then_some(STDIN),
        streams.tty.then_some(RESIZE),
    ];
    let wanted = Wanted {
        inputs: inputs.into_iter().flatten().collect(),
        closes: version >= Version(5),
    };
    let session = async |mut channels: Channels| {
        // An empty message shows the client that the session is open.
        let first = match streams {
            Streams { stdout: true, .. } => STDOUT,
            Streams { stderr: true, .. } => STDERR,
            Streams { .. } => ERROR,
        };
        channels.send(first, Bytes::new()).await;
        let channels = remote_command::CommandStreams {
            error: channels.outbound(ERROR),
            stdin: channels.inbound(STDIN),
            stdout: streams.stdout.then(|| channels.outbound(STDOUT)),
            stderr: streams.stderr.then(|| channels.outbound(STDERR)),
            resize: channels.inbound(RESIZE),
            idle: Vec::new(),
        };
        remote_command::run(channels, command, version.form(), &end).await;
    };
    serve(io, wanted, end.clone(), session).await;
}

/// Serves forwarded ports: each has a channel for data and one for errors, and both begin with the port
/// number.
pub(crate) async fn port_forward(io: Io, ports: &[u16], dial: &dyn Dial, end: CancellationToken) {
    let data = |at: usize| {
        u8::try_from(2 * at).expect("the request was refused if it had more than 127 ports")
    };
    let wanted = Wanted {
        inputs: (0..ports.len()).map(data).collect(),
        closes: false,
    };
    let session = async |mut channels: Channels| {
        let mut forwards = Vec::new();
        for (at, port) in ports.iter().copied().enumerate() {
            let error = data(at) + 1;
            let data = data(at);
            for channel in [data, error] {
                channels
                    .send(channel, Bytes::copy_from_slice(&port.to_le_bytes()))
                    .await;
            }
            if let Some(inbound) = channels.inbound(data) {
                let outbound = channels.outbound(data);
                let error = channels.outbound(error);
                forwards.push(forward(
                    Pair {
                        port,
                        error,
                        inbound,
                        outbound,
                    },
                    dial,
                ));
            }
        }
        join_all(forwards).await;
    };
    let session = async |channels| {
        tokio::select! {
            () = session(channels) => {}
            () = end.cancelled() => {}
        }
    };
    serve(io, wanted, end.clone(), session).await;
}

#[cfg(test)]
mod tests;
