//! The snapshots of a snapshotter, as containerd lists them, and which snapshotters do not answer.
//!
//! A snapshotter may be a process of its own behind containerd: its absence concerns the images and tasks that
//! it serves, and nobody else.

use std::collections::BTreeMap;
use std::time::Duration;

use containerd_client::services::v1::snapshots as snap;
use parking_lot::Mutex;
use switchyard_core::backend::Condition;
use switchyard_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::content::next_message;
use crate::base::error::timed_out;
use crate::base::random::fill_random;
use crate::client::features::SNAPSHOTTER_UNUSABLE;
use crate::client::{Client, QUICK, call, ignore_not_found};

/// The label of a snapshot that may not be on disk; its value is the id of the boot in which it was created.
pub(crate) const UNSYNCED: &str = "switchyard.io/unsynced";

/// Limit for a snapshotter to list its snapshots or their sizes, where others wait for it.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Time for which a snapshotter that did not answer is not asked for its usage again.
const AWAY_AGE: Duration = Duration::from_secs(60);

/// The properties of a snapshot that matter for lost layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotInfo {
    pub(crate) parent: String,
    /// True if it is committed, and so a layer. Otherwise it is active or a view, and may be in use.
    pub(crate) committed: bool,
    /// The id of the boot in which it was created, if it may not be on disk.
    pub(crate) unsynced: Option<String>,
}

/// All snapshots of a snapshotter, by key.
pub(crate) async fn list(
    client: &Client,
    snapshotter: &str,
) -> Result<BTreeMap<String, SnapshotInfo>> {
    let what = format!("list snapshots of {snapshotter}");
    let request = snap::ListSnapshotsRequest {
        snapshotter: snapshotter.to_owned(),
        filters: Vec::new(),
    };
    let mut stream = call(&what, QUICK, client.snapshots().list(request)).await?;
    let mut layers = BTreeMap::new();
    while let Some(message) = next_message(&what, &mut stream).await? {
        layers.extend(message.info.into_iter().map(|mut info| {
            let unsynced = info.labels.remove(UNSYNCED);
            let committed = info.kind() == snap::Kind::Committed;
            (
                info.name,
                SnapshotInfo {
                    parent: info.parent,
                    committed,
                    unsynced,
                },
            )
        }));
    }
    Ok(layers)
}

