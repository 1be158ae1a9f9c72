//! The tokens in URLs: random, valid for one use, and only for a limited time.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::time::Instant;

use crate::session::TooMany;

/// Number of random bytes of a token.
const RANDOM: usize = 16;

/// The sessions that wait to be opened. `T` is the value of a token.
#[derive(Debug)]
pub(crate) struct Tokens<T> {
    lifetime: Duration,
    limit: usize,
    waiting: HashMap<String, T>,
    /// The expiry of each token, in order; some tokens may have been redeemed already.
    expiries: VecDeque<(Instant, String)>,
}

impl<T> Tokens<T> {
    pub(crate) fn new(lifetime: Duration, limit: usize) -> Self {
        Self {
            lifetime,
            limit,
            waiting: HashMap::new(),
            expiries: VecDeque::new(),
        }
    }

    /// Issues a token for `value`, valid from `now` on.
    pub(crate) fn issue(&mut self, value: T, now: Instant) -> Result<String, TooMany> {
        self.expire(now);
        if self.waiting.len() >= self.limit {
            return Err(TooMany { limit: self.limit });
        }
        let mut random = [0; RANDOM];
        getrandom::fill(&mut random).expect("Linux gives random bytes to everybody");
        let token = URL_SAFE_NO_PAD.encode(random);
        // Redeemed tokens leave their expiries behind.
        if self.expiries.len() >= 2 * self.limit {
            self.expiries
                .retain(|(_, token)| self.waiting.contains_key(token));
        }
        self.expiries
            .push_back((now + self.lifetime, token.clone()));
        self.waiting.insert(token.clone(), value);
        Ok(token)
    }

    /// The value of a valid token, which stays valid.
    pub(crate) fn peek(&mut self, token: &str, now: Instant) -> Option<&T> {
        self.expire(now);
        self.waiting.get(token)
    }

    /// The value of a valid token, which becomes invalid.
    pub(crate) fn redeem(&mut self, token: &str, now: Instant) -> Option<T> {
        self.expire(now);
        self.waiting.remove(token)
    }

    /// Drops the tokens that have expired.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some((_, token)) = self.expiries.pop_front_if(|(until, _)| *until <= now) {
            self.waiting.remove(&token);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use tokio::time::Instant;

    use super::Tokens;

    const LIFETIME: Duration = Duration::from_secs(60);

    #[test]
    fn token_is_single_use() {
        let mut tokens = Tokens::new(LIFETIME, 10);
        let now = Instant::now();
        let token = tokens.issue("exec", now).unwrap();
        assert_eq!(tokens.peek(&token, now), Some(&"exec"));
        assert_eq!(tokens.redeem(&token, now), Some("exec"));
        assert_eq!(tokens.redeem(&token, now), None);
        assert_eq!(tokens.peek(&token, now), None);
    }

    #[test]
    fn token_expires() {
        let mut tokens = Tokens::new(LIFETIME, 10);
        let now = Instant::now();
        let token = tokens.issue("exec", now).unwrap();
        assert!(
            tokens
                .peek(&token, now + LIFETIME - Duration::from_millis(1))
                .is_some()
        );
        assert_eq!(tokens.redeem(&token, now + LIFETIME), None);
    }

    #[test]
    fn pending_tokens_are_limited() {
        let mut tokens = Tokens::new(LIFETIME, 2);
        let now = Instant::now();
        let first = tokens.issue(1, now).unwrap();
        tokens.issue(2, now).unwrap();
        assert_eq!(tokens.issue(3, now).unwrap_err().limit, 2);
        tokens.redeem(&first, now).unwrap();
        tokens.issue(4, now).unwrap();
        assert!(tokens.issue(5, now).is_err());
        assert!(tokens.issue(6, now + LIFETIME).is_ok());
    }

    #[test]
    fn tokens_are_long_and_unique() {
        let mut tokens = Tokens::new(LIFETIME, 1000);
        let now = Instant::now();
        let issued: HashSet<_> = (0..1000).map(|at| tokens.issue(at, now).unwrap()).collect();
        assert_eq!(issued.len(), 1000);
        assert!(issued.iter().all(|token| token.len() == 22));
    }

    #[test]
    fn expired_tokens_are_dropped() {
        let mut tokens = Tokens::new(LIFETIME, 10);
        let mut now = Instant::now();
        for at in 0..1000 {
            let token = tokens.issue(at, now).unwrap();
            tokens.redeem(&token, now).unwrap();
            now += Duration::from_millis(1);
            assert!(tokens.expiries.len() <= 20);
        }
    }
}
