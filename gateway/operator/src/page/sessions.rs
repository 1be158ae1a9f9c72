//! Tickets, each of which begins one session, and sessions, in which a browser sees the whole status page. A ticket is
//! the secret in a link that `switchyard page` prints.
//!
//! Both are 32 random bytes in hexadecimal digits. Only their digests are kept, in memory and bounded in number, so both
//! end with the daemon. Pure but for the random bytes; the caller gives the time.

use std::collections::VecDeque;
use std::fmt;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use switchyard_core::{Error, Result};

/// For how long a ticket can be used.
pub(crate) const TICKET_TIME: Duration = Duration::from_secs(60);

/// For how long a session lasts.
pub(crate) const SESSION_TIME: Duration = Duration::from_secs(12 * 60 * 60);

/// Maximum numbers of tickets and of sessions. One more replaces the oldest.
const TICKETS_MAX: usize = 16;
const SESSIONS_MAX: usize = 64;

/// Random bytes of a secret.
const BYTES: usize = 32;

/// A ticket, or the value of a session's cookie.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PageSecret(String);

/// The tickets and sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    tickets: KeptSecrets,
    sessions: KeptSecrets,
}

/// The digests of secrets, the oldest first, each with the end of its time.
#[derive(Debug)]
struct KeptSecrets {
    digests: VecDeque<([u8; 32], Instant)>,
    max: usize,
    lasts: Duration,
}

// === impl PageSecret ===

impl PageSecret {
    fn random() -> Result<Self> {
        let mut bytes = [0; BYTES];
        getrandom::fill(&mut bytes).map_err(|error| {
            Error::internal("read random bytes for the status page").with_source(error)
        })?;
        let mut text = String::with_capacity(2 * BYTES);
        for byte in bytes {
            write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        }
        Ok(Self(text))
    }

    /// The secret itself, for the URL or the cookie.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PageSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PageSecret(withheld)")
    }
}

// === impl Sessions ===

impl Default for Sessions {
    fn default() -> Self {
        Self {
            tickets: KeptSecrets::new(TICKETS_MAX, TICKET_TIME),
            sessions: KeptSecrets::new(SESSIONS_MAX, SESSION_TIME),
        }
    }
}

impl Sessions {
    /// Makes a ticket.
    ///
    /// # Errors
    /// `Internal` if the kernel gives no random bytes, as all methods that make a secret.
    pub(crate) fn issue(&mut self, now: Instant) -> Result<PageSecret> {
        self.tickets.make(now)
    }

    /// Begins a session with a ticket, which cannot be used again; `None` if it was used, is too old or never existed.
    pub(crate) fn begin(&mut self, ticket: &str, now: Instant) -> Result<Option<PageSecret>> {
        if self.tickets.take(ticket, now) {
            self.sessions.make(now).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Returns whether a session is valid.
    pub(crate) fn is_open(&self, session: &str, now: Instant) -> bool {
        self.sessions.position(session, now).is_some()
    }

    /// Ends a session. Idempotent.
    pub(crate) fn end(&mut self, session: &str, now: Instant) {
        self.sessions.take(session, now);
    }
}

// === impl KeptSecrets ===

impl KeptSecrets {
    const fn new(max: usize, lasts: Duration) -> Self {
        Self {
            digests: VecDeque::new(),
            max,
            lasts,
        }
    }

    fn make(&mut self, now: Instant) -> Result<PageSecret> {
        let secret = PageSecret::random()?;
        self.digests.retain(|(_, end)| *end > now);
        while self.digests.len() >= self.max {
            self.digests.pop_front();
        }
        self.digests
            .push_back((digest(secret.expose()), now + self.lasts));
        Ok(secret)
    }

    fn take(&mut self, secret: &str, now: Instant) -> bool {
        self.position(secret, now)
            .and_then(|place| self.digests.remove(place))
            .is_some()
    }

    /// The position of a valid secret. The comparison takes the same time for every wrong secret.
    fn position(&self, secret: &str, now: Instant) -> Option<usize> {
        if secret.len() != 2 * BYTES {
            return None;
        }
        let digest = digest(secret);
        self.digests
            .iter()
            .position(|(kept, end)| bool::from(kept.ct_eq(&digest)) && *end > now)
    }
}

fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticket_begins_one_session_within_its_time() {
        let mut sessions = Sessions::default();
        let now = Instant::now();
        let ticket = sessions.issue(now).unwrap();
        let session = sessions.begin(ticket.expose(), now).unwrap().unwrap();
        assert!(
            sessions.begin(ticket.expose(), now).unwrap().is_none(),
            "it was used twice"
        );
        assert!(sessions.is_open(session.expose(), now));
        assert!(
            !sessions.is_open(ticket.expose(), now),
            "a ticket is no session"
        );
        assert!(
            sessions.begin(session.expose(), now).unwrap().is_none(),
            "a session is no ticket"
        );
        let late = sessions.issue(now).unwrap();
        assert!(
            sessions
                .begin(late.expose(), now + TICKET_TIME)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn session_ends_after_its_time_or_when_it_is_ended() {
        let mut sessions = Sessions::default();
        let now = Instant::now();
        let ticket = sessions.issue(now).unwrap();
        let session = sessions.begin(ticket.expose(), now).unwrap().unwrap();
        assert!(sessions.is_open(
            session.expose(),
            now + SESSION_TIME - Duration::from_secs(1)
        ));
        assert!(!sessions.is_open(session.expose(), now + SESSION_TIME));
        sessions.end(session.expose(), now);
        sessions.end(session.expose(), now);
        assert!(!sessions.is_open(session.expose(), now));
    }

    #[test]
    fn secrets_are_bounded_and_the_oldest_goes_first() {
        let mut sessions = Sessions::default();
        let now = Instant::now();
        let tickets: Vec<_> = (0..=TICKETS_MAX)
            .map(|_| sessions.issue(now).unwrap())
            .collect();
        assert!(sessions.begin(tickets[0].expose(), now).unwrap().is_none());
        let first = sessions.begin(tickets[1].expose(), now).unwrap().unwrap();
        for _ in 0..SESSIONS_MAX {
            let ticket = sessions.issue(now).unwrap();
            sessions.begin(ticket.expose(), now).unwrap().unwrap();
        }
        assert!(!sessions.is_open(first.expose(), now));
        assert_eq!(sessions.sessions.digests.len(), SESSIONS_MAX);
    }

    #[test]
    fn secret_is_not_printed_and_not_kept() {
        let mut sessions = Sessions::default();
        let ticket = sessions.issue(Instant::now()).unwrap();
        assert_eq!(ticket.expose().len(), 64);
        assert!(!format!("{ticket:?}").contains(&ticket.expose()[..8]));
        for wrong in [
            "",
            "00",
            &"0".repeat(64),
            &"ä".repeat(32),
            &ticket.expose().to_uppercase(),
        ] {
            assert!(
                sessions.begin(wrong, Instant::now()).unwrap().is_none(),
                "{wrong}"
            );
        }
    }
}
