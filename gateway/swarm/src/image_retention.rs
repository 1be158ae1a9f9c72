//! Removal of a swarm's images: of those that no task has used for the configured time, and of all when the node leaves.
//!
//! Managers remove tasks, and never images. Whether an image is used is decided by the gateway at the moment of its removal.
//! Since when one is not used is known to this run of the daemon alone: after a restart the time begins anew.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

use switchyard_core::gateway::Scope;
use switchyard_core::image::{Image, ImageId};
use switchyard_core::logged_texts::LoggedTexts;
use switchyard_core::reload::Reloadable;
use switchyard_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, sleep, timeout};

/// The pause between two looks at the images. For so long, one may stay that is due.
const PAUSE: Duration = Duration::from_secs(60);

/// Limit for the removal of all images when the node leaves. What is left then stays.
const LEAVE_LIMIT: Duration = Duration::from_secs(120);

/// Maximum number of different failures that are logged while removals fail.
const FAILURES_LOGGED: usize = 10;

/// Gives up images that no task of the swarm has used for a while.
#[derive(Debug)]
pub(crate) struct ImageRetention {
    scope: Scope,
    /// For how long an image stays that no task uses; `None`: for ever.
    retention: Reloadable<Option<Duration>>,
    unused: UnusedImages,
    logged: LoggedTexts,
}

/// The images that no task uses, with the time at which that was first seen.
#[derive(Debug, Default)]
struct UnusedImages {
    since: BTreeMap<ImageId, Instant>,
}

// === impl ImageRetention ===

impl ImageRetention {
    pub(crate) fn new(scope: Scope, retention: Reloadable<Option<Duration>>) -> Self {
        Self {
            scope,
            retention,
            unused: UnusedImages::default(),
            logged: LoggedTexts::at_most(FAILURES_LOGGED),
        }
    }

    /// Looks at the images from time to time, as soon as the gateway has recovered, whether the node is a member of a swarm
    /// or not. Cancel-safe.
    pub(crate) async fn run(mut self) -> Infallible {
        self.scope.recovered().await;
        loop {
            self.pass().await;
            sleep(PAUSE).await;
        }
    }

    /// Gives up the images that are due. A failure is logged once while it lasts, and tried again by the next pass.
    async fn pass(&mut self) {
        let Some(retention) = *self.retention.get() else {
            self.unused = UnusedImages::default();
            return;
        };
        match self.give_up_due(retention).await {
            Ok(()) => self.logged.clear(),
            Err(error) => {
                let text = error.report();
                if self.logged.is_new(&text) {
                    tracing::warn!(
                        error = text,
                        "images that no task of the swarm uses cannot be removed: retrying"
                    );
                }
            }
        }
    }

    async fn give_up_due(&mut self, retention: Duration) -> Result<()> {
        let unused = self.scope.images().unused().await?;
        let mut failed = None;
        for image in self.unused.due(&unused, Instant::now(), retention) {
            match give_up(&self.scope, image).await {
                // One that is pulled again is another one.
                Ok(()) => drop(self.unused.since.remove(&image.id)),
                // The others do not wait for it.
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

// === impl UnusedImages ===

impl UnusedImages {
    /// Notes which images no task uses now, and returns those of which that is known for as long as this. Pure.
    fn due<'i>(
        &mut self,
        unused: &'i [Image],
        now: Instant,
        retention: Duration,
    ) -> Vec<&'i Image> {
        let ids: BTreeSet<&ImageId> = unused.iter().map(|image| &image.id).collect();
        self.since.retain(|id, _| ids.contains(id));
        let mut due = Vec::new();
        for image in unused {
            let since = *self.since.entry(image.id.clone()).or_insert(now);
            if now.duration_since(since) >= retention {
                due.push(image);
            }
        }
        due
    }
}

/// Gives up all images that no task uses. What cannot be removed in time stays, with a warning: the node leaves its swarm
/// nevertheless. Cancel-safe.
pub(crate) async fn give_up_all(scope: &Scope) {
    let work = async {
        let mut failed = None;
        for image in scope.images().unused().await? {
            if let Err(error) = give_up(scope, &image).await {
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    };
    let done = timeout(LEAVE_LIMIT, work).await.unwrap_or_else(|_| {
        Err(Error::deadline(format!(
            "their removal takes longer than {LEAVE_LIMIT:?}"
        )))
    });
    if let Err(error) = done {
        tracing::warn!(
            error = error.report(),
            "images of the swarm that this node leaves stay: `switchyard images prune` removes them"
        );
    }
}

/// Gives up an image. One that a task has begun to use meanwhile is kept.
async fn give_up(scope: &Scope, image: &Image) -> Result<()> {
    let names = || image.repo_tags.iter().chain(&image.repo_digests);
    let name = names().next().map_or(image.id.as_str(), String::as_str);
    match scope.images().remove_unused(image.id.as_str()).await {
        Ok(()) => {
            tracing::info!(
                image = name,
                "an image is given up that no task of the swarm uses"
            );
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::FailedPrecondition => {
            tracing::debug!(
                image = name,
                error = error.report(),
                "an image that was not used is kept"
            );
            Ok(())
        }
        Err(error) => Err(error.context(format!("remove image {name:?}"))),
    }
}

#[cfg(test)]
mod tests;
