//! The membership while the agent runs: the identity in use, and the managers that are known. Both are stored before
//! they are used.

use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::certificates::RootBundle;
use crate::error::Error;
use crate::identity::Identity;
use crate::managers::{Managers, Peer};
use crate::offer::DeviceCheck;
use crate::random;
use crate::store::Store;

/// State that sessions and renewals share.
#[derive(Debug)]
pub(crate) struct Membership {
    store: Store,
    identity: watch::Sender<Identity>,
    managers: Mutex<Managers>,
    /// True if a manager has requested a renewal of the present certificate.
    renewal: watch::Sender<bool>,
    /// Orders changes of the identity.
    change: tokio::sync::Mutex<()>,
}

// === impl Membership ===

impl Membership {
    /// The stored membership of this node.
    ///
    /// # Errors
    /// The managers cannot be read, or there is none.
    pub(crate) async fn new(store: Store, identity: Identity) -> Result<Self, Error> {
        let managers = store.run(Store::load_managers).await?;
        if managers.peers().next().is_none() {
            return Err(Error::NoManager);
        }
        Ok(Self {
            store,
            identity: watch::Sender::new(identity),
            managers: Mutex::new(managers),
            renewal: watch::Sender::new(false),
            change: tokio::sync::Mutex::default(),
        })
    }

    /// The identity in use.
    pub(crate) fn identity(&self) -> Identity {
        self.identity.borrow().clone()
    }

    /// Returns a receiver for changes of the identity.
    pub(crate) fn watch(&self) -> watch::Receiver<Identity> {
        self.identity.subscribe()
    }

    /// A certificate was renewed, and is used from now on. The roots may have changed meanwhile.
    ///
    /// # Errors
    /// It cannot be stored, or does not lead to the present roots.
    pub(crate) async fn renewed(&self, renewed: Identity) -> Result<(), Error> {
        let _change = self.change.lock().await;
        let roots = self.identity.borrow().roots().clone();
        let renewed = renewed
            .with_roots(roots, SystemTime::now())
            .map_err(|reason| Error::InvalidCertificate {
                what: "the renewed certificate of this node",
                reason: reason.to_string(),
            })?;
        let stored = renewed.clone();
        self.store
            .run(move |store| store.save_certificate(&stored))
            .await?;
        self.identity.send_replace(renewed);
        self.renewal.send_replace(false);
        Ok(())
    }

    /// A manager has sent these roots. They are used from now on if the certificate of this node leads to them;
    /// otherwise the certificate has to be renewed first. Returns whether they are in use.
    ///
    /// # Errors
    /// They are none, or cannot be stored.
    pub(crate) async fn offered_roots(&self, pem: &[u8]) -> Result<bool, Error> {
        let _change = self.change.lock().await;
        let current = self.identity();
        if pem.is_empty() || current.roots().pem() == pem {
            return Ok(true);
        }
        let changed = match current.with_roots(RootBundle::from_pem(pem)?, SystemTime::now()) {
            Ok(changed) => changed,
            Err(reason) => {
                tracing::warn!(%reason, "the swarm has other roots, to which the certificate of this node does not lead");
                return Ok(false);
            }
        };
        let stored = changed.clone();
        self.store
            .run(move |store| store.save_roots(&stored))
            .await?;
        self.identity.send_replace(changed);
        tracing::info!("the swarm has other root certificates now");
        Ok(true)
    }

    /// A manager asks for a renewal of this certificate.
    pub(crate) fn ask_for_renewal(&self, of: &Identity) {
        // A request about a certificate that was renewed meanwhile is done already.
        let is_present = self.identity.borrow().chain() == of.chain();
        if is_present {
            self.renewal
                .send_if_modified(|asked| !std::mem::replace(asked, true));
        }
    }

    /// Waits until a manager asks for a renewal. Cancel-safe.
    pub(crate) async fn renewal_is_asked_for(&self) {
        // The sender is a field, so that it does not vanish.
        let _ = self.renewal.subscribe().wait_for(|asked| *asked).await;
    }

    /// Records the list of managers that a manager has sent.
    pub(crate) async fn told_managers(&self, peers: impl IntoIterator<Item = Peer>) {
        let changed = {
            let mut managers = self.managers.lock();
            managers.replace(peers).then(|| managers.clone())
        };
        let Some(managers) = changed else { return };
        if let Err(error) = self
            .store
            .run(move |store| store.save_managers(&managers))
            .await
        {
            // The next start of the daemon tries those that were stored before.
            tracing::warn!(
                error = error.report(),
                "cannot store the managers of the swarm"
            );
        }
    }

    /// Returns what was concluded about the managers' check of devices; `None` also if it cannot be read, which does not make the
    /// membership unusable.
    pub(crate) async fn device_check(&self) -> Option<DeviceCheck> {
        let cluster = self.identity().cluster().to_owned();
        let read = self
            .store
            .run(move |store| store.load_device_check(&cluster));
        match read.await {
            Ok(kept) => kept,
            Err(error) => {
                tracing::warn!(
                    error = error.report(),
                    "it is not known how the managers of the swarm check devices: it is learned again, from a task that they reject"
                );
                None
            }
        }
    }

    /// Something was concluded about the managers' check of devices.
    pub(crate) async fn concluded_device_check(&self, check: DeviceCheck) {
        let cluster = self.identity().cluster().to_owned();
        if let Err(error) = self
            .store
            .run(move |store| store.save_device_check(&cluster, check))
            .await
        {
            tracing::warn!(
                error = error.report(),
                "cannot store how the managers of the swarm check devices: the next start of the daemon learns it again, from \
                 a task that they reject"
            );
        }
    }

    /// The address of a manager to connect to.
    ///
    /// # Errors
    /// [`Error::NoManager`].
    pub(crate) fn choose_manager(&self) -> Result<String, Error> {
        let managers = self.managers.lock();
        managers
            .choose(random::number())
            .map(|peer| peer.address.clone())
            .ok_or(Error::NoManager)
    }

    /// Records whether a manager has served this node.
    pub(crate) fn judge_manager(&self, address: &str, has_answered: bool) {
        let mut managers = self.managers.lock();
        if has_answered {
            managers.answered(address);
        } else {
            managers.failed(address);
        }
    }
}
