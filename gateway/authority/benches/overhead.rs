//! The overhead of the filter: `cargo bench -p switchyard-authority`. The same bytes are read from memory
//! with and without the filter; the results are a ratio, and the additional time for each call.
//!
//! A client whose `:authority` is a host name has overhead for its first request only. For a client that
//! sends a path, blocks are parsed and its bytes are copied once more.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark stops at what fails, and prints"
)]

use std::time::{Duration, Instant};

use switchyard_authority::AuthorityFilter;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Number of reads of each connection; the fastest counts.
const ROUNDS: usize = 30;

/// A client that makes 10,000 calls with a small request, as a kubelet does, or one call of 64 MiB.
fn connection(authority: &str, calls: usize, data: usize) -> Vec<u8> {
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let len = u8::try_from(authority.len()).unwrap();
    let block = [&[0x83, 0x86, 0x84, 0x01, len], authority.as_bytes()].concat();
    let mut frame = |kind: u8, flags: u8, payload: &[u8]| {
        let [.., a, b, c] = payload.len().to_be_bytes();
        sent.extend_from_slice(&[a, b, c, kind, flags, 0, 0, 0, 1]);
        sent.extend_from_slice(payload);
    };
    for _ in 0..calls {
        frame(1, 4, &block);
        for _ in 0..data.div_ceil(16 << 10) {
            frame(0, 0, &vec![7; data.min(16 << 10)]);
        }
    }
    sent
}

async fn drain(mut stream: impl AsyncRead + Unpin) -> usize {
    let mut buf = vec![0; 16 << 10];
    let mut total = 0;
    loop {
        match stream.read(&mut buf).await.unwrap() {
            0 => return total,
            n => total += n,
        }
    }
}

fn quickest(mut read: impl FnMut() -> usize, expected: usize) -> Duration {
    (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            assert_eq!(read(), expected);
            began.elapsed()
        })
        .min()
        .unwrap()
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    for (what, calls, data) in [
        ("10,000 calls of 100 bytes", 10_000, 100),
        ("one call of 64 MiB", 1, 64 << 20),
    ] {
        for authority in ["localhost", "run%2Fswitchyard%2Fcri.sock"] {
            let sent = connection(authority, calls, data);
            let bare = quickest(|| runtime.block_on(drain(&*sent)), sent.len());
            let filtered = quickest(
                || runtime.block_on(drain(AuthorityFilter::new(&*sent))),
                sent.len(),
            );
            let ratio = filtered.as_secs_f64() / bare.as_secs_f64();
            let added = filtered.saturating_sub(bare) / u32::try_from(calls).unwrap();
            println!("{what}, {authority}: {ratio:.3} times; {added:?} more for each call");
        }
    }
}
