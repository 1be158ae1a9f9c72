//! HTTP with the rules of this crate: one connection pool per kind of TLS settings, redirects that lose the
//! credentials, deadlines on silence, and errors without URLs (which may hold signatures).
//!
//! A request goes to the host that the operator has configured, or to a URL that this host names: by a
//! redirect, or as its token service. Only the former uses the host's headers, its client certificate and its
//! `skip_verify`; only the latter must not be link-local.

mod body;
mod connect;
mod failure;
mod guard;
mod proxy;
mod range;
mod tls;

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, LOCATION, RANGE};
use reqwest::{Client, Method, Response};
use tokio::time::{Instant, timeout};
use url::Url;

pub(crate) use body::{in_time, next_piece, read_limited, status_error};
use connect::{ClientKey, build};
use failure::Failure;
pub(crate) use range::RangeRequest;
use switchyard_linux::{WorkLost, blocking};

use crate::error::shown;
use crate::hosts::{PlainHttp, Tls, is_loopback};
use crate::{Error, Host, Result};

const MAX_REDIRECTS: usize = 10;
/// The longest URL, in bytes, that a registry may name. Signed ones have up to four thousand.
const MAX_URL: usize = 16 << 10;
/// Maximum number of connection pools with different TLS settings; rotated certificates leave old ones
/// behind.
const MAX_CLIENTS: usize = 64;
/// Time for which a host that answered with plain HTTP is tried with plain HTTP first.
const PLAIN_MEMORY: Duration = Duration::from_secs(300);

/// Sends requests.
#[derive(Debug)]
pub(crate) struct Transport {
    clients: Mutex<HashMap<ClientKey, Client>>,
    /// Hosts that answered with plain HTTP, and until when they are tried that way first.
    plain: Mutex<HashMap<String, Instant>>,
    connect_timeout: Duration,
    idle_timeout: Duration,
    /// True if redirects of content with a known digest may lead from TLS to plain HTTP.
    http_redirects: bool,
}

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Call<'a> {
    pub(crate) url: Url,
    /// The target of the request, for errors.
    pub(crate) what: &'a str,
    pub(crate) accept: Option<&'a str>,
    pub(crate) authorization: Option<HeaderValue>,
    /// The bytes to request.
    pub(crate) range: RangeRequest,
    /// Makes it a POST of this form.
    pub(crate) form: Option<String>,
    /// True if the requested content has a known digest, so that a response without TLS cannot be forged.
    pub(crate) has_digest: bool,
}

/// The last response of a chain of redirects.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) response: Response,
    /// The host that sent it.
    pub(crate) host: String,
    /// True if it was sent by another host, after a redirect. Its challenges must not be answered.
    pub(crate) redirected_away: bool,
}

// === impl Call ===

impl<'a> Call<'a> {
    pub(crate) fn get(url: Url, what: &'a str) -> Self {
        Self {
            url,
            what,
            accept: None,
            authorization: None,
            range: RangeRequest::default(),
            form: None,
            has_digest: false,
        }
    }
}

// === impl Transport ===

impl Transport {
    pub(crate) fn new(
        connect_timeout: Duration,
        idle_timeout: Duration,
        http_redirects: bool,
    ) -> Self {
        Self {
            clients: Mutex::default(),
            plain: Mutex::default(),
            connect_timeout,
            idle_timeout,
            http_redirects,
        }
    }

    pub(crate) fn idle_timeout(&self) -> Duration {
        self.idle_timeout
    }

    /// Sends a request with the settings of `host` and follows redirects. The host's headers and the
    /// authorization go to the origin of the first URL only; its own headers only if that is `host` itself.
    pub(crate) async fn send(&self, host: &Host, call: Call<'_>) -> Result<Reply> {
        let own_headers = origin(&call.url) == origin(&host.base);
        let may_downgrade =
            call.has_digest && (self.http_redirects || host.plain_http != PlainHttp::Never);
        let mut url = call.url.clone();
        // The URL of the first response, whose scheme may differ from that of the request.
        let mut asked: Option<Url> = None;
        let mut at_origin = true;
        let mut method = if call.form.is_some() {
            Method::POST
        } else {
            Method::GET
        };
        for _ in 0..=MAX_REDIRECTS {
            let at_host = at_origin && own_headers;
            if !at_host {
                // A registry chose this URL: it must not lead to a link-local service, as a cloud's metadata.
                guard::check_address(&url).map_err(|refusal| refused(call.what, &refusal))?;
            }
            let led_to = (!at_host).then_some(&url);
            let client = self.client(host, led_to, call.range.own_connection).await?;
            let mut request = client.request(method.clone(), url.clone());
            // Neither headers nor credentials follow a redirect to another origin.
            if at_origin {
                if own_headers {
                    request = request.headers(host.headers.clone());
                }
                if let Some(authorization) = &call.authorization {
                    request = request.header(AUTHORIZATION, authorization.clone());
                }
            }
            if let Some(accept) = call.accept {
                request = request.header(ACCEPT, accept);
            }
            if let Some(range) = call.range.header() {
                request = request.header(RANGE, range);
            }
            if let (&Method::POST, Some(form)) = (&method, &call.form) {
                request = with_form(request, form);
            }
            let led_to = (!at_host).then_some(&url);
            let response = self
                .send_once(request, (host, led_to), (&url, call.what))
                .await?;
            url = response.url().clone();
            let asked = asked.get_or_insert_with(|| url.clone());
            let name = shown(url.authority());
            let status = response.status();
            let location = response
                .headers()
                .get(LOCATION)
                .filter(|_| status.is_redirection());
            let Some(location) = location else {
                return Ok(Reply {
                    response,
                    host: name,
                    redirected_away: !at_origin,
                });
            };
            let next = redirect_target(&url, location, call.what, &name, may_downgrade)?;
            // Only these two redirects keep the method (RFC 9110, 15.4).
            if call.form.is_some() && !matches!(status.as_u16(), 307 | 308) {
                method = Method::GET;
            }
            // A form contains a secret, so it is not sent to another origin.
            if origin(&next) != origin(asked) {
                if method == Method::POST {
                    return Err(Error::protocol(
                        call.what,
                        format!("{name} redirects a token request elsewhere"),
                    ));
                }
                at_origin = false;
            }
            url = next;
        }
        Err(Error::protocol(
            call.what,
            format!(
                "{} redirects more than {MAX_REDIRECTS} times",
                shown(call.url.authority())
            ),
        ))
    }