/// Returns containerd's information on a snapshot; `None` if it does not exist.
pub(crate) async fn stat(
    client: &Client,
    snapshotter: &str,
    name: &str,
) -> Result<Option<snap::Info>> {
    let request = snap::StatSnapshotRequest {
        snapshotter: snapshotter.to_owned(),
        key: name.to_owned(),
    };
    match call(
        &format!("look up snapshot {name}"),
        QUICK,
        client.snapshots().stat(request),
    )
    .await
    {
        Ok(found) => Ok(Some(found.info.unwrap_or_default())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The prefix of the keys of view snapshots, by which those that a killed predecessor left are found.
pub(crate) fn view_prefix(client: &Client) -> String {
    format!("switchyard-view-{}-", client.instance())
}

/// The prefix of the keys of active snapshots that layers are unpacked into. Recovery finds those of killed
/// predecessors by it.
pub(crate) fn extract_prefix(client: &Client) -> String {
    format!("extract-switchyard-{}-", client.instance())
}

/// The key of a new snapshot that exists for a short time: the prefix, this run of the daemon, and a random
/// part.
pub(crate) fn new_key(client: &Client, prefix: &str) -> String {
    let mut random = [0; 8];
    fill_random(&mut random);
    format!("{prefix}{}-{}", client.run(), hex::encode(random))
}

/// Returns whether a snapshot is a view or an unfinished unpacking of a predecessor.
pub(crate) fn is_stale(client: &Client, key: &str) -> bool {
    [view_prefix(client), extract_prefix(client)]
        .iter()
        .any(|prefix| {
            key.strip_prefix(prefix.as_str()).is_some_and(|rest| {
                let of_run = rest
                    .strip_prefix(client.run())
                    .and_then(|rest| rest.strip_prefix('-'));
                of_run.is_none()
            })
        })
}

/// The keys of the views and the unfinished unpackings of predecessors among these snapshots.
pub(crate) fn stale_keys<'s>(
    client: &Client,
    snapshots: &'s BTreeMap<String, SnapshotInfo>,
) -> Vec<&'s str> {
    snapshots
        .keys()
        .map(String::as_str)
        .filter(|key| is_stale(client, key))
        .collect()
}

/// Removes these snapshots of a snapshotter. One that cannot be removed does not keep the others: its error
/// is returned at the end. `removed` is called after each removal.
///
/// # Errors
/// The first of those of the removals.
pub(crate) async fn remove_all(
    client: &Client,
    snapshotter: &str,
    keys: &[&str],
    removed: &(dyn Fn() + Sync),
) -> Result<()> {
    let mut kept = Ok(());
    for key in keys {
        match remove(client, snapshotter, key).await {
            Ok(()) => removed(),
            Err(error) => kept = kept.and(Err(error)),
        }
    }
    kept
}

/// Removes a snapshot. Idempotent.
pub(super) async fn remove(client: &Client, snapshotter: &str, key: &str) -> Result<()> {
    let request = snap::RemoveSnapshotRequest {
        snapshotter: snapshotter.to_owned(),
        key: key.to_owned(),
    };
    let what = format!("remove snapshot {key}");
    ignore_not_found(call(&what, QUICK, client.snapshots().remove(request)).await)
}

/// The snapshotters that did not answer when they were last asked.
#[derive(Debug, Default)]
pub(crate) struct AwaySnapshotters {
    by_name: Mutex<BTreeMap<String, AwaySnapshotter>>,
}

#[derive(Debug)]
struct AwaySnapshotter {
    error: Error,
    /// Time at which it is asked for its usage again.
    again: Instant,
}

// === impl AwaySnapshotters ===

impl AwaySnapshotters {
    /// Asks a snapshotter, for at most [`ANSWER_LIMIT`], and keeps whether it has answered.
    ///
    /// # Errors
    /// If containerd itself does not answer. That the snapshotter does not, or that containerd lacks it, is
    /// the inner error.
    pub(crate) async fn ask<T>(
        &self,
        client: &Client,
        snapshotter: &str,
        question: impl Future<Output = Result<T>>,
    ) -> Result<Result<T>> {
        let late = |_| timed_out(&format!("ask the snapshotter {snapshotter}"), ANSWER_LIMIT);
        let answer = tokio::time::timeout(ANSWER_LIMIT, question)
            .await
            .map_err(late)
            .and_then(|answer| answer);
        if answer.is_err() {
            // A containerd that does not answer at all must not count against the snapshotter.
            client.check_version().await?;
        }
        self.keep(snapshotter, answer.as_ref().err());
        Ok(answer)
    }

    fn keep(&self, snapshotter: &str, error: Option<&Error>) {
        match error {
            None => {
                let was_away = self.by_name.lock().remove(snapshotter).is_some();
                if was_away {
                    tracing::info!(snapshotter, "a snapshotter answers again");
                }
            }
            Some(error) => {
                let entry = AwaySnapshotter {
                    error: error.clone(),
                    again: Instant::now() + AWAY_AGE,
                };
                let was_away = self
                    .by_name
                    .lock()
                    .insert(snapshotter.to_owned(), entry)
                    .is_some();
                if !was_away {
                    tracing::error!(
                        snapshotter,
                        error = error.report(),
                        "a snapshotter that is configured or in use does not answer: its images and tasks cannot be served, all others are"
                    );
                }
            }
        }
    }

    /// Returns whether a snapshotter did not answer a short time ago.
    pub(super) fn is_away(&self, snapshotter: &str) -> bool {
        self.by_name
            .lock()
            .get(snapshotter)
            .is_some_and(|away| Instant::now() < away.again)
    }

    /// Forgets a snapshotter that nothing needs any more.
    pub(crate) fn forget(&self, snapshotter: &str) {
        self.by_name.lock().remove(snapshotter);
    }

    /// Forgets all snapshotters but these.
    pub(super) fn retain(&self, snapshotters: &[&str]) {
        self.by_name
            .lock()
            .retain(|name, _| snapshotters.contains(&name.as_str()));
    }

    /// Reports whether all snapshotters answer, with the names of those that do not, and `unusable`: what is wrong with those,
    /// by name, that containerd itself cannot use, and which therefore do not answer either.
    pub(crate) fn condition(&self, unusable: BTreeMap<&str, String>) -> Condition {
        let away = self.by_name.lock();
        let silent = away
            .iter()
            .filter(|(name, _)| !unusable.contains_key(name.as_str()))
            .map(|(name, away)| format!("{name}: {}", away.error.report()));
        let silent: Vec<_> = silent.collect();
        let reason = match (unusable.is_empty(), silent.is_empty()) {
            (true, true) => return Condition::True,
            (true, false) => "SnapshotterUnavailable",
            (false, _) => SNAPSHOTTER_UNUSABLE,
        };
        let told: Vec<_> = unusable.into_values().chain(silent).collect();
        Condition::False {
            reason: reason.into(),
            message: told.join("; "),
        }
    }
}

#[cfg(test)]
mod tests;
