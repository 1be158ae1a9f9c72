//! The registered sessions that clients have not opened yet.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use url::Url;

use crate::session::{Command, Dial, Streams, TooMany};
use crate::token::Tokens;

/// The handle with which frontends register sessions. Cheap to clone; the registered sessions are dropped
/// with the server.
#[derive(Clone)]
pub struct Sessions {
    base: Url,
    tokens: Arc<Mutex<Tokens<Session>>>,
    open: Arc<[AtomicU64; Kind::ALL.len()]>,
}

/// Counts a session as open until this is dropped.
#[derive(Debug)]
pub(crate) struct Opened {
    open: Arc<[AtomicU64; Kind::ALL.len()]>,
    kind: Kind,
}

/// The kind of a session, which is the first segment of a URL's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Exec,
    Attach,
    PortForward,
}

/// The session that a token gives access to.
pub(crate) enum Session {
    /// Exec or attach.
    Process {
        kind: Kind,
        streams: Streams,
        command: Box<dyn Command>,
    },
    /// Port-forward.
    Ports {
        ports: Vec<u16>,
        dial: Arc<dyn Dial>,
    },
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
        Self {
            base,
            tokens: Arc::new(Mutex::new(tokens)),
            open: Arc::default(),
        }
    }

    /// The number of open sessions by kind: `exec`, `attach` and `portforward`.
    #[must_use]
    pub fn open(&self) -> [(&'static str, u64); 3] {
        Kind::ALL.map(|kind| {
            (
                kind.name(),
                self.open[kind as usize].load(Ordering::Relaxed),
            )
        })
    }

    /// Counts a session as open.
    pub(crate) fn opened(&self, kind: Kind) -> Opened {
        self.open[kind as usize].fetch_add(1, Ordering::Relaxed);
        Opened {
            open: Arc::clone(&self.open),
            kind,
        }
    }

    /// Registers an exec of `command`; returns its absolute URL, which can be opened once, within the token's
    /// lifetime.
    ///
    /// # Errors
    ///
    /// [`TooMany`]: resource exhausted.
    pub fn exec(&self, streams: Streams, command: Box<dyn Command>) -> Result<Url, TooMany> {
        self.register(Session::Process {
            kind: Kind::Exec,
            streams,
            command,
        })
    }

    /// Registers an attach to `command`; returns its absolute URL, which can be opened once, within the
    /// token's lifetime.
    ///
    /// # Errors
    ///
    /// [`TooMany`]: resource exhausted.
    pub fn attach(&self, streams: Streams, command: Box<dyn Command>) -> Result<Url, TooMany> {
        self.register(Session::Process {
            kind: Kind::Attach,
            streams,
            command,
        })
    }

    /// Registers a port-forward; returns its absolute URL, which can be opened once, within the token's
    /// lifetime. `ports` are those of the request: WebSocket clients of `v4.channel.k8s.io` cannot send their
    /// own, SPDY clients do.
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
        self.tokens.lock()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.open[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("base", &self.base.as_str())
            .finish_non_exhaustive()
    }
}
