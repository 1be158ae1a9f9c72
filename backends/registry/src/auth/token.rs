//! Answers challenges, with tokens that are fetched from token services and cached for their lifetime.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use reqwest::StatusCode;
use reqwest::header::HeaderValue;
use serde::Deserialize;
use tokio::time::Instant;
use url::Url;

use super::{AuthChallenge, Credentials, basic, bearer};
use crate::error::shown;
use crate::hosts::PlainHttp;
use crate::limits::Bound;
use crate::transport::{Call, Reply, Transport, read_limited, status_error};
use crate::{Error, Host, Result};

/// The most entries of each cache; there is at most one per repository and user.
const CACHE_LIMIT: usize = 1024;
/// The largest response of a token service, in bytes. Usual ones have a few KiB.
const ANSWER_LIMIT: Bound = Bound {
    most: 1 << 20,
    key: None,
};
/// The longest token, in bytes: no server accepts a longer header, and each entry of the cache may use that
/// much memory.
const TOKEN_LIMIT: usize = 64 << 10;
/// The lifetime of a token that does not name one, by the token specification.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(60);
/// The longest time that a token is cached.
const MAX_LIFETIME: Duration = Duration::from_secs(24 * 3600);
const CLIENT_ID: &str = "switchyard";

/// The access that a pull requests.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) host: &'a Host,
    /// The target of its redirect, if it is that which wants a token.
    pub(crate) led_to: Option<&'a Url>,
    pub(crate) repository: &'a str,
    /// [`Credentials::Anonymous`] for hosts that must not get any.
    pub(crate) credentials: &'a Credentials,
    /// The pulled object, for errors.
    pub(crate) what: &'a str,
}

/// Caches challenges and tokens for the whole process.
#[derive(Default)]
pub(crate) struct Authorizer {
    /// The last challenge of each host, so that the next request has its answer from the start.
    challenges: Mutex<HashMap<ChallengeKey, AuthChallenge>>,
    tokens: Mutex<HashMap<TokenKey, Token>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct ChallengeKey {
    base: Url,
    repository: String,
    credentials: [u8; 32],
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct TokenKey {
    realm: String,
    service: String,
    scope: String,
    credentials: [u8; 32],
}

#[derive(Clone)]
struct Token {
    header: HeaderValue,
    expires_at: Instant,
}

/// A token service's answer; `token` and `access_token` mean the same.
#[derive(Deserialize)]
struct TokenAnswer {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    access_token: Option<String>,
    #[serde(default)]
    expires_in: Option<u64>,
}

// === impl Request ===

impl Request<'_> {
    /// Returns whether there are credentials for the host.
    pub(crate) fn has_credentials(&self) -> bool {
        *self.credentials != Credentials::Anonymous
    }
}

// === impl Authorizer ===

impl Authorizer {
    /// The header that answers the last challenge of this host, if that needs no request.
    pub(crate) fn known(&self, request: Request<'_>) -> Option<HeaderValue> {
        let challenge = lock(&self.challenges)
            .get(&ChallengeKey::of(request))?
            .clone();
        let is_basic = challenge.scheme == "basic";
        match request.credentials {
            Credentials::Basic { username, password } if is_basic => {
                Some(basic(username, password))
            }
            Credentials::Anonymous
            | Credentials::IdentityToken(_)
            | Credentials::RegistryToken(_)
                if is_basic =>
            {
                None
            }
            Credentials::RegistryToken(token) => bearer(token),
            Credentials::Anonymous | Credentials::Basic { .. } | Credentials::IdentityToken(_) => {
                let token = lock(&self.tokens)
                    .get(&TokenKey::of(&challenge, request)?)?
                    .clone();
                (token.expires_at > Instant::now()).then_some(token.header)
            }
        }
    }

