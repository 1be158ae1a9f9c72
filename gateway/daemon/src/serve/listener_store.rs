//! Listeners that outlive the daemon: the logkeeper keeps them open, so that clients wait for the next daemon instead of
//! being refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use switchyard_core::backoff::Backoff;
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::report;
use switchyard_logkeeper::{Error, StoreClient, TakenDescriptor};
use switchyard_socket::listener::{
    GuardedListener, InheritedListener, ListenError, SharedListener,
};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::managed::State;
use crate::managed::restart::KeptListeners;

/// Limit for taking the listeners: without them, clients who wait at the predecessor's are lost.
const TAKE_LIMIT: Duration = Duration::from_secs(1);

/// The first and the longest pause until the listeners are put again, into a logkeeper that was restarted or is of another
/// version. Until then a kill of the daemon has its clients refused.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// A socket of the daemon, by the name of its listener in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StoredSocket {
    /// For the kubelet.
    Cri,
    /// For the launchers of Nomad agents.
    Nomad,
    /// For commands.
    Admin,
}

/// The listeners of the predecessor.
#[derive(Debug, Default)]
pub(super) struct InheritedListeners(BTreeMap<StoredSocket, InheritedListener>);

/// Listeners to be kept for the successor.
#[derive(Debug, Default)]
pub(super) struct SharedListeners(BTreeMap<StoredSocket, SharedListener>);

/// The logkeeper that keeps listeners.
#[derive(Debug)]
pub(super) struct ListenerKeeper {
    /// Its socket.
    pub(super) socket: PathBuf,
    /// Its state: each change is a reason to try at once.
    pub(super) state: watch::Receiver<State>,
    /// Reports whether it keeps them.
    pub(super) kept: watch::Sender<KeptListeners>,
}

// === impl StoredSocket ===

impl StoredSocket {
    const ALL: [Self; 3] = [Self::Cri, Self::Nomad, Self::Admin];

    /// The name, which later versions know too.
    const fn name(self) -> &'static str {
        match self {
            Self::Cri => "cri",
            Self::Nomad => "nomad",
            Self::Admin => "admin",
        }
    }
}

// === impl InheritedListeners ===

impl InheritedListeners {
    /// Takes what the predecessor has put into this logkeeper; nothing if that does not answer at once. The caller
    /// holds the locks of the directories, so that no other daemon uses the listeners.
    pub(super) async fn take(logkeeper: &Path) -> Self {
        match timeout(TAKE_LIMIT, take_all(logkeeper)).await {
            Ok(Ok(listeners)) => listeners,
            Ok(Err(Error::Unavailable { .. })) => {
                tracing::debug!("the logkeeper does not run: listeners are bound");
                Self::default()
            }
            Ok(Err(error)) => {
                let error = report(&error);
                tracing::warn!(
                    error,
                    "cannot take the listeners of the predecessor: its waiting clients are lost"
                );
                Self::default()
            }
            Err(_elapsed) => {
                tracing::warn!(limit = ?TAKE_LIMIT, "the logkeeper does not answer: clients that wait at the listeners of the predecessor are lost");
                Self::default()
            }
        }
    }

    /// Removes the sockets that this daemon does not serve.
    pub(super) fn discard(self) {
        self.0.into_values().for_each(InheritedListener::discard);
    }

    /// Removes one from the others.
    pub(super) fn remove(&mut self, socket: StoredSocket) -> Option<InheritedListener> {
        self.0.remove(&socket)
    }
}

async fn take_all(logkeeper: &Path) -> Result<InheritedListeners, Error> {
    let mut listeners = BTreeMap::new();
    let Some(mut store) = StoreClient::connect(logkeeper).await? else {
        return Ok(InheritedListeners::default());
    };
    for socket in StoredSocket::ALL {
        if let Some(TakenDescriptor { descriptor, note }) = store.take(socket.name()).await? {
            listeners.insert(socket, InheritedListener::new(descriptor, note));
        }
    }
    Ok(InheritedListeners(listeners))
}

// === impl SharedListeners ===

impl SharedListeners {
    /// Duplicates these listeners.
    pub(super) fn of<'a>(
        listeners: impl IntoIterator<Item = (StoredSocket, &'a GuardedListener)>,
    ) -> Result<Self, ListenError> {
        let shared = listeners
            .into_iter()
            .map(|(socket, listener)| listener.share().map(|shared| (socket, shared)));
        shared.collect::<Result<_, _>>().map(Self)
    }

    /// Keeps the listeners in this logkeeper until it is dropped, and then for a minute. While they are there, the files
    /// of the sockets stay when the daemon ends. Never ends. Cancel-safe.
    pub(super) async fn keep(self, keeper: ListenerKeeper) {
        let ListenerKeeper {
            socket,
            mut state,
            kept,
        } = keeper;
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        loop {
            let now = match self.put(&socket).await {
                Ok(Some(mut store)) => {
                    kept.send_replace(KeptListeners::In(store.process()));
                    store.broken().await;
                    backoff.reset();
                    KeptListeners::Nowhere
                }
                Ok(None) => KeptListeners::Unsupported,
                Err(error) => {
                    let error = report(&error);
                    tracing::debug!(error, "the logkeeper does not keep the listeners");
                    KeptListeners::Nowhere
                }
            };
            self.leave_files(false);
            kept.send_replace(now);
            tokio::select! {
                () = backoff.wait() => {}
                // Its sender is gone only when the daemon ends.
                Ok(()) = state.changed() => {}
            }
        }
    }

    /// Puts all listeners into the store, where they stay until it is broken; `None` if the logkeeper has none.
    async fn put(&self, logkeeper: &Path) -> Result<Option<StoreClient>, Error> {
        let Some(mut store) = StoreClient::connect(logkeeper).await? else {
            return Ok(None);
        };
        // Before they are stored: a client of a daemon that ends in between finds a socket without a listener, at worst, and
        // never a listener without its socket.
        self.leave_files(true);
        reach(CrashPoint::SocketsLeft);
        for (socket, listener) in &self.0 {
            store
                .put(socket.name(), listener.note(), listener.descriptor())
                .await?;
        }
        Ok(Some(store))
    }

    fn leave_files(&self, is_left: bool) {
        for listener in self.0.values() {
            listener.file().leave(is_left);
        }
    }
}
