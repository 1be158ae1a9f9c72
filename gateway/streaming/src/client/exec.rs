//! Runs a complete exec or attach over SPDY, as kubectl does.

use std::collections::HashMap;
use std::io;

use url::Url;

use super::spdy::{ClientEvent, Spdy};
use crate::session::Streams;

/// The output of a session until its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// All of the standard output.
    pub stdout: Vec<u8>,
    /// All of the standard error.
    pub stderr: Vec<u8>,
    /// The content of the error stream.
    pub status: String,
    /// The streams that the server has ended, in order: `stdout`, `stderr`, `error` and so on.
    pub order: Vec<&'static str>,
}

/// Opens a URL with one protocol, sends `stdin` and its end, and reads until the server closes.
///
/// # Errors
///
/// Those of the connection, and a refused request.
pub async fn exec(url: &Url, protocol: &str, streams: Streams, stdin: &[u8]) -> io::Result<Ended> {
    let spdy = Spdy::open(url, &[protocol]).await?;
    let Spdy {
        mut sender,
        mut receiver,
    } = spdy.map_err(|refused| io::Error::other(refused.head))?;
    let resizes = streams.tty && !["channel.k8s.io", "v2.channel.k8s.io"].contains(&protocol);
    let wanted = [
        ("error", true),
        ("stdin", streams.stdin),
        ("stdout", streams.stdout),
        ("stderr", streams.stderr),
        ("resize", resizes),
    ];
    let mut names = HashMap::new();
    for (name, _) in wanted.into_iter().filter(|(_, wanted)| *wanted) {
        names.insert(sender.open(&[("streamtype", name)]).await?, name);
    }
    let input = names
        .iter()
        .find(|(_, name)| **name == "stdin")
        .map(|(stream, _)| *stream);
    let send = async {
        if let Some(stream) = input {
            for piece in stdin.chunks(32 * 1024) {
                sender.data(stream, piece, false).await?;
            }
            sender.data(stream, &[], true).await?;
        }
        io::Result::Ok(())
    };
    let receive = async {
        let mut ended = Ended::default();
        while let Some(event) = receiver.event().await? {
            let ClientEvent::Data { stream, bytes, end } = event else {
                continue;
            };
            let name = names.get(&stream).copied().unwrap_or("unknown");
            match name {
                "stdout" => ended.stdout.extend_from_slice(&bytes),
                "stderr" => ended.stderr.extend_from_slice(&bytes),
                "error" => ended.status.push_str(&String::from_utf8_lossy(&bytes)),
                _ => {}
            }
            if end {
                ended.order.push(name);
            }
        }
        io::Result::Ok(ended)
    };
    // Input that the process has not read may be refused at its end.
    let (_sent, ended) = tokio::join!(send, receive);
    ended
}
