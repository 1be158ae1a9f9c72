//! The state of the status page between requests: sessions, and the latest readings.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use switchyard_core::Result;
use switchyard_operator_api::PageLinkView;

use crate::config::AdminConfig;
use http::HeaderMap;
use http::header::COOKIE;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::log_tail::LogThreads;
use super::sessions::{PageSecret, SESSION_TIME, Sessions, TICKET_TIME};
use super::usage::UsageHistory;
use crate::hosts::KnownHosts;

/// Maximum number of cookies with the page's name that are examined.
const COOKIES: usize = 4;

/// The status page of a daemon. Clones share it.
#[derive(Debug, Clone)]
pub struct StatusPage(Arc<PageState>);

#[derive(Debug)]
struct PageState {
    hosts: KnownHosts,
    /// The name of the cookie: the browsers of people who have several nodes send the cookies of all of them to `localhost`.
    cookie: String,
    /// The name of the node.
    node: String,
    address: OnceLock<SocketAddr>,
    sessions: Mutex<Sessions>,
    usage: UsageHistory,
    logs: LogThreads,
}

// === impl StatusPage ===

impl StatusPage {
    /// The page of the daemon with these settings and this state directory.
    #[must_use]
    pub fn new(admin: &AdminConfig, state: &Path) -> Self {
        let node = fs::read_to_string("/proc/sys/kernel/hostname")
            .unwrap_or_default()
            .trim()
            .to_owned();
        let digest = Sha256::digest(format!("{node}\0{}", state.display()));
        let digits: String = digest
            .iter()
            .take(4)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Self(Arc::new(PageState {
            hosts: KnownHosts::new(admin.listen, &admin.hosts),
            cookie: format!("switchyard-{digits}"),
            node,
            address: OnceLock::new(),
            sessions: Mutex::default(),
            usage: UsageHistory::default(),
            logs: LogThreads::default(),
        }))
    }

    /// Sets the address on which it is served, once.
    pub fn set_address(&self, address: SocketAddr) {
        // A daemon has one.
        let _ = self.0.address.set(address);
    }

    /// The host names under which it is served.
    pub(crate) fn hosts(&self) -> &KnownHosts {
        &self.0.hosts
    }

    /// The name of the node.
    pub(crate) fn node(&self) -> &str {
        &self.0.node
    }

    /// The usage of the tasks.
    pub(crate) fn usage(&self) -> &UsageHistory {
        &self.0.usage
    }

    /// The threads that read logs.
    pub(crate) fn logs(&self) -> &LogThreads {
        &self.0.logs
    }

    /// Makes a link that opens the page once; `None` while it is not served.
    ///
    /// # Errors
    /// `Internal` if the kernel gives no random bytes.
    pub(crate) fn link(&self) -> Result<Option<PageLinkView>> {
        let Some(address) = self.0.address.get().copied() else {
            return Ok(None);
        };
        let ticket = self.0.sessions.lock().issue(Instant::now())?;
        Ok(Some(PageLinkView {
            url: format!(
                "http://{}/enter?ticket={}",
                reachable(address),
                ticket.expose()
            ),
            valid_seconds: TICKET_TIME.as_secs(),
            is_loopback: address.ip().to_canonical().is_loopback(),
        }))
    }

    /// Begins a session with the ticket of a link, and returns its cookie; `None` if the link is not valid any more.
    ///
    /// # Errors
    /// As for [`StatusPage::link`].
    pub(crate) fn enter(&self, ticket: &str) -> Result<Option<String>> {
        let begun = self.0.sessions.lock().begin(ticket, Instant::now())?;
        Ok(begun.map(|session| self.cookie_of(&session)))
    }

    /// Ends the session of a request; returns the cookie that takes the place of its own. `None` if it presents none, as a
    /// request that another origin has made: browsers then keep theirs.
    pub(crate) fn leave(&self, headers: &HeaderMap) -> Option<String> {
        let now = Instant::now();
        let mut ended = None;
        for session in self.presented(headers) {
            self.0.sessions.lock().end(session, now);
            ended = Some(format!(
                "{}=; HttpOnly; SameSite=Strict; Path=/; Max-Age=0",
                self.0.cookie
            ));
        }
        ended
    }

    /// Returns whether a request belongs to a session.
    pub(crate) fn is_open(&self, headers: &HeaderMap) -> bool {
        let now = Instant::now();
        self.presented(headers)
            .any(|session| self.0.sessions.lock().is_open(session, now))
    }

    fn cookie_of(&self, session: &PageSecret) -> String {
        let seconds = SESSION_TIME.as_secs();
        let Self(state) = self;
        // No request that another site causes has the cookie, and no script can read it.
        format!(
            "{}={}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}",
            state.cookie,
            session.expose()
        )
    }

    /// The values of the page's cookie in a request.
    fn presented<'a>(&'a self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a str> {
        // Those of other programs of this host are on the same line, and may have any bytes.
        let pairs = headers
            .get_all(COOKIE)
            .iter()
            .flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
        let pairs = pairs.filter_map(|pair| str::from_utf8(pair).ok()?.trim().split_once('='));
        pairs
            .filter(|(name, _)| *name == self.0.cookie)
            .map(|(_, value)| value)
            .take(COOKIES)
    }
}

/// An address by which the node itself reaches a listener.
fn reachable(listener: SocketAddr) -> SocketAddr {
    match listener.ip() {
        IpAddr::V4(address) if address.is_unspecified() => {
            (Ipv4Addr::LOCALHOST, listener.port()).into()
        }
        IpAddr::V6(address) if address.is_unspecified() => {
            (Ipv6Addr::LOCALHOST, listener.port()).into()
        }
        IpAddr::V4(_) | IpAddr::V6(_) => listener,
    }
}
