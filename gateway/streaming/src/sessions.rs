//! What frontends have registered and clients have not opened yet.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use url::Url;

use crate::session::{Command, Dial, Streams, TooMany};
use crate::token::Tokens;

/// Where frontends register sessions. Cheap to clone; what is registered dies with the server.
#[derive(Clone)]
pub struct Sessions {
    base: Url,
    tokens: Arc<Mutex<Tokens<Session>>>,
    open: Arc<[AtomicU64; Kind::ALL.len()]>,
}

/// A session that a client has opened, until this is dropped.
#[derive(Debug)]
pub(crate) struct Opened {
    open: Arc<[AtomicU64; Kind::ALL.len()]>,
    kind: Kind,
}

/// The first part of a URL's path: what is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Exec,
    Attach,
    PortForward,
}

/// What a token stands for.
pub(crate) enum Session {
    /// Exec or attach.
    Process { kind: Kind, streams: Streams, command: Box<dyn Command> },
    /// Port-forward.
    Ports { ports: Vec<u16>, dial: Arc<dyn Dial> },
}

// === impl Kind ===

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Exec, Self::Attach, Self::PortForward];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }
}

// === impl Session ===

impl Session {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Process { kind, .. } => *kind,
            Self::Ports { .. } => Kind::PortForward,
        }
    }
}

// === impl Sessions ===

impl Sessions {
    pub(crate) fn new(base: Url, tokens: Tokens<Session>) -> Self {
        Self { base, tokens: Arc::new(Mutex::new(tokens)), open: Arc::default() }
    }

    /// How many sessions clients have open now, by what they are: `exec`, `attach` and `portforward`.
    #[must_use]
    pub fn open(&self) -> [(&'static str, u64); 3] {
        Kind::ALL.map(|kind| (kind.name(), self.open[kind as usize].load(Ordering::Relaxed)))
    }

    /// Counts a session as open.
    pub(crate) fn opened(&self, kind: Kind) -> Opened {
        self.open[kind as usize].fetch_add(1, Ordering::Relaxed);
        Opened { open: Arc::clone(&self.open), kind }
    }

    /// The absolute URL at which `command` is executed, once, within the token's lifetime.
    ///
    /// # Errors
    ///
    /// [`TooMany`]: resource exhausted.
    pub fn exec(&self, streams: Streams, command: Box<dyn Command>) -> Result<Url, TooMany> {
        self.register(Session::Process { kind: Kind::Exec, streams, command })
    }

    /// The absolute URL at which `command` is attached to, once, within the token's lifetime.
    ///
    /// # Errors
    ///
    /// [`TooMany`]: resource exhausted.
    pub fn attach(&self, streams: Streams, command: Box<dyn Command>) -> Result<Url, TooMany> {
        self.register(Session::Process { kind: Kind::Attach, streams, command })
    }

    /// The absolute URL at which ports are forwarded, once, within the token's lifetime. `ports` are those of the
    /// request; WebSocket clients of `v4.channel.k8s.io` have no other way to say them, SPDY clients say their own.
    ///
    /// # Errors
    ///
    /// [`TooMany`]: resource exhausted.
    pub fn port_forward(&self, ports: Vec<u16>, dial: Arc<dyn Dial>) -> Result<Url, TooMany> {
        self.register(Session::Ports { ports, dial })
    }

    fn register(&self, session: Session) -> Result<Url, TooMany> {
        let kind = session.kind();
        let token = self.tokens().issue(session, Instant::now())?;
        let mut url = self.base.clone();
        url.path_segments_mut()
            .expect("the base was checked to have a host, so it has a path")
            .pop_if_empty()
            .extend([kind.name(), &token]);
        Ok(url)
    }

    pub(crate) fn tokens(&self) -> MutexGuard<'_, Tokens<Session>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.open[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("base", &self.base.as_str()).finish_non_exhaustive()
    }
}
