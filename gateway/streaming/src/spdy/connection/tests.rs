//! A connection whose client asks for more and more answers.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{BATCH, frame, serve};
use crate::io::{Activity, Io, Probe};

const SECOND: Duration = Duration::from_secs(1);

/// A client can keep the writer busy with answers to its pings, which are written before all else.
#[tokio::test(start_paused = true)]
async fn connection_ends_with_its_session_while_the_client_asks_for_more_answers() {
    let (ours, theirs) = duplex(256);
    let (reader, writer) = split(ours);
    let (socket, _peer) = UnixStream::pair().expect("sockets can be made");
    let io = Io {
        reader: Box::new(reader),
        writer: Box::new(writer),
        read_ahead: BytesMut::new(),
        probe: Probe::of(&socket).expect("a descriptor is left"),
        activity: Arc::new(Activity::new()),
    };
    let end = CancellationToken::new();
    let (mut receiver, mut sender) = split(theirs);
    let ask = async {
        let pings = frame::ping(1).repeat(2 * BATCH);
        while sender.write_all(&pings).await.is_ok() {
            sleep(SECOND).await;
        }
        std::future::pending::<()>().await;
    };
    let take = async {
        let mut answers = vec![0; BATCH * frame::ping(1).len()];
        while receiver.read_exact(&mut answers).await.is_ok() {
            sleep(SECOND).await;
        }
        std::future::pending::<()>().await;
    };
    let served = async {
        sleep(10 * SECOND).await;
        end.cancel();
        std::future::pending::<()>().await;
    };
    let session = serve(io, end.clone(), async |_incoming| end.cancelled().await);
    let session = timeout(600 * SECOND, session);
    tokio::select! {
        ended = session => ended.expect("the connection ends"),
        () = ask => {}
        () = take => {}
        () = served => {}
    }
}
