//! Answers a call before its client stops waiting for it.
//!
//! tonic drops a handler when the time in `grpc-timeout` is over, and answers `Cancelled`. CRI clients expect
//! `DeadlineExceeded`, so the same timeout is applied here, slightly shorter.

use std::future::Future;
use std::time::Duration;

use switchyard_core::{Error, Result};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::status::status;

/// The result of a tonic handler.
pub(crate) type RpcResult<T> = Result<Response<T>, Status>;

/// Lead of the timeout over tonic's: more than the granularity of tokio's timers.
const HEAD_START: Duration = Duration::from_millis(2);

/// Runs `work` on the message of `request` for as long as its client waits. Work that exceeds the timeout is
/// dropped, and the answer is `DeadlineExceeded`.
pub(crate) async fn with_deadline<Q, T, F>(
    request: Request<Q>,
    work: impl FnOnce(Q) -> F,
) -> RpcResult<T>
where
    F: Future<Output = Result<T>>,
{
    let limit = client_timeout(request.metadata());
    let work = work(request.into_inner());
    let result = match limit {
        None => work.await,
        Some(limit) => tokio::time::timeout(limit.saturating_sub(HEAD_START), work)
            .await
            .unwrap_or_else(|_| {
                Err(Error::deadline(format!(
                    "the call did not end within its client's timeout of {limit:?}"
                )))
            }),
    };
    result.map(Response::new).map_err(|error| status(&error))
}

/// The client's timeout of a call: at most eight digits and a unit (gRPC over HTTP/2). A malformed one counts
/// as none, as in tonic.
fn client_timeout(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &'static str, expected: Option<Duration>) {
        let mut metadata = MetadataMap::new();
        metadata.insert(
            "grpc-timeout",
            tonic::metadata::MetadataValue::from_static(text),
        );
        assert_eq!(client_timeout(&metadata), expected, "{text}");
    }

    #[test]
    fn grpc_timeout_is_digits_and_a_unit() {
        check("1H", Some(Duration::from_secs(3600)));
        check("2M", Some(Duration::from_secs(120)));
        check("99999999S", Some(Duration::from_secs(99_999_999)));
        check("999m", Some(Duration::from_millis(999)));
        check("5u", Some(Duration::from_micros(5)));
        check("7n", Some(Duration::from_nanos(7)));
        check("S", None);
        check("", None);
        check("1", None);
        check("-1S", None);
        check("123456789S", None);
        check("1s", None);
    }

    #[tokio::test(start_paused = true)]
    async fn work_past_its_deadline_fails_with_deadline_exceeded() {
        let mut request = Request::new(());
        request.set_timeout(Duration::from_millis(50));
        let ended: RpcResult<()> = with_deadline(request, |()| std::future::pending()).await;
        assert_eq!(
            ended.expect_err("it never ends").code(),
            tonic::Code::DeadlineExceeded
        );
    }

    #[tokio::test(start_paused = true)]
    async fn immediate_work_succeeds_with_the_shortest_deadline() {
        let mut request = Request::new(3);
        request.set_timeout(Duration::from_nanos(1));
        let ended = with_deadline(request, |n| async move { Ok(n + 1) }).await;
        assert_eq!(ended.expect("it is done").into_inner(), 4);
    }
}