    /// Sends a request for `what` to `url` without following redirects, with the other scheme if the host allows it
    /// and the first fails. `led_to` is the URL if the host has named it.
    async fn send_once(
        &self,
        request: reqwest::RequestBuilder,
        (host, led_to): (&Host, Option<&Url>),
        (url, what): (&Url, &str),
    ) -> Result<Response> {
        let plain_http = match led_to {
            None => host.plain_http,
            Some(_) => PlainHttp::Never,
        };
        let wrap = |failure: Failure| {
            failure.into_error((url, what), &tls_for(host, led_to), self.idle_timeout)
        };
        let (client, request) = request.build_split();
        let request = request.map_err(|error| wrap(Failure::Request(error.without_url())))?;
        let attempt = async |request: reqwest::Request| match timeout(
            self.idle_timeout,
            client.execute(request),
        )
        .await
        {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(Failure::Request(error.without_url())),
            Err(_) => Err(Failure::Idle),
        };
        let mut fallback = (plain_http != PlainHttp::Never && url.scheme() == "https")
            .then(|| plain_copy(&request))
            .flatten();
        let mut first = request;
        let key = url.authority();
        let known_plain = self.is_known_plain(key);
        if known_plain && let Some(plain) = &mut fallback {
            std::mem::swap(&mut first, plain);
        }
        let failure = match (attempt(first).await, &fallback) {
            (Ok(response), _) => return Ok(response),
            (Err(failure), Some(_)) if known_plain || failure.may_be_plain(plain_http) => failure,
            (Err(failure), _) => return Err(wrap(failure)),
        };
        self.remember_plain(key, false);
        let Some(second) = fallback else {
            return Err(wrap(failure));
        };
        match attempt(second).await {
            Ok(response) => {
                self.remember_plain(key, !known_plain);
                Ok(response)
            }
            // The first failure is that of the preferred scheme.
            Err(_) => Err(wrap(failure)),
        }
    }

    fn is_known_plain(&self, host: &str) -> bool {
        let plain = self.plain.lock();
        plain.get(host).is_some_and(|until| *until > Instant::now())
    }

    fn remember_plain(&self, host: &str, is_plain: bool) {
        let mut plain = self.plain.lock();
        let now = Instant::now();
        plain.retain(|name, until| *until > now && name != host);
        if is_plain {
            plain.insert(host.to_owned(), now + PLAIN_MEMORY);
        }
    }

    /// The connection pool for `host`, or for a URL that it names.
    async fn client(&self, host: &Host, led_to: Option<&Url>, own: bool) -> Result<Client> {
        let key = ClientKey {
            tls: tls_for(host, led_to),
            connect_timeout: host.dial_timeout.unwrap_or(self.connect_timeout),
            proxy: host.proxy.clone(),
            guarded: led_to.is_some(),
            own_connections: own,
        };
        let known = self.clients.lock().get(&key).cloned();
        if let Some(client) = known {
            return Ok(client);
        }
        let for_build = key.clone();
        // Reading the system's trust store takes tens of milliseconds.
        let built = blocking("the construction of a client", move || {
            Ok::<_, WorkLost>(build(&for_build))
        })
        .await;
        let client = built.map_err(|lost| Error::Unavailable {
            what: "connection pool".to_owned(),
            host: host.authority(),
            source: lost.into(),
        })??;
        let mut clients = self.clients.lock();
        if clients.len() >= MAX_CLIENTS {
            clients.clear();
        }
        // A concurrent call may have built one, which may have connections already.
        Ok(clients.entry(key).or_insert(client).clone())
    }
}

/// Makes a request a POST of this form.
fn with_form(request: reqwest::RequestBuilder, form: &str) -> reqwest::RequestBuilder {
    request
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(form.to_owned())
}

