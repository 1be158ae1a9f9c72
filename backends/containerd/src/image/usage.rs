//! Disk usage of images: the size of containerd's snapshots and of its content store, cached for
//! [`USAGE_AGE`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots as snap;
use futures::future::try_join_all;
use parking_lot::Mutex;
use switchyard_core::stats::DiskUsage;
use switchyard_core::{Error, Result};
use tokio::time::Instant;

use super::content::next_message;
use super::content_disk;
use super::shared_types::{Snapshotters, USAGE_AGE};
use super::snapshots::{self, AwaySnapshotters};
use crate::base::error::is_unanswered;
use crate::client::{Client, QUICK, call};

/// The last measurement.
#[derive(Debug, Default)]
pub(crate) struct UsageCache {
    last: Mutex<Option<(Instant, Vec<DiskUsage>)>>,
}

impl UsageCache {
    /// Has the next [`UsageCache::read`] measure again.
    pub(crate) fn invalidate(&self) {
        *self.last.lock() = None;
    }

    /// Returns the usage of each snapshotter, the default one first, at most [`USAGE_AGE`] old. The content
    /// store counts towards the default one. A snapshotter that does not answer is left out; of the default
    /// one, the usage of the content store is reported all the same.
    pub(crate) async fn read(
        &self,
        client: &Client,
        snapshotters: &Snapshotters,
        away: &AwaySnapshotters,
    ) -> Result<Vec<DiskUsage>> {
        if let Some((at, usage)) = self.last.lock().clone()
            && at.elapsed() < USAGE_AGE
        {
            return Ok(usage);
        }
        let content = content_bytes(client).await?;
        let roots = roots(client).await?;
        let measured = default_first(snapshotters)
            .into_iter()
            .map(|snapshotter| async move {
                if away.is_away(snapshotter) {
                    return Ok((snapshotter, None));
                }
                Ok::<_, Error>((snapshotter, snapshots(client, snapshotter, away).await?))
            });
        let mut usage = Vec::new();
        for (snapshotter, measured) in try_join_all(measured).await? {
            // Has an entry even if it does not answer: the content store counts towards it.
            let is_default = snapshotter == snapshotters.default;
            let Some((used_bytes, inodes_used)) = (match measured {
                Some((bytes, inodes)) => Some((bytes, Some(inodes))),
                None if is_default => Some((0, None)),
                None => None,
            }) else {
                continue;
            };
            let mountpoint = match roots.get(snapshotter) {
                Some(root) => root.clone(),
                None if is_default => content_disk::root_of(client)
                    .await?
                    .unwrap_or_else(|| "/".into()),
                None => "/".into(),
            };
            let used_bytes = used_bytes.saturating_add(if is_default { content } else { 0 });
            usage.push(DiskUsage {
                at: SystemTime::now(),
                mountpoint,
                used_bytes,
                inodes_used,
            });
        }
        *self.last.lock() = Some((Instant::now(), usage.clone()));
        Ok(usage)
    }
}

/// All snapshotters, the default one first.
fn default_first(snapshotters: &Snapshotters) -> Vec<&str> {
    let mut all: Vec<&str> = vec![&snapshotters.default];
    all.extend(
        snapshotters
            .all()
            .into_iter()
            .filter(|name| *name != snapshotters.default),
    );
    all
}

/// The root directory of each snapshotter, as containerd reports it.
pub(crate) async fn roots(client: &Client) -> Result<BTreeMap<String, PathBuf>> {
    let request = api::PluginsRequest {
        filters: vec!["type==io.containerd.snapshotter.v1".to_owned()],
    };
    let plugins = call(
        "list snapshotters",
        QUICK,
        client.introspection().plugins(request),
    )
    .await?
    .plugins;
    Ok(plugins
        .into_iter()
        .filter_map(|plugin| Some((plugin.id, PathBuf::from(plugin.exports.get("root")?))))
        .collect())
}

/// The size of all blobs in the content store.
async fn content_bytes(client: &Client) -> Result<u64> {
    let what = "list content";
    let request = api::ListContentRequest {
        filters: Vec::new(),
    };
    let mut stream = call(what, QUICK, client.content().list(request)).await?;
    let mut bytes: u64 = 0;
    while let Some(message) = next_message(what, &mut stream).await? {
        let sizes = message
            .info
            .iter()
            .map(|info| u64::try_from(info.size).unwrap_or(0));
        bytes = sizes.fold(bytes, u64::saturating_add);
    }
    Ok(bytes)
}

/// Bytes and inodes of all committed snapshots, which are those of images; `None` if the snapshotter does not
/// answer. Each question has a limit of its own: there may be many snapshots.
///
/// # Errors
/// If containerd itself does not answer.
async fn snapshots(
    client: &Client,
    snapshotter: &str,
    away: &AwaySnapshotters,
) -> Result<Option<(u64, u64)>> {
    let Ok(listed) = away
        .ask(client, snapshotter, snapshots::list(client, snapshotter))
        .await?
    else {
        return Ok(None);
    };
    let mut bytes: u64 = 0;
    let mut inodes: u64 = 0;
    for (name, _) in listed.iter().filter(|(_, info)| info.committed) {
        match away
            .ask(client, snapshotter, snapshot(client, snapshotter, name))
            .await?
        {
            Ok((size, files)) => {
                bytes = bytes.saturating_add(size);
                inodes = inodes.saturating_add(files);
            }
            Err(_) => return Ok(None),
        }
    }
    Ok(Some((bytes, inodes)))
}

/// Bytes and inodes of a snapshot. None of one that was removed since it was listed, or is damaged: that says
/// nothing about the others.
///
/// # Errors
/// If the snapshotter does not answer.
async fn snapshot(client: &Client, snapshotter: &str, name: &str) -> Result<(u64, u64)> {
    let request = snap::UsageRequest {
        snapshotter: snapshotter.to_owned(),
        key: name.to_owned(),
    };
    match call(
        &format!("measure snapshot {name}"),
        QUICK,
        client.snapshots().usage(request),
    )
    .await
    {
        Ok(usage) => Ok((
            u64::try_from(usage.size).unwrap_or(0),
            u64::try_from(usage.inodes).unwrap_or(0),
        )),
        Err(error) if is_unanswered(&error) => Err(error),
        Err(error) => {
            tracing::debug!(
                snapshot = name,
                error = error.report(),
                "a snapshot cannot be measured"
            );
            Ok((0, 0))
        }
    }
}

#[cfg(test)]
mod tests;
