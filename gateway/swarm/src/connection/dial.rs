//! Connects to a host with several addresses as the programs do that are written in Go, managers among them: the family of
//! the first address has a head start before the other one, and the addresses of a family have the time that is left in
//! equal parts. A single one that does not answer then hides no other.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// The head start of the family of the first address.
const HEAD_START: Duration = Duration::from_millis(300);

/// The least time that one address has, while there is any.
const LEAST: Duration = Duration::from_secs(2);

/// Connects to the first of these addresses that answers, at most so long. Cancel-safe.
///
/// # Errors
/// That of the first address, which it names; or `NotFound` if there is none.
pub(super) async fn connect<S, F>(
    addresses: &[SocketAddr],
    limit: Duration,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<S>
where
    F: Future<Output = io::Result<S>>,
{
    let Some(first) = addresses.first() else {
        let why = "the name has no address";
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    };
    let end = Instant::now() + limit;
    let (preferred, others): (Vec<SocketAddr>, Vec<SocketAddr>) = addresses
        .iter()
        .copied()
        .partition(|address: &SocketAddr| address.is_ipv4() == first.is_ipv4());
    let mut preferred = pin!(in_turn(&preferred, end, &connect));
    if others.is_empty() {
        return preferred.await;
    }
    let mut others = pin!(in_turn(&others, end, &connect));
    let early = tokio::select! {
        result = &mut preferred => Some(result),
        () = sleep(HEAD_START) => None,
    };
    match early {
        Some(Ok(stream)) => return Ok(stream),
        Some(Err(error)) => return others.await.map_err(|_| error),
        None => {}
    }
    tokio::select! {
        result = &mut preferred => match result {
            Ok(stream) => Ok(stream),
            Err(error) => others.await.map_err(|_| error),
        },
        result = &mut others => match result {
            Ok(stream) => Ok(stream),
            Err(_) => preferred.await,
        },
    }
}

/// Connects to one address after the other.
async fn in_turn<S, F>(
    addresses: &[SocketAddr],
    end: Instant,
    connect: &impl Fn(SocketAddr) -> F,
) -> io::Result<S>
where
    F: Future<Output = io::Result<S>>,
{
    let mut first_error = None;
    for (address, remaining) in addresses.iter().zip((1..=addresses.len()).rev()) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
        let part = (left / remaining).max(LEAST).min(left);
        let tried = timeout(part, connect(*address)).await;
        match tried.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                let named = io::Error::new(error.kind(), format!("{address}: {error}"));
                first_error.get_or_insert(named);
            }
        }
    }
    Err(first_error.unwrap_or_else(|| io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use parking_lot::Mutex;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    /// A port of an address says what it does: 1 answers, 2 refuses, all others are silent.
    async fn answer(address: SocketAddr) -> io::Result<SocketAddr> {
        match address.port() {
            1 => Ok(address),
            2 => Err(io::ErrorKind::ConnectionRefused.into()),
            _ => pending().await,
        }
    }

    /// The addresses, what is connected to, and when each is tried.
    type Case<'a> = (
        &'a [&'a str],
        Result<&'a str, &'a str>,
        &'a [(&'a str, u128)],
    );

    /// The address that was connected to, or the error, and when each address was tried, in milliseconds. The clock stands
    /// still while anything else can happen.
    async fn dial(addresses: &[&str]) -> (Result<String, String>, Vec<(String, u128)>) {
        let addresses: Vec<SocketAddr> = addresses
            .iter()
            .map(|address| address.parse().unwrap())
            .collect();
        let begin = Instant::now();
        let tried = Mutex::new(Vec::new());
        let connected = connect(&addresses, LIMIT, |address| {
            // Timers are as fine as a millisecond.
            let at = (begin.elapsed().as_millis() + 50) / 100 * 100;
            tried.lock().push((address.to_string(), at));
            answer(address)
        });
        let connected = connected.await;
        let connected = connected
            .map(|address| address.to_string())
            .map_err(|error| error.to_string());
        (connected, tried.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn address_that_does_not_answer_hides_no_other() {
        let cases: &[Case<'_>] = &[
            // One of IPv6 is a black hole, the one of IPv4 answers.
            (
                &["[fd00::1]:9", "10.0.0.1:1"],
                Ok("10.0.0.1:1"),
                &[("[fd00::1]:9", 0), ("10.0.0.1:1", 300)],
            ),
            (
                &["10.0.0.1:9", "[fd00::1]:1"],
                Ok("[fd00::1]:1"),
                &[("10.0.0.1:9", 0), ("[fd00::1]:1", 300)],
            ),
            // A name with a dead member.
            (
                &["10.0.0.1:9", "10.0.0.2:1"],
                Ok("10.0.0.2:1"),
                &[("10.0.0.1:9", 0), ("10.0.0.2:1", 2500)],
            ),
            (
                &["10.0.0.1:9", "10.0.0.2:9", "10.0.0.3:1"],
                Ok("10.0.0.3:1"),
                &[
                    ("10.0.0.1:9", 0),
                    ("10.0.0.2:9", 2000),
                    ("10.0.0.3:1", 4000),
                ],
            ),
            // A refusal needs no waiting.
            (
                &["[fd00::1]:2", "10.0.0.1:1"],
                Ok("10.0.0.1:1"),
                &[("[fd00::1]:2", 0), ("10.0.0.1:1", 0)],
            ),
            (
                &["[fd00::1]:9", "10.0.0.1:2", "10.0.0.2:1"],
                Ok("10.0.0.2:1"),
                &[("[fd00::1]:9", 0), ("10.0.0.1:2", 300), ("10.0.0.2:1", 300)],
            ),
            (
                &["10.0.0.1:1", "[fd00::1]:1"],
                Ok("10.0.0.1:1"),
                &[("10.0.0.1:1", 0)],
            ),
            (
                &["10.0.0.1:2", "[fd00::1]:2"],
                Err("10.0.0.1:2: connection refused"),
                &[("10.0.0.1:2", 0), ("[fd00::1]:2", 0)],
            ),
            (
                &["10.0.0.1:9"],
                Err("10.0.0.1:9: timed out"),
                &[("10.0.0.1:9", 0)],
            ),
            (&[], Err("the name has no address"), &[]),
        ];
        for (addresses, expected, tried) in cases {
            let (connected, found) = dial(addresses).await;
            let connected = connected.as_ref().map(String::as_str);
            assert_eq!(
                connected.map_err(String::as_str),
                *expected,
                "{addresses:?}"
            );
            let found: Vec<(&str, u128)> = found
                .iter()
                .map(|(address, at)| (address.as_str(), *at))
                .collect();
            assert_eq!(found, *tried, "{addresses:?}");
        }
    }
}
