//! Connections that end, whatever their clients, sessions and ports do.

use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::ends::Connection;
use crate::parts::{ENDING, LINGER};
use crate::session::Refusal;

const SECOND: Duration = Duration::from_secs(1);

/// Ports that never answer.
struct Silent;

#[async_trait]
impl Dial for Silent {
    async fn dial(&self, _: u16) -> Result<Connection, Refusal> {
        std::future::pending().await
    }
}

fn no_inputs() -> Wanted {
    Wanted {
        inputs: Vec::new(),
        closes: false,
    }
}

#[tokio::test(start_paused = true)]
async fn connection_ends_although_its_session_goes_on_sending() {
    let (io, mut client, _peer) = Io::in_memory(4096);
    let end = CancellationToken::new();
    let session = async |channels: Channels| {
        end.cancel();
        let mut output = channels.outbound(STDOUT);
        while output.send(Bytes::from_static(b"more")).await.is_ok() {
            sleep(SECOND).await;
        }
    };
    let mut received = [0; 4096];
    let take = async {
        while client.read(&mut received).await.is_ok_and(|read| read > 0) {}
        std::future::pending::<()>().await;
    };
    let served = timeout(
        ENDING + LINGER + 5 * SECOND,
        serve(io, no_inputs(), end.clone(), session),
    );
    tokio::select! {
        ended = served => ended.expect("it ends"),
        () = take => {}
    }
}

/// The library's answers to pings are written before the messages of the session.
#[tokio::test(start_paused = true)]
async fn connection_that_is_to_end_does_so_while_the_client_asks_for_more_answers() {
    let (io, client, _peer) = Io::in_memory(256);
    let (mut receiver, mut sender) = split(client);
    let end = CancellationToken::new();
    let session = async |channels: Channels| {
        sleep(10 * SECOND).await;
        end.cancel();
        channels.send(STDOUT, Bytes::from_static(b"last")).await;
    };
    let ask = async {
        // Pings without content, masked with zeros.
        let pings = [0x89, 0x80, 0, 0, 0, 0].repeat(256);
        while sender.write_all(&pings).await.is_ok() {
            sleep(SECOND).await;
        }
        std::future::pending::<()>().await;
    };
    let take = async {
        let mut answers = [0; 128];
        while receiver.read_exact(&mut answers).await.is_ok() {
            sleep(SECOND).await;
        }
        std::future::pending::<()>().await;
    };
    let limit = 10 * SECOND + ENDING + LINGER + SECOND;
    tokio::select! {
        ended = timeout(limit, serve(io, no_inputs(), end.clone(), session)) => ended.expect("it ends"),
        () = ask => {}
        () = take => {}
    }
}

#[tokio::test(start_paused = true)]
async fn forwards_to_ports_that_do_not_answer_end_with_their_session() {
    let (io, _client, _peer) = Io::in_memory(4096);
    let end = CancellationToken::new();
    end.cancel();
    let served = timeout(LINGER + SECOND, port_forward(io, &[80, 81], &Silent, end));
    served.await.expect("it does not wait for the ports");
}
