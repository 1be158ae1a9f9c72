//! The files of a membership, in a directory that only root can enter.
//!
//! | file | content |
//! |---|---|
//! | `root-ca.crt` | the roots of the cluster, as managers serve them |
//! | `node.pem` | the certificate of the node, those behind it, and the private key |
//! | `managers.json` | the managers in the last list that was received |
//! | `join.json` | a join that waits for its certificate |
//! | `departure.json` | which swarm the node has left or was removed from, until it joins again |
//! | `device-check.json` | how the managers of a cluster check devices; of another cluster it is ignored |
//!
//! The node is a member if and only if there is `node.pem`, and `departure.json` does not say that it has
//! left: then the rest of the leave is to be done. Certificate and key are one file because they belong
//! together: each file is replaced by a rename, so that a kill leaves the old or the new one. New roots are
//! written before a new certificate when a node joins, and after it when a CA is rotated; in both cases the
//! certificate that is stored leads to the roots that are stored.
//!
//! A thread that writes cannot be interrupted, its caller may be gone, and the disk may be slow. So pieces of
//! work with the files run one after the other, in the order of the calls ([`Store::run`]): the writes of an
//! abandoned join are complete before the leave that has ended it removes everything.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use switchyard_crash_points::CrashPoint;
use switchyard_linux::{WorkLost, blocking};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::certificates::{NodeChain, RootBundle};
use crate::error::Error;
use crate::identity::Identity;
use crate::key::NodeKey;
use crate::managers::{Managers, Peer};
use crate::token::RootDigest;

pub(crate) mod device_check;
mod files;
#[cfg(test)]
pub(crate) mod held_points;
#[cfg(test)]
mod tests;

const ROOTS: &str = "root-ca.crt";
const NODE: &str = "node.pem";
const MANAGERS: &str = "managers.json";
const JOIN: &str = "join.json";
const DEPARTURE: &str = "departure.json";
const DEVICE_CHECK: &str = "device-check.json";

const FILES: [&str; 6] = [ROOTS, NODE, MANAGERS, JOIN, DEPARTURE, DEVICE_CHECK];

/// First line of the key in `node.pem`, after the certificates.
const KEY_BEGIN: &[u8] = b"-----BEGIN PRIVATE KEY-----";

/// Limit for the disk.
const DISK_LIMIT: Duration = Duration::from_secs(30);

/// The version of the format of `join.json`, and that of `departure.json`.
///
/// A field that is added does not change a version, and a version that follows these reads them too.
const JOIN_VERSION: u32 = 1;
const DEPARTURE_VERSION: u32 = 1;

/// The directory of a membership. Clones share it; nobody else may use it.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
    /// Belongs to the thread that works with the files.
    turn: Arc<Mutex<()>>,
    #[cfg(test)]
    held: held_points::HeldPoints,
}

/// A join that a manager has made a node for, and that waits for its certificate.
#[derive(Debug, Clone)]
pub struct PendingJoin {
    /// The id of the node.
    pub node: String,
    /// The roots of the cluster.
    pub roots: RootDigest,
    /// The request that the certificate must be for, as PEM.
    pub request: String,
    /// The key of the request.
    pub key: NodeKey,
}

/// A cluster that the node is no member of any more. While it is stored, the node joins none by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// The id of the cluster; empty if it was not known any more.
    pub cluster: String,
    /// The id of the node; empty if there was none, or it was not known any more.
    pub node: String,
    /// The cause.
    pub cause: DepartureCause,
}

/// The reason why a node is no longer a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DepartureCause {
    /// An operator of this node wanted it to leave.
    Left,
    /// Somebody removed the node from the cluster. Its certificate is still stored.
    Removed,
}

/// [`Departure`] as it is stored. Fields that are not known are ignored.
#[derive(Serialize, Deserialize)]
struct DepartureFile {
    version: u32,
    cluster: String,
    node: String,
    cause: DepartureCause,
}

/// [`PendingJoin`] as it is stored. Fields that are not known are ignored.
#[derive(Serialize, Deserialize)]
struct JoinFile {
    version: u32,
    node: String,
    roots: String,
    request: String,
    key: String,
}

/// A manager as it is stored.
#[derive(Serialize, Deserialize)]
struct ManagerEntry {
    node_id: String,
    addr: String,
}

// === impl Store ===

