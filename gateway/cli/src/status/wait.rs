//! `switchyard status --wait ready=60s`: waits until the node is ready, for a bounded time.

use std::time::Duration;

use jiff::SignedDuration;
use switchyard_operator_api::StatusReport;
use tokio::time::Instant;

use crate::daemon::DaemonError;
use crate::watch::passes;

/// The pause between two queries.
const POLL: Duration = Duration::from_millis(500);

/// Limit for one answer: a daemon that is silent for so long is queried again.
const ANSWER: Duration = Duration::from_secs(10);

/// The longest time, which is no slip of the keyboard.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The condition to wait for, readiness, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    limit: Duration,
}

/// The end of a wait, with the last answer of the daemon.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Waited<T> {
    /// The condition holds.
    Ready(T),
    /// It does not hold, and the time is up.
    TimeUp(T),
}

/// A condition and a time, as in `ready=60s`.
pub(super) fn parse(text: &str) -> Result<Wait, String> {
    let time = text.strip_prefix("ready=").ok_or(
        "write it as ready=60s: the node is waited for until it is ready, or a minute is over",
    )?;
    let limit: SignedDuration = time
        .parse()
        .map_err(|error| format!("{error}; write it as ready=90s or ready=10m"))?;
    let limit = Duration::try_from(limit).map_err(|_| "the time is negative".to_owned())?;
    if limit < Duration::from_secs(1) || limit > LONGEST {
        return Err("the time must be from 1s to 24h".to_owned());
    }
    Ok(Wait { limit })
}

// === impl Wait ===

impl Wait {
    /// Queries the daemon until it is ready, or the time is up. A daemon that does not answer, as during its restart, is
    /// queried again. Cancel-safe.
    ///
    /// # Errors
    /// The daemon refuses the query; or it does not answer when the time is up.
    pub(super) async fn until_ready<T>(
        self,
        ask: impl AsyncFn() -> Result<T, DaemonError>,
        is_ready: impl Fn(&T) -> bool,
    ) -> Result<Waited<T>, DaemonError> {
        let deadline = Instant::now() + self.limit;
        loop {
            let until = deadline.min(Instant::now() + ANSWER);
            let answer = match tokio::time::timeout_at(until, ask()).await {
                Ok(Ok(found)) if is_ready(&found) => return Ok(Waited::Ready(found)),
                Ok(Err(error)) if !passes(&error) => return Err(error),
                Ok(answer) => answer,
                Err(_) => Err(DaemonError::Message(
                    "the daemon does not answer".to_owned(),
                )),
            };
            if Instant::now() + POLL >= deadline {
                return answer
                    .map(Waited::TimeUp)
                    .map_err(|source| DaemonError::NotReady {
                        limit: self.limit,
                        source: Box::new(source),
                    });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// The error for a node that is not ready, with the parts that are down.
    pub(super) fn not_ready(self, report: &StatusReport) -> DaemonError {
        let down: Vec<_> = report
            .parts
            .iter()
            .filter(|part| part.needed && !part.up)
            .map(|part| format!("{}: {}", part.name, part.detail))
            .collect();
        DaemonError::Message(format!(
            "the node was not ready within {:?}: {}",
            self.limit,
            down.join("; ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn wait(seconds: u64) -> Wait {
        Wait {
            limit: Duration::from_secs(seconds),
        }
    }

    fn away() -> DaemonError {
        DaemonError::Away("/statusz".into())
    }

    #[test]
    fn condition_is_readiness_within_a_bounded_time() {
        assert_eq!(parse("ready=60s"), Ok(wait(60)));
        assert_eq!(parse("ready=2m 30s"), Ok(wait(150)));
        for text in [
            "ready",
            "60s",
            "up=60s",
            "ready=",
            "ready=0s",
            "ready=25h",
            "ready=soon",
            "ready=-5s",
            "",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    /// Waits for a minute; the daemon gives these answers, the last one for ever. Returns the end and the number of seconds.
    async fn waited(answers: &[Option<bool>]) -> (Result<Waited<bool>, DaemonError>, u64) {
        let begun = Instant::now();
        let given = Cell::new(0);
        let ask = async || {
            let next = given.get();
            given.set(next + 1);
            answers[next.min(answers.len() - 1)].ok_or_else(away)
        };
        let end = wait(60).until_ready(ask, |ready| *ready).await;
        (end, begun.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn daemon_that_is_away_or_not_ready_yet_is_waited_for() {
        let (end, seconds) = waited(&[Some(true)]).await;
        assert_eq!((end.unwrap(), seconds), (Waited::Ready(true), 0));
        let restarting = [Some(false), None, None, Some(false), Some(true)];
        let (end, seconds) = waited(&restarting).await;
        assert_eq!((end.unwrap(), seconds), (Waited::Ready(true), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn wait_ends_in_time_with_the_last_answer() {
        let (end, seconds) = waited(&[None, Some(false)]).await;
        assert_eq!(end.unwrap(), Waited::TimeUp(false));
        assert!((59..=60).contains(&seconds), "{seconds}");
        let (end, seconds) = waited(&[Some(false), None]).await;
        let error = switchyard_linux::report(&end.unwrap_err());
        assert!(
            error.contains("not ready within 60s: no daemon runs"),
            "{error}"
        );
        assert!((59..=60).contains(&seconds), "{seconds}");
    }

    #[tokio::test(start_paused = true)]
    async fn silent_daemon_is_queried_again() {
        let queries = Cell::new(0);
        let ask = async || {
            queries.set(queries.get() + 1);
            if queries.get() < 3 {
                std::future::pending::<()>().await;
            }
            Ok(true)
        };
        let end = wait(60).until_ready(ask, |ready| *ready).await;
        assert_eq!((end.unwrap(), queries.get()), (Waited::Ready(true), 3));
        let silent = async || std::future::pending::<Result<bool, DaemonError>>().await;
        let begun = Instant::now();
        let end = wait(5).until_ready(silent, |ready| *ready).await;
        assert!(matches!(end, Err(DaemonError::NotReady { .. })), "{end:?}");
        assert!(begun.elapsed() < Duration::from_secs(6));
    }

    #[tokio::test(start_paused = true)]
    async fn refused_query_is_not_repeated() {
        let ask = async || Err::<bool, _>(DaemonError::Forbidden("no".into()));
        let begun = Instant::now();
        let end = wait(60).until_ready(ask, |ready| *ready).await;
        assert!(matches!(end, Err(DaemonError::Forbidden(_))), "{end:?}");
        assert!(begun.elapsed().is_zero());
    }
}
