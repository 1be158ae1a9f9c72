//! A connection whose client asks for more and more answers, which are written before all else.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, split};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{BATCH, Incoming, frame, serve};
use crate::io::Io;
use crate::parts::ENDING;

const SECOND: Duration = Duration::from_secs(1);

/// Serves a client that asks for so many answers each second, and reads at most [`BATCH`]. Returns how long it has got some.
async fn answered<F>(
    pings: usize,
    end: CancellationToken,
    session: impl FnOnce(mpsc::Receiver<Incoming>) -> F,
) -> Duration
where
    F: Future<Output = ()>,
{
    let (io, theirs, _peer) = Io::in_memory(256);
    let (mut receiver, mut sender) = split(theirs);
    let begun = Instant::now();
    let mut last = begun;
    let ask = async {
        let pings = frame::ping(1).repeat(pings);
        while sender.write_all(&pings).await.is_ok() {
            sleep(SECOND).await;
        }
        std::future::pending::<()>().await;
    };
    let take = async {
        let mut answers = vec![0; BATCH * frame::ping(1).len()];
        while receiver.read(&mut answers).await.is_ok_and(|read| read > 0) {
            last = Instant::now();
            sleep(SECOND).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = timeout(600 * SECOND, serve(io, end, session)) => ended.expect("the connection ends"),
        () = ask => {}
        () = take => {}
    }
    last - begun
}

#[tokio::test(start_paused = true)]
async fn connection_ends_with_its_session_while_the_client_asks_for_more_answers() {
    answered(2 * BATCH, CancellationToken::new(), async |_incoming| {
        sleep(10 * SECOND).await
    })
    .await;
    let end = CancellationToken::new();
    let session = async |_incoming| {
        sleep(10 * SECOND).await;
        end.cancel();
    };
    answered(2 * BATCH, end.clone(), session).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_any_more_while_the_end_of_the_session_takes_long() {
    let end = CancellationToken::new();
    let session = async |_incoming| {
        end.cancel();
        sleep(10 * ENDING).await;
    };
    let answered = answered(1, end.clone(), session).await;
    assert!(answered < 2 * ENDING, "{answered:?}");
}