impl Store {
    /// The membership in this directory, which is created when something is stored.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            turn: Arc::default(),
            #[cfg(test)]
            held: held_points::HeldPoints::default(),
        }
    }

    /// Runs `work` on the files, on a thread for blocking calls, after all work that was begun before. If
    /// dropped while it waits for that, nothing is done; later, the work still completes, and whatever
    /// follows waits for it.
    ///
    /// # Errors
    /// Those of `work`; [`Error::DiskLate`] if the disk takes more than 30 s, for this or for work that was
    /// begun before. The state of the files is known once the disk answers again.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let store = self.clone();
        let done = async {
            let turn = Arc::clone(&self.turn).lock_owned().await;
            let working = blocking("a call on the files of a membership", move || {
                let _until_it_returns = turn;
                Ok::<_, WorkLost>(work(&store))
            });
            working
                .await
                .map_err(|lost| self.failed("use", "")(lost.into()))?
        };
        timeout(DISK_LIMIT, done).await.unwrap_or_else(|_| {
            Err(Error::DiskLate {
                path: self.dir.clone(),
            })
        })
    }

    /// The membership of this node; `None` if it is in no cluster. Blocks on the file system.
    ///
    /// # Errors
    /// - [`Error::File`], [`Error::InvalidFile`].
    /// - [`Error::CertificateExpired`], [`Error::CertificateNotValidYet`], [`Error::ManagerRole`].
    pub fn load(&self, now: SystemTime) -> Result<Option<Identity>, Error> {
        let Some(node) = self.read(NODE)? else {
            return Ok(None);
        };
        let unusable = |name: &str, reason: &Error| Error::InvalidFile {
            path: self.dir.join(name),
            reason: reason.report(),
        };
        let roots = self.read(ROOTS)?.ok_or_else(|| Error::InvalidFile {
            path: self.dir.join(ROOTS),
            reason: "it is missing".to_owned(),
        })?;
        let roots = RootBundle::from_pem(&roots).map_err(|error| unusable(ROOTS, &error))?;
        let begin = node
            .windows(KEY_BEGIN.len())
            .position(|bytes| bytes == KEY_BEGIN)
            .unwrap_or(node.len());
        let (chain, key) = node.split_at(begin);
        let chain = NodeChain::from_pem(chain).map_err(|error| unusable(NODE, &error))?;
        let key = NodeKey::from_pem(key).map_err(|error| unusable(NODE, &error))?;
        let identity = match Identity::new(roots, chain, key, now) {
            Err(error @ Error::InvalidCertificate { .. }) => return Err(unusable(NODE, &error)),
            other => other?,
        };
        // A kill after the certificate was stored leaves the join that it ended.
        self.forget_join()?;
        Ok(Some(identity))
    }

    /// Stores a new membership, which ends the join that waited for it. Blocks on the file system.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn save_joined(&self, identity: &Identity) -> Result<(), Error> {
        self.save_roots(identity)?;
        // Beside a certificate, it would mean a leave that is not complete.
        self.remove(DEPARTURE)?;
        self.reach(CrashPoint::SwarmDepartureForgotten);
        self.save_certificate(identity)?;
        self.forget_join()
    }

    /// Stores a renewed certificate with its key. Blocks on the file system.
    ///
    /// # Errors
    /// [`Error::File`]; then the old one is stored.
    pub fn save_certificate(&self, identity: &Identity) -> Result<(), Error> {
        let mut contents = identity.chain().pem().to_owned();
        if !contents.ends_with(b"\n") {
            contents.push(b'\n');
        }
        contents.extend_from_slice(identity.key().to_pem().as_bytes());
        self.replace(NODE, &contents)?;
        self.reach(CrashPoint::NodeCertificateSaved);
        Ok(())
    }

    /// Stores the roots of the cluster. Blocks on the file system.
    ///
    /// # Errors
    /// [`Error::File`]; then the old ones are stored.
    pub fn save_roots(&self, identity: &Identity) -> Result<(), Error> {
        self.replace(ROOTS, identity.roots().pem())?;
        self.reach(CrashPoint::SwarmRootsSaved);
        Ok(())
    }

    /// Stores a join that waits for its certificate. Blocks on the file system.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn save_join(&self, join: &PendingJoin) -> Result<(), Error> {
        let file = JoinFile {
            version: JOIN_VERSION,
            node: join.node.clone(),
            roots: join.roots.to_string(),
            request: join.request.clone(),
            key: join.key.to_pem(),
        };
        let contents = serde_json::to_vec_pretty(&file)
            .map_err(|fault| self.failed("write", JOIN)(fault.into()))?;
        self.replace(JOIN, &contents)?;
        self.reach(CrashPoint::JoinRequestSaved);
        Ok(())
    }

    /// The join that waits for its certificate. Blocks on the file system.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::InvalidFile`].
    pub fn load_join(&self) -> Result<Option<PendingJoin>, Error> {
        let Some(contents) = self.read(JOIN)? else {
            return Ok(None);
        };
        let join = pending(&contents).map_err(|reason| Error::InvalidFile {
            path: self.dir.join(JOIN),
            reason,
        })?;
        Ok(Some(join))
    }

    /// Forgets the join that waits for its certificate. Idempotent. Blocks on the file system.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn forget_join(&self) -> Result<(), Error> {
        self.remove(JOIN)?;
        self.reach(CrashPoint::JoinRequestForgotten);
        Ok(())
    }

    /// Stores the managers. Blocks on the file system.
    ///
    /// # Errors
    /// [`Error::File`]; then the old ones are stored.
    pub fn save_managers(&self, managers: &Managers) -> Result<(), Error> {
        let entries: Vec<ManagerEntry> = managers
            .peers()
            .map(|peer| ManagerEntry {
                node_id: peer.node.clone(),
                addr: peer.address.clone(),
            })
            .collect();
        let contents = serde_json::to_vec_pretty(&entries)
            .map_err(|fault| self.failed("write", MANAGERS)(fault.into()))?;
        self.replace(MANAGERS, &contents)?;
        self.reach(CrashPoint::SwarmManagersSaved);
        Ok(())
    }

    /// The managers that were stored. Blocks on the file system.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::InvalidFile`].
    pub fn load_managers(&self) -> Result<Managers, Error> {
        let Some(contents) = self.read(MANAGERS)? else {
            return Ok(Managers::default());
        };
        managers(&contents).map_err(|reason| Error::InvalidFile {
            path: self.dir.join(MANAGERS),
            reason,
        })
    }

    /// Forgets a join that is not to be continued, with all that was stored for it. Idempotent. Blocks on the file
    /// system.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn abandon_join(&self) -> Result<(), Error> {
        self.forget_join()?;
        if self.read(NODE)?.is_none() {
            // A draft of it.
            self.remove(NODE)?;
            self.remove(MANAGERS)?;
            self.remove(ROOTS)?;
            self.remove_dir_if_empty()?;
        }
        Ok(())
    }

    /// Stores that the node is no member any more. Blocks on the file system.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn save_departure(&self, departure: &Departure) -> Result<(), Error> {
        let Departure {
            cluster,
            node,
            cause,
        } = departure.clone();
        let file = DepartureFile {
            version: DEPARTURE_VERSION,
            cluster,
            node,
            cause,
        };
        let contents = serde_json::to_vec_pretty(&file)
            .map_err(|fault| self.failed("write", DEPARTURE)(fault.into()))?;
        self.replace(DEPARTURE, &contents)?;
        self.reach(CrashPoint::SwarmDepartureSaved);
        Ok(())
    }

    /// The cluster that the node is no member of any more. Blocks on the file system.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::InvalidFile`].
    pub fn load_departure(&self) -> Result<Option<Departure>, Error> {
        let Some(contents) = self.read(DEPARTURE)? else {
            return Ok(None);
        };
        let unusable = |reason| Error::InvalidFile {
            path: self.dir.join(DEPARTURE),
            reason,
        };
        let file: DepartureFile =
            serde_json::from_slice(&contents).map_err(|fault| unusable(place_of(&fault)))?;
        let DepartureFile {
            version,
            cluster,
            node,
            cause,
        } = file;
        if version != DEPARTURE_VERSION {
            return Err(unusable(format!("its version is {version}")));
        }
        Ok(Some(Departure {
            cluster,
            node,
            cause,
        }))
    }

    /// Stores that the node has left its cluster, and removes everything else. Idempotent: if it is killed, the next
    /// call does the rest. Blocks on the file system.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn leave(&self, departure: &Departure) -> Result<(), Error> {
        self.save_departure(departure)?;
        self.remove_membership()
    }

    /// Removes everything. Idempotent. Blocks on the file system.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn wipe(&self) -> Result<(), Error> {
        self.remove_membership()?;
        self.remove(DEPARTURE)?;
        self.remove_dir_if_empty()
    }

    /// Removes what interrupted writes have left, also private keys. To be called before anything is written. Blocks on the
    /// file system.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn remove_drafts(&self) -> Result<(), Error> {
        FILES.iter().try_for_each(|name| {
            // Version 0.1 had drafts in the place of the extension.
            self.remove_path(&self.dir.join(name).with_extension("new"))?;
            self.remove_path(&self.draft_of(name))
        })
    }

    fn remove_membership(&self) -> Result<(), Error> {
        self.forget_join()?;
        self.remove(DEVICE_CHECK)?;
        self.remove(NODE)?;
        self.reach(CrashPoint::NodeCertificateRemoved);
        self.remove(MANAGERS)?;
        self.remove(ROOTS)
    }
}

/// Reads a stored join.
pub(crate) fn pending(contents: &[u8]) -> Result<PendingJoin, String> {
    let file: JoinFile = serde_json::from_slice(contents).map_err(|fault| place_of(&fault))?;
    if file.version != JOIN_VERSION {
        return Err(format!("its version is {}", file.version));
    }
    let roots = RootDigest::from_base36(&file.roots).ok_or("its digest is no number")?;
    let key = NodeKey::from_pem(file.key.as_bytes()).map_err(|error| error.report())?;
    Ok(PendingJoin {
        node: file.node,
        roots,
        request: file.request,
        key,
    })
}

/// Reads stored managers.
pub(crate) fn managers(contents: &[u8]) -> Result<Managers, String> {
    let entries: Vec<ManagerEntry> =
        serde_json::from_slice(contents).map_err(|fault| place_of(&fault))?;
    Ok(Managers::of(entries.into_iter().map(|entry| Peer {
        node: entry.node_id,
        address: entry.addr,
    })))
}

/// Describes where a file is not valid JSON: the library's text may show a part of the private key.
fn place_of(fault: &serde_json::Error) -> String {
    format!(
        "line {}, column {} is not as this program writes it",
        fault.line(),
        fault.column()
    )
}