    /// Answers the challenges of a 401. `refused` is the header that was sent and did not help.
    ///
    /// # Errors
    /// [`Error::Unauthorized`] if the credentials do not fit any challenge or were refused; otherwise the
    /// errors of the requests to the token service.
    pub(crate) async fn answer(
        &self,
        transport: &Transport,
        request: Request<'_>,
        challenges: &[AuthChallenge],
        refused: Option<&HeaderValue>,
    ) -> Result<HeaderValue> {
        let find = |scheme: &str| {
            challenges
                .iter()
                .find(|challenge| challenge.scheme == scheme)
        };
        let unauthorized = |reason: &str| Error::Unauthorized {
            what: request.what.to_owned(),
            host: request.host.authority(),
            reason: reason.to_owned(),
            given: request.has_credentials(),
        };
        let (challenge, header) = match (find("bearer"), find("basic"), request.credentials) {
            (Some(challenge), _, Credentials::RegistryToken(token)) => (
                challenge,
                bearer(token).ok_or_else(|| unauthorized("the token holds invalid characters"))?,
            ),
            (_, Some(challenge), Credentials::Basic { username, password })
                if find("bearer").is_none() =>
            {
                (challenge, basic(username, password))
            }
            (Some(challenge), _, _) => (
                challenge,
                self.token(transport, request, challenge, refused).await?,
            ),
            (None, Some(_), Credentials::Anonymous) => {
                return Err(unauthorized("it wants a user name and a password"));
            }
            (None, _, _) => {
                return Err(unauthorized(
                    "it asks for a kind of authentication that nothing given fits",
                ));
            }
        };
        // The same answer would be refused again.
        if refused == Some(&header) {
            return Err(unauthorized("what was sent is not accepted"));
        }
        // That of a redirect's target is not the host's, which is asked first.
        if request.led_to.is_none() {
            insert_bounded(
                &mut lock(&self.challenges),
                ChallengeKey::of(request),
                challenge.clone(),
                |_| true,
            );
        }
        Ok(header)
    }

    async fn token(
        &self,
        transport: &Transport,
        request: Request<'_>,
        challenge: &AuthChallenge,
        refused: Option<&HeaderValue>,
    ) -> Result<HeaderValue> {
        let Some(key) = TokenKey::of(challenge, request) else {
            return Err(Error::protocol(
                request.what,
                format!(
                    "{} asks for a token without naming who gives it (realm)",
                    request.host.authority()
                ),
            ));
        };
        // Scoped so that the guard is dropped before any await.
        let known = lock(&self.tokens).get(&key).cloned();
        if let Some(token) = known
            && token.expires_at > Instant::now()
            && refused != Some(&token.header)
        {
            return Ok(token.header);
        }
        let service = TokenService {
            transport,
            request,
            realm: realm(request, &key.realm)?,
            key: &key,
        };
        let answer = service.fetch().await?;
        let text = answer
            .token
            .filter(|text| !text.is_empty())
            .or(answer.access_token)
            .unwrap_or_default();
        let header = Some(text)
            .filter(|text| (1..=TOKEN_LIMIT).contains(&text.len()))
            .and_then(|text| bearer(&text));
        let header = header.ok_or_else(|| {
            Error::protocol(
                request.what,
                format!("the token service {} sent no usable token", service.name()),
            )
        })?;
        let lifetime = answer
            .expires_in
            .map_or(DEFAULT_LIFETIME, Duration::from_secs)
            .min(MAX_LIFETIME);
        // A token must not expire before the request arrives.
        let lifetime = lifetime.saturating_sub((lifetime / 10).min(Duration::from_secs(10)));
        let token = Token {
            header: header.clone(),
            expires_at: Instant::now() + lifetime,
        };
        let now = Instant::now();
        insert_bounded(&mut lock(&self.tokens), key, token, |token| {
            token.expires_at > now
        });
        Ok(header)
    }
}

impl fmt::Debug for Authorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorizer")
            .field("tokens", &lock(&self.tokens).len())
            .finish_non_exhaustive()
    }
}

/// The guarded maps are changed by single calls, so a panic elsewhere cannot have left them half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// Inserts, after making room: first by removing stale entries, then, rarely, by removing all.
fn insert_bounded<K: Eq + Hash, V>(
    map: &mut HashMap<K, V>,
    key: K,
    value: V,
    fresh: impl Fn(&V) -> bool,
) {
    if map.len() >= CACHE_LIMIT && !map.contains_key(&key) {
        map.retain(|_, value| fresh(value));
        if map.len() >= CACHE_LIMIT {
            map.clear();
        }
    }
    map.insert(key, value);
}

/// Checks that a token service is accessed as securely as its registry: credentials and the token itself must
/// not be sent with less protection.
fn realm(request: Request<'_>, realm: &str) -> Result<Url> {
    let host = request.host.authority();
    let url = Url::parse(realm)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.host_str().is_some())
        .ok_or_else(|| {
            Error::protocol(
                request.what,
                format!("{host} names a token service that is no http URL"),
            )
        })?;
    let must_be_tls = match request.led_to {
        Some(target) => target.scheme() == "https",
        None => {
            request.host.base.scheme() == "https" && request.host.plain_http == PlainHttp::Never
        }
    };
    if must_be_tls && url.scheme() == "http" {
        return Err(Error::protocol(
            request.what,
            format!("{host} is asked with TLS but names a token service without"),
        ));
    }
    Ok(url)
}

