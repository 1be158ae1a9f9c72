//! Timing of the next session: a pure decision.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::random;
use crate::status::{RATE_LIMIT_PERIOD, REFUSED_PAUSE, Reaction};

#[cfg(test)]
mod tests;

/// Growth of pauses, as with docker's agents: each is chosen below a limit, which starts at the step, doubles
/// with each failure, and ends at the maximum.
const LIMIT_STEP: Duration = Duration::from_millis(100);
const LIMIT_MAX: Duration = Duration::from_secs(8);

/// The pause before a session with a new certificate: a rotation of the CA brings several, and managers limit how
/// often a node registers.
const CERTIFICATE_PAUSE: Duration = Duration::from_secs(1);

/// A node may register three times within eight seconds; one of them is left for a manager's own wish.
const REGISTRATIONS: usize = 2;

/// Another process is taken for a node with the same identity if it displaces this one so often within that time.
/// Once may be this node's own earlier session.
const DISPLACEMENTS: usize = 3;
const DISPLACED_WITHIN: Duration = Duration::from_secs(300);

/// The pause of one of two nodes with the same identity: they would displace each other without end.
const DUPLICATE_PAUSE: Duration = Duration::from_secs(30);

/// The reason why another session is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A session has failed, or could not be opened.
    Failed(Reaction),
    /// The certificate or the roots have changed.
    Certificate,
}

/// The recent sessions.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    limit: Duration,
    registered: VecDeque<Instant>,
    displaced: VecDeque<Instant>,
}

// === impl Pace ===

impl Pace {
    /// A session was opened.
    pub(crate) fn registered(&mut self, now: Instant) {
        self.limit = Duration::ZERO;
        if self.registered.len() == REGISTRATIONS {
            self.registered.pop_front();
        }
        self.registered.push_back(now);
    }

    /// Chooses the pause before the next session; `random` selects within the limit.
    pub(crate) fn next(&mut self, cause: Cause, now: Instant, random: u64) -> Duration {
        if cause == Cause::Failed(Reaction::Displaced) {
            if self.displaced.len() == DISPLACEMENTS {
                self.displaced.pop_front();
            }
            self.displaced.push_back(now);
        }
        let at_least = match cause {
            // No failure of the manager, which the limit would count.
            Cause::Failed(Reaction::SlowDown) => return REFUSED_PAUSE.max(self.until_allowed(now)),
            Cause::Certificate => CERTIFICATE_PAUSE,
            Cause::Failed(Reaction::Displaced) if self.is_duplicate(now) => DUPLICATE_PAUSE,
            Cause::Failed(
                Reaction::NewSession
                | Reaction::Displaced
                | Reaction::Removed
                | Reaction::OtherManager,
            ) => Duration::ZERO,
        };
        self.limit = (LIMIT_STEP + self.limit * 2).min(LIMIT_MAX);
        let by_chance = random::below(self.limit, random);
        by_chance.max(at_least).max(self.until_allowed(now))
    }

    /// Returns whether another process seems to have the same identity.
    pub(crate) fn is_duplicate(&self, now: Instant) -> bool {
        self.duplicate_until().is_some_and(|until| now < until)
    }

    /// The time from which on no other process seems to have the same identity, unless it displaces this one again; `None`
    /// if none has seemed to.
    pub(crate) fn duplicate_until(&self) -> Option<Instant> {
        let first = self.displaced.front()?;
        (self.displaced.len() == DISPLACEMENTS).then(|| *first + DISPLACED_WITHIN)
    }

    /// Returns the time until managers accept another registration.
    fn until_allowed(&self, now: Instant) -> Duration {
        let full = self
            .registered
            .front()
            .filter(|_| self.registered.len() == REGISTRATIONS);
        full.map_or(Duration::ZERO, |first| {
            RATE_LIMIT_PERIOD.saturating_sub(now.duration_since(*first))
        })
    }
}
