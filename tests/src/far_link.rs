//! A TCP relay that models the link to a server that is far away: a round trip, a rate that all connections share, and a window
//! that bounds what one connection has in flight.
//!
//! ```text
//!  client ◄─ loopback ─► reads within the window ─► waits for its place on the link ─► waits for the delay ─► server
//! ```
//!
//! The relay ends the connection on either side, and holds what is under way itself. A connection begins with ten segments in
//! flight and doubles that in each round trip until its window is full, as TCP does without losses; nothing is lost, and a
//! connection that was idle keeps its window. Opening a connection takes one round trip.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, sleep_until};

/// Bytes that a new connection has in flight: ten segments of Ethernet.
const FIRST_WINDOW: usize = 14_600;
/// Maximum number of bytes that are read at once.
const CHUNK: usize = 64 << 10;

/// The properties of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkShape {
    /// The time from a request to the first byte of its answer.
    pub round_trip: Duration,
    /// Bytes per second in each direction, of all connections together.
    pub bytes_per_second: u64,
    /// Maximum number of bytes of one connection in flight: it transfers as many in each round trip.
    pub window: usize,
}

/// A relay to one server. Dropping it closes its connections.
#[derive(Debug)]
pub struct FarLink {
    address: SocketAddr,
    /// `Some` until it is dropped.
    runtime: Option<Runtime>,
}

/// One direction of the link.
#[derive(Debug)]
struct Direction {
    shape: LinkShape,
    /// The time at which everything that was sent has left.
    free: Mutex<Instant>,
}

// === impl FarLink ===

impl FarLink {
    /// Starts a relay to a server, in a thread of its own.
    ///
    /// # Errors
    /// If the thread or its socket cannot be made.
    pub fn start(upstream: SocketAddr, shape: LinkShape) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let entered = runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        let [up, down] = [(); 2].map(|()| {
            Arc::new(Direction {
                shape,
                free: Mutex::new(Instant::now()),
            })
        });
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let up = Arc::clone(&up);
                let down = Arc::clone(&down);
                tokio::spawn(async move {
                    // Both sides see the end of a connection that breaks.
                    let _ = relay(client, upstream, &up, &down).await;
                });
            }
        });
        drop(entered);
        Ok(Self {
            address,
            runtime: Some(runtime),
        })
    }

    /// The address that stands for the server.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for FarLink {
    /// Does not wait, as may not be done where futures are polled.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

// === impl Direction ===

impl Direction {
    /// Sends so many bytes. Returns the time at which the last of them arrives.
    fn send(&self, bytes: usize) -> Instant {
        let nanos = u64::try_from(bytes)
            .unwrap_or(u64::MAX)
            .saturating_mul(1_000_000_000)
            / self.shape.bytes_per_second.max(1);
        let mut free = self.free.lock();
        *free = Instant::now().max(*free) + Duration::from_nanos(nanos);
        *free + self.one_way()
    }

    fn one_way(&self) -> Duration {
        self.shape.round_trip / 2
    }
}

async fn relay(
    mut client: TcpStream,
    upstream: SocketAddr,
    up: &Direction,
    down: &Direction,
) -> io::Result<()> {
    sleep(up.shape.round_trip).await;
    let mut server = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::try_join!(
        carry(from_client, to_server, up),
        carry(from_server, to_client, down)
    )?;
    Ok(())
}

/// Carries what `from` has to `to`, until its end.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    link: &Direction,
) -> io::Result<()> {
    // Both queues hold no more than the window.
    let (send, mut sent) = mpsc::unbounded_channel::<(Vec<u8>, Instant)>();
    let (confirm, mut confirmed) = mpsc::unbounded_channel::<(usize, Instant)>();
    let window = Semaphore::new(FIRST_WINDOW.min(link.shape.window));
    let reading = async {
        loop {
            let Ok(first) = window.acquire().await else {
                return Ok::<(), io::Error>(());
            };
            first.forget();
            let more = window.available_permits().min(CHUNK - 1);
            let more = match window.try_acquire_many(u32::try_from(more).unwrap_or(0)) {
                Ok(permits) => {
                    permits.forget();
                    more
                }
                Err(_) => 0,
            };
            let mut piece = vec![0; 1 + more];
            let read = from.read(&mut piece).await?;
            window.add_permits(1 + more - read);
            if read == 0 {
                drop(send);
                return Ok(());
            }
            piece.truncate(read);
            let arrives = link.send(read);
            if send.send((piece, arrives)).is_err() {
                return Ok(());
            }
        }
    };
    let delivering = async {
        while let Some((piece, arrives)) = sent.recv().await {
            sleep_until(arrives).await;
            to.write_all(&piece).await?;
            // The reader may have ended.
            let _ = confirm.send((piece.len(), Instant::now() + link.one_way()));
        }
        drop(confirm);
        to.shutdown().await
    };
    let confirming = async {
        let mut now = FIRST_WINDOW.min(link.shape.window);
        while let Some((bytes, at)) = confirmed.recv().await {
            sleep_until(at).await;
            let growth = bytes.min(link.shape.window - now);
            now += growth;
            window.add_permits(bytes + growth);
        }
        Ok::<_, io::Error>(())
    };
    tokio::try_join!(reading, delivering, confirming)?;
    Ok(())
}