/// One request for a token.
struct TokenService<'a> {
    transport: &'a Transport,
    request: Request<'a>,
    realm: Url,
    key: &'a TokenKey,
}

impl TokenService<'_> {
    fn name(&self) -> String {
        shown(self.realm.authority())
    }

    async fn fetch(&self) -> Result<TokenAnswer> {
        if let Credentials::IdentityToken(token) = self.request.credentials {
            let reply = self.post(token).await?;
            match reply.response.status() {
                // Services that know only GET answer one of these.
                StatusCode::NOT_FOUND
                | StatusCode::METHOD_NOT_ALLOWED
                | StatusCode::UNAUTHORIZED
                | StatusCode::BAD_REQUEST => {}
                _ => return self.read(reply).await,
            }
        }
        let reply = self.get().await?;
        self.read(reply).await
    }

    async fn post(&self, refresh_token: &str) -> Result<Reply> {
        let form = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("grant_type", "refresh_token")
            .append_pair("client_id", CLIENT_ID)
            .append_pair("service", &self.key.service)
            .append_pair("scope", &self.key.scope)
            .append_pair("refresh_token", refresh_token)
            .finish();
        let mut call = Call::get(self.realm.clone(), self.request.what);
        call.form = Some(form);
        self.transport.send(self.request.host, call).await
    }

    async fn get(&self) -> Result<Reply> {
        let mut url = self.realm.clone();
        {
            let mut query = url.query_pairs_mut();
            if !self.key.service.is_empty() {
                query.append_pair("service", &self.key.service);
            }
            for scope in self.key.scope.split(' ').filter(|scope| !scope.is_empty()) {
                query.append_pair("scope", scope);
            }
            if let Credentials::Basic { username, .. } = self.request.credentials {
                query.append_pair("account", username);
            }
        }
        let mut call = Call::get(url, self.request.what);
        call.authorization = match self.request.credentials {
            Credentials::Basic { username, password } => Some(basic(username, password)),
            Credentials::IdentityToken(token) => Some(basic("", token)),
            Credentials::Anonymous | Credentials::RegistryToken(_) => None,
        };
        self.transport.send(self.request.host, call).await
    }

    async fn read(&self, reply: Reply) -> Result<TokenAnswer> {
        let what = self.request.what;
        let status = reply.response.status();
        if !status.is_success() {
            let given = self.request.has_credentials();
            let mut error = status_error(reply, (what, given), self.transport.idle_timeout()).await;
            // What is denied here is a token, and the remedy is other credentials.
            if let Error::Denied { what, host, reason } = error {
                error = Error::Unauthorized {
                    what,
                    host,
                    reason,
                    given,
                };
            }
            return Err(error);
        }
        let body = read_limited(reply, what, ANSWER_LIMIT, self.transport.idle_timeout()).await?;
        // The parser's error is left out: it may quote the token.
        serde_json::from_slice(&body).map_err(|_| {
            Error::protocol(
                what,
                format!("the token service {} sent no valid JSON token", self.name()),
            )
        })
    }
}

// === impl ChallengeKey ===

impl ChallengeKey {
    fn of(request: Request<'_>) -> Self {
        Self {
            base: request.host.base.clone(),
            repository: request.repository.to_owned(),
            credentials: request.credentials.fingerprint(),
        }
    }
}

// === impl TokenKey ===

impl TokenKey {
    /// None if the challenge has no realm. A challenge without scope is about pulling from the repository.
    fn of(challenge: &AuthChallenge, request: Request<'_>) -> Option<Self> {
        let scope = challenge
            .parameter("scope")
            .filter(|scope| !scope.trim().is_empty());
        Some(Self {
            realm: challenge.parameter("realm")?.to_owned(),
            service: challenge
                .parameter("service")
                .unwrap_or_default()
                .to_owned(),
            scope: scope.map_or_else(
                || format!("repository:{}:pull", request.repository),
                ToOwned::to_owned,
            ),
            credentials: request.credentials.fingerprint(),
        })
    }
}
