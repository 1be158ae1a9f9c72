//! One request of a pull, with its authorization.

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};
use tokio::time::Instant;

use super::Shared;
use super::pull::{Pull, PullHost, Target};
use crate::auth::Request;
use crate::transport::{Call, Reply, status_error};
use crate::{AuthChallenge, Credentials, Error, Host, Result};

/// The most headers with challenges that are parsed.
const MAX_CHALLENGE_HEADERS: usize = 16;

impl Pull {
    /// Sends one request; a response other than 2xx becomes an error. A challenge is answered, and a stale
    /// token is replaced, once.
    pub(super) async fn get(&self, asked: &PullHost, target: Target<'_>) -> Result<Reply> {
        let PullHost { host, range_use } = asked;
        let Shared {
            config,
            transport,
            authorizer,
            hosts_thread: _,
            range_permits: _,
        } = self.shared();
        let anonymous = Credentials::Anonymous;
        let request = Request {
            host,
            led_to: None,
            repository: self.reference().repository(),
            credentials: if config.sends_credentials(host, self.reference()) {
                self.credentials()
            } else {
                &anonymous
            },
            what: target.what,
        };
        let call = |authorization| Call {
            accept: target.accept,
            authorization,
            range: target.range,
            has_digest: target.has_digest,
            ..Call::get(host.url(target.path), target.what)
        };
        let known = authorizer.known(request);
        let begun = Instant::now();
        let mut reply = transport.send(host, call(known.clone())).await?;
        range_use.note_latency(begun.elapsed());
        if reply.response.status() == StatusCode::UNAUTHORIZED {
            let challenges = challenges(reply.response.headers());
            if reply.redirected_away {
                reply = self
                    .ask_elsewhere(host, call(None), reply, &challenges)
                    .await?;
            } else if !challenges.is_empty() {
                let answer = authorizer
                    .answer(transport, request, &challenges, known.as_ref())
                    .await?;
                reply = transport.send(host, call(Some(answer))).await?;
            }
        }
        if reply.response.status().is_success() {
            Ok(reply)
        } else {
            // The target of a redirect gets no credentials.
            let given = request.has_credentials() && !reply.redirected_away;
            Err(status_error(reply, (target.what, given), config.idle_timeout).await)
        }
    }

    /// Asks the target of a redirect once more, with the token that anybody gets: a registry may be nothing but another name of
    /// one that wants a token also of those who have no credentials, as most public ones do. Without such a token the reply is
    /// what it was. Nothing is shown of what the token service sends.
    async fn ask_elsewhere(
        &self,
        host: &Host,
        call: Call<'_>,
        reply: Reply,
        challenges: &[AuthChallenge],
    ) -> Result<Reply> {
        let Shared {
            transport,
            authorizer,
            ..
        } = self.shared();
        let url = reply.response.url().clone();
        let request = Request {
            host,
            led_to: Some(&url),
            repository: self.reference().repository(),
            credentials: &Credentials::Anonymous,
            what: call.what,
        };
        let answer = authorizer.answer(transport, request, challenges, None);
        let authorization = match answer.await {
            Ok(header) => Some(header),
            Err(error) if error.is_transient() => {
                return Err(Error::Unavailable {
                    what: call.what.to_owned(),
                    host: reply.host,
                    source: "the token service that it names does not answer".into(),
                });
            }
            Err(_) => return Ok(reply),
        };
        let again = Call {
            url,
            authorization,
            ..call
        };
        let mut reply = transport.send(host, again).await?;
        // This call began elsewhere.
        reply.redirected_away = true;
        Ok(reply)
    }
}

fn challenges(headers: &HeaderMap) -> Vec<AuthChallenge> {
    let values = headers
        .get_all(WWW_AUTHENTICATE)
        .iter()
        .filter_map(|value| value.to_str().ok());
    values
        .take(MAX_CHALLENGE_HEADERS)
        .flat_map(AuthChallenge::parse)
        .collect()
}