fn plain_copy(request: &reqwest::Request) -> Option<reqwest::Request> {
    let mut copy = request.try_clone()?;
    let mut url = request.url().clone();
    // The same port, with the scheme `http`.
    let port = url.port_or_known_default();
    url.set_scheme("http").ok()?;
    url.set_port(port).ok()?;
    *copy.url_mut() = url;
    Some(copy)
}

fn origin(url: &Url) -> (&str, Option<&str>, Option<u16>) {
    (url.scheme(), url.host_str(), url.port_or_known_default())
}

fn refused(what: &str, refusal: &guard::LinkLocal) -> Error {
    Error::protocol(what, shown(&refusal.to_string()))
}

/// The TLS settings for `host`, or for a URL that it names.
fn tls_for(host: &Host, led_to: Option<&Url>) -> Tls {
    led_to.map_or_else(|| host.tls.clone(), |url| tls_elsewhere(host, url))
}

/// The TLS settings for a URL that `host` names. For another host the certificate is verified, with the same
/// authorities, and the client certificate is not used.
fn tls_elsewhere(host: &Host, url: &Url) -> Tls {
    let same_machine =
        url.host_str() == host.base.host_str() || (is_loopback(url) && host.is_loopback());
    if same_machine {
        return host.tls.clone();
    }
    Tls {
        authorities: host.tls.authorities.clone(),
        clients: Vec::new(),
        skip_verify: None,
    }
}

fn redirect_target(
    from: &Url,
    location: &HeaderValue,
    what: &str,
    name: &str,
    may_downgrade: bool,
) -> Result<Url> {
    let wrong = |reason: &str| Error::protocol(what, format!("{name} redirects {reason}"));
    if location.len() > MAX_URL {
        return Err(wrong("to a URL of more than 16 KiB"));
    }
    let location =
        std::str::from_utf8(location.as_bytes()).map_err(|_| wrong("to no valid URL"))?;
    let mut next = from.join(location).map_err(|_| wrong("to no valid URL"))?;
    if !matches!(next.scheme(), "http" | "https") || next.host_str().is_none() {
        return Err(wrong("to something other than http"));
    }
    if from.scheme() == "https" && next.scheme() == "http" && !may_downgrade {
        return Err(wrong(
            "from TLS to plain HTTP; blobs and manifests by digest may come that way with registry.allow_http_redirects",
        ));
    }
    // Otherwise they would be sent as Basic authorization.
    if !next.username().is_empty() || next.password().is_some() {
        next.set_username("")
            .and_then(|()| next.set_password(None))
            .map_err(|()| wrong("to no valid URL"))?;
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::{ClientPair, Pem};

    #[test]
    fn redirects_to_other_schemes_and_downgrades_are_rejected() {
        let from = Url::parse("https://a.example/v2/x").unwrap();
        let target = |location: &'static str, may_downgrade| {
            redirect_target(
                &from,
                &HeaderValue::from_static(location),
                "it",
                "a.example",
                may_downgrade,
            )
            .map(|url| url.to_string())
        };
        assert_eq!(target("/y?z=1", false).unwrap(), "https://a.example/y?z=1");
        assert_eq!(
            target("https://u:p@b.example/y", false).unwrap(),
            "https://b.example/y"
        );
        assert_eq!(
            target("http://b.example/y", true).unwrap(),
            "http://b.example/y"
        );
        assert!(target("http://b.example/y", false).is_err());
        assert!(target("file:///etc/passwd", true).is_err());
        assert!(target("https://[", true).is_err());
        let long = HeaderValue::try_from(format!("/{}", "x".repeat(MAX_URL))).unwrap();
        assert!(redirect_target(&from, &long, "it", "a.example", true).is_err());
    }

    #[test]
    fn skip_verify_and_client_certificates_apply_only_to_their_host() {
        let pem = Pem {
            file: "ca".into(),
            content: b"ca".to_vec(),
        };
        let tls = Tls {
            authorities: vec![pem.clone()],
            clients: vec![ClientPair {
                certificate: pem.clone(),
                key: None,
            }],
            skip_verify: Some(true),
        };
        let reference = "reg.example/app:v1".parse().unwrap();
        let host = Host {
            tls: tls.clone(),
            ..Host::registry(&reference).unwrap()
        };
        let elsewhere = |url: &str| tls_elsewhere(&host, &Url::parse(url).unwrap());
        assert_eq!(elsewhere("https://reg.example:8443/token"), tls);
        for other in [
            "https://auth.example/token",
            "https://cdn.reg.example/blob",
            "https://127.0.0.1/",
        ] {
            assert_eq!(
                elsewhere(other),
                Tls {
                    authorities: vec![pem.clone()],
                    ..Tls::default()
                },
                "{other}"
            );
        }
        let reference = "127.0.0.1:5000/app:v1".parse().unwrap();
        let host = Host::registry(&reference).unwrap();
        let skips = |url: &str| tls_elsewhere(&host, &Url::parse(url).unwrap()).skip_verify;
        assert_eq!(skips("https://localhost:5001/token"), Some(true));
        assert_eq!(skips("https://auth.example/token"), None);
    }
}
