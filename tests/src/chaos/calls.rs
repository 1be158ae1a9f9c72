//! Calls as a patient client makes them: what gets no answer is repeated, and each answer is judged.

use std::error::Error;
use std::time::{Duration, Instant};

use tonic::{Code, Status};

use super::ledger::{Ledger, Victim};
use super::outcome::Notes;

/// Within this a call that is repeated must have been answered.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between a call and its repetition.
const PAUSE: Duration = Duration::from_millis(20);

/// What the kills of which excuse a refusal.
const AWAY: [Victim; 2] = [Victim::Containerd, Victim::Logkeeper];

/// Makes calls and puts down how they went.
#[derive(Debug, Clone, Copy)]
pub(super) struct Calls<'r> {
    pub(super) ledger: &'r Ledger,
    pub(super) notes: &'r Notes,
}

/// An answer at last.
#[derive(Debug)]
pub(super) struct Answer<T> {
    pub(super) result: Result<T, Status>,
    /// When it was first asked.
    pub(super) asked: Instant,
    /// An earlier asking got no answer, and may have been carried out.
    pub(super) repeated: bool,
}

impl Calls<'_> {
    /// Calls until there is an answer that says something about the request; `None` if there never is.
    pub(super) fn call<T>(
        self,
        name: &str,
        object: &str,
        mut call: impl FnMut() -> Result<T, Status>,
    ) -> Option<Answer<T>> {
        let asked = Instant::now();
        let mut repeated = false;
        loop {
            let begun = Instant::now();
            let result = call();
            let said = result.as_ref().map_or_else(Status::to_string, |_| "done".to_owned());
            self.notes.saw(Some(object), format!("{name}, {} ms: {said}", begun.elapsed().as_millis()));
            let status = match &result {
                Ok(_) => None,
                Err(status) => self.again(name, object, status, asked).then(|| status.clone()),
            };
            let Some(status) = status else {
                *self.notes.change().calls.entry(name.to_owned()).or_default() += 1;
                return Some(Answer { result, asked, repeated });
            };
            repeated = true;
            if asked.elapsed() > PATIENCE {
                self.notes
                    .violation(format_args!("{name} {object}: no answer within {PATIENCE:?}: {status}"));
                return None;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// As [`Calls::call`], for a call that has to succeed in the end: one that containerd's or the logkeeper's death made fail
    /// is repeated too.
    pub(super) fn must<T>(
        self,
        name: &str,
        object: &str,
        mut call: impl FnMut() -> Result<T, Status>,
    ) -> Option<T> {
        let begun = Instant::now();
        loop {
            let Answer { result, asked, .. } = self.call(name, object, &mut call)?;
            match result {
                Ok(value) => return Some(value),
                Err(_) if self.excused(asked) && begun.elapsed() < PATIENCE => {
                    std::thread::sleep(PAUSE);
                }
                Err(status) => {
                    self.notes.violation(format_args!("{name} {object}: {status}"));
                    return None;
                }
            }
        }
    }

    /// Notes that something is killed.
    pub(super) fn killed(self, victim: Victim) {
        self.ledger.killed(victim);
        self.notes.saw(None, format!("kill of {victim:?}"));
    }

    /// Whether a failure may come of a kill of something other than the daemon.
    pub(super) fn excused(self, asked: Instant) -> bool {
        self.ledger.was_killed(&[Victim::Containerd, Victim::Logkeeper, Victim::Shim], asked)
    }

    /// Whether an error is no answer: the connection broke, or the daemon says that it cannot tell now.
    fn again(self, name: &str, object: &str, status: &Status, asked: Instant) -> bool {
        if status.source().is_some() {
            self.notes.change().unanswered += 1;
            return true;
        }
        if status.code() != Code::Unavailable {
            return false;
        }
        if status.message().contains("recovering") {
            self.notes.change().refused_starting += 1;
        } else {
            self.notes.change().refused_away += 1;
            if !self.ledger.was_killed(&AWAY, asked) {
                self.notes
                    .violation(format_args!("{name} {object} is refused though all is there: {status}"));
            }
        }
        true
    }
}
