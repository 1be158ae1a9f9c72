//! Calls as a patient client makes them: what gets no answer is repeated, and each answer is judged.

use std::error::Error;
use std::time::{Duration, Instant};

use tonic::{Code, Status};

use super::expected_state::{ExpectedState, Victim};
use super::outcome::RunRecorder;

/// Within this a call that is repeated must have been answered.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Between a call and its repetition.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// What the kills of which excuse a refusal.
const EXCUSING_VICTIMS: [Victim; 2] = [Victim::Containerd, Victim::Logkeeper];

/// Makes calls and puts down how they went.
#[derive(Debug, Clone, Copy)]
pub(super) struct RetryingCalls<'r> {
    pub(super) expected: &'r ExpectedState,
    pub(super) recorder: &'r RunRecorder,
}

/// An answer at last.
#[derive(Debug)]
pub(super) struct FinalAnswer<T> {
    pub(super) result: Result<T, Status>,
    /// When it was first asked.
    pub(super) first_sent: Instant,
    /// An earlier asking got no answer, and may have been carried out.
    pub(super) repeated: bool,
}

impl RetryingCalls<'_> {
    /// Calls until there is an answer that says something about the request; `None` if there never is.
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
            let said = result.as_ref().map_or_else(Status::to_string, |_| "done".to_owned());
            self.recorder.record(Some(object), format!("{name}, {} ms: {said}", begun.elapsed().as_millis()));
            let status = match &result {
                Ok(_) => None,
                Err(status) => self.should_retry(name, object, status, asked).then(|| status.clone()),
            };
            let Some(status) = status else {
                *self.recorder.outcome().calls.entry(name.to_owned()).or_default() += 1;
                return Some(FinalAnswer { result, first_sent: asked, repeated });
            };
            repeated = true;
            if asked.elapsed() > ANSWER_LIMIT {
                self.recorder
                    .violation(format_args!("{name} {object}: no answer within {ANSWER_LIMIT:?}: {status}"));
                return None;
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    /// As [`Calls::call`], for a call that has to succeed in the end: one that containerd's or the logkeeper's death made fail
    /// is repeated too.
    pub(super) fn call_expecting_ok<T>(
        self,
        name: &str,
        object: &str,
        mut call: impl FnMut() -> Result<T, Status>,
    ) -> Option<T> {
        let begun = Instant::now();
        loop {
            let FinalAnswer { result, first_sent: asked, .. } = self.call(name, object, &mut call)?;
            match result {
                Ok(value) => return Some(value),
                Err(_) if self.is_excused(asked) && begun.elapsed() < ANSWER_LIMIT => {
                    std::thread::sleep(RETRY_PAUSE);
                }
                Err(status) => {
                    self.recorder.violation(format_args!("{name} {object}: {status}"));
                    return None;
                }
            }
        }
    }

    /// Notes that something is killed.
    pub(super) fn record_kill(self, victim: Victim) {
        self.expected.record_kill(victim);
        self.recorder.record(None, format!("kill of {victim:?}"));
    }

    /// Whether a failure may come of a kill of something other than the daemon.
    pub(super) fn is_excused(self, asked: Instant) -> bool {
        self.expected.was_killed(&[Victim::Containerd, Victim::Logkeeper, Victim::Shim], asked)
    }

    /// Whether an error is no answer: the connection broke, or the daemon says that it cannot tell now.
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
                self.recorder
                    .violation(format_args!("{name} {object} is refused though all is there: {status}"));
            }
        }
        true
    }
}
