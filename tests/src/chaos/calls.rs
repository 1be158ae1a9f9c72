//! Calls of a client that repeats every call until it gets an answer. Each answer is checked.

use std::error::Error;
use std::time::{Duration, Instant};

use tonic::{Code, Status};

use super::expected_state::{ExpectedState, Victim};
use super::outcome::RunRecorder;

/// A repeated call must be answered within this time.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// The pause between a call and its repetition.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The victims whose kill excuses a refusal.
const EXCUSING_VICTIMS: [Victim; 2] = [Victim::Containerd, Victim::Logkeeper];

/// Makes calls, and records their results.
#[derive(Debug, Clone, Copy)]
pub(super) struct RetryingCalls<'r> {
    pub(super) expected: &'r ExpectedState,
    pub(super) recorder: &'r RunRecorder,
}

/// The answer that ended the repetition of a call.
#[derive(Debug)]
pub(super) struct FinalAnswer<T> {
    pub(super) result: Result<T, Status>,
    /// Time at which the call was first sent.
    pub(super) first_sent: Instant,
    /// True if an earlier attempt got no answer. The daemon may have carried it out all the same.
    pub(super) repeated: bool,
}

impl RetryingCalls<'_> {
    /// Repeats a call until an answer says something about the request; `None` if no such answer comes in
    /// time.
    pub(super) fn call<T>(
        self,
        name: &str,
        object: &str,
        mut call: impl FnMut() -> Result<T, Status>,
    ) -> Option<FinalAnswer<T>> {
        let asked = Instant::now();
        let mut repeated = false;
        loop {
            let begun = Instant::now();
            let result = call();
            let outcome = result
                .as_ref()
                .map_or_else(Status::to_string, |_| "done".to_owned());
            self.recorder.record(
                Some(object),
                format!("{name}, {} ms: {outcome}", begun.elapsed().as_millis()),
            );
            let status = match &result {
                Ok(_) => None,
                Err(status) => self
                    .should_retry(name, object, status, asked)
                    .then(|| status.clone()),
            };
            let Some(status) = status else {
                *self
                    .recorder
                    .outcome()
                    .calls
                    .entry(name.to_owned())
                    .or_default() += 1;
                return Some(FinalAnswer {
                    result,
                    first_sent: asked,
                    repeated,
                });
            };
            repeated = true;
            if asked.elapsed() > ANSWER_LIMIT {
                self.recorder.violation(format_args!(
                    "{name} {object}: no answer within {ANSWER_LIMIT:?}: {status}"
                ));
                return None;
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    /// As [`RetryingCalls::call`], for a call that has to succeed in the end: it is repeated also when it
    /// failed because containerd or the logkeeper was killed.
    pub(super) fn call_expecting_ok<T>(
        self,
        name: &str,
        object: &str,
        mut call: impl FnMut() -> Result<T, Status>,
    ) -> Option<T> {
        let begun = Instant::now();
        loop {
            let FinalAnswer {
                result,
                first_sent: asked,
                ..
            } = self.call(name, object, &mut call)?;
            match result {
                Ok(value) => return Some(value),
                Err(_) if self.is_excused(asked) && begun.elapsed() < ANSWER_LIMIT => {
                    std::thread::sleep(RETRY_PAUSE);
                }
                Err(status) => {
                    self.recorder
                        .violation(format_args!("{name} {object}: {status}"));
                    return None;
                }
            }
        }
    }

    /// Records that a process is killed.
    pub(super) fn record_kill(self, victim: Victim) {
        self.expected.record_kill(victim);
        self.recorder.record(None, format!("kill of {victim:?}"));
    }

    /// Returns whether the kill of a process other than the daemon can explain a failure.
    pub(super) fn is_excused(self, asked: Instant) -> bool {
        self.expected.was_killed(
            &[Victim::Containerd, Victim::Logkeeper, Victim::Shim],
            asked,
        )
    }

    /// Returns whether an error says nothing about the request: the connection broke, or the daemon is not
    /// ready to answer.
    fn should_retry(self, name: &str, object: &str, status: &Status, asked: Instant) -> bool {
        if status.source().is_some() {
            self.recorder.outcome().unanswered += 1;
            return true;
        }
        if status.code() != Code::Unavailable {
            return false;
        }
        if status.message().contains("recovering") {
            self.recorder.outcome().refused_starting += 1;
        } else {
            self.recorder.outcome().refused_away += 1;
            if !self.expected.was_killed(&EXCUSING_VICTIMS, asked) {
                self.recorder.violation(format_args!(
                    "{name} {object} is refused though all is there: {status}"
                ));
            }
        }
        true
    }
}
