//! Images of tasks: obtained before a task is created, and released when no task uses them any more.
//!
//! Use of an image is not counted but derived from the existing tasks. Pending releases are lost when the
//! daemon stops, and found again from the images that Nomad holds when an agent comes back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::gateway::Scope;
use switchyard_core::id::Owner;
use switchyard_core::image::{ImageId, ImageReference, PullProgress, PullRequest};
use switchyard_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use crate::auth;
use crate::events::TaskEventSender;
use crate::paths::open_below;
use crate::plan::ImageRequest;
use crate::plugin_config::AuthConfig;

mod gc;

pub(crate) use gc::ImageGc;

/// The interval between checks of a pull.
const POLL: Duration = Duration::from_secs(1);

/// The interval between progress events of one pull.
const EVENT_INTERVAL: Duration = Duration::from_secs(2 * 60);

/// Obtains images.
#[derive(Debug, Clone)]
pub(crate) struct Images {
    scope: Scope,
    image_gc: Arc<ImageGc>,
    pool: Arc<BlockingPool>,
}

/// The last known progress of a pull, to detect a stalled one.
#[derive(Debug, Clone, Copy)]
struct PullMonitor {
    begun: Instant,
    last_progress: PullProgress,
    last_progress_at: Instant,
    last_event_at: Instant,
}

impl Images {
    pub(crate) fn new(scope: Scope, image_gc: Arc<ImageGc>, pool: Arc<BlockingPool>) -> Self {
        Self {
            scope,
            image_gc,
            pool,
        }
    }

    /// Ensures that the node has an image that Nomad may use, and returns its id; archives are read from a
    /// directory of the allocation `object`. Cancels a pending release of the image. Cancel-safe: a pull
    /// without another waiter stops.
    ///
    /// # Errors
    /// Those of [`ScopedImages::pull`](switchyard_core::gateway::ScopedImages::pull), but `FailedPrecondition` if the
    /// registry does not have the image, or has none that can be used; `DeadlineExceeded` if it exceeds the total or the
    /// inactivity timeout.
    pub(crate) async fn get(
        &self,
        wanted: &ImageRequest,
        (object, dir): (String, &Path),
        handler: &str,
        config: &AuthConfig,
        events: &TaskEventSender,
    ) -> Result<ImageId> {
        if let Some(path) = &wanted.load {
            let id = self.load(wanted, path, (object, dir), handler).await?;
            self.image_gc.cancel(&id);
            return Ok(id);
        }
        if !wanted.always
            && let Some(image) = self.scope.images().find(&wanted.reference).await?
        {
            self.image_gc.cancel(&image.id);
            return Ok(image.id);
        }
        let credentials = auth::credentials(wanted, config, &self.pool).await?;
        events.send("Downloading image", &[("image", &wanted.reference)]);
        let reference = wanted.reference.clone();
        let handler = handler.to_owned();
        let request = PullRequest {
            reference,
            credentials,
            handler,
            owner: Owner::Nomad,
        };
        let id = self
            .pull(&request, wanted, events)
            .await
            .map_err(|error| reworded(error, &wanted.reference))?;
        self.image_gc.cancel(&id);
        Ok(id)
    }

    /// Loads the image from an archive in the task's directory.
    async fn load(
        &self,
        wanted: &ImageRequest,
        path: &str,
        (object, dir): (String, &Path),
        handler: &str,
    ) -> Result<ImageId> {
        let root = dir.to_owned();
        let shown = path;
        let path = PathBuf::from(path);
        let open = move || {
            open_below(&root, &path).map_err(|fault| {
                let why = format!(
                    "{} cannot be read in the task's local directory",
                    path.display()
                );
                Error::invalid("load", why).with_source(fault)
            })
        };
        let archive = self.pool.run(object, open).await?;
        let late = async {
            tokio::time::sleep(wanted.timeout).await;
            total_timeout(wanted.timeout)
        };
        let reference = wanted.reference.clone();
        let loaded = self
            .scope
            .images()
            .load(archive, reference, handler.to_owned(), late)
            .await;
        loaded.map_err(|error| error.context(format!("load {shown}")))
    }

    async fn pull(
        &self,
        request: &PullRequest,
        wanted: &ImageRequest,
        events: &TaskEventSender,
    ) -> Result<ImageId> {
        let late = self.follow_pull(request, wanted, events);
        self.scope.images().pull_unless(request, late).await
    }

    /// Reports the progress of a pull. Returns the error of one that exceeds a timeout.
    async fn follow_pull(
        &self,
        request: &PullRequest,
        wanted: &ImageRequest,
        events: &TaskEventSender,
    ) -> Error {
        let mut watch = PullMonitor::new(Instant::now());
        loop {
            tokio::time::sleep(POLL).await;
            let now = Instant::now();
            watch.update(self.scope.images().progress(request), now);
            if let Err(late) = watch.check_timeouts(wanted, now) {
                return late;
            }
            if let Some(text) = watch.progress_message(now) {
                events.send(text, &[("image", &wanted.reference)]);
            }
        }
    }
}

/// The error of a pull or load that takes longer than it may.
fn total_timeout(limit: Duration) -> Error {
    Error::deadline(format!(
        "it did not end within image_pull_timeout, {limit:?}"
    ))
}

/// The error of a pull, with the texts that Nomad operators know. What a registry has under a name may change, also
/// that it has nothing: such an error is `FailedPrecondition`, so that an agent tries again as the job's `restart`
/// block says. A text that names no image never will: its error stays as it is.
fn reworded(error: Error, reference: &str) -> Error {
    let text = if error.kind() == ErrorKind::NotFound {
        format!("Error: image {reference} not found")
    } else {
        format!("Failed to pull `{reference}`")
    };
    let permanent = matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::InvalidArgument | ErrorKind::Unimplemented
    );
    if permanent && reference.parse::<ImageReference>().is_ok() {
        Error::failed_precondition(text).with_source(error)
    } else {
        error.context(text)
    }
}

// === impl PullMonitor ===

impl PullMonitor {
    fn new(now: Instant) -> Self {
        Self {
            begun: now,
            last_progress: PullProgress::default(),
            last_progress_at: now,
            last_event_at: now,
        }
    }

    /// Records the progress of the pull.
    fn update(&mut self, progress: Option<PullProgress>, now: Instant) {
        let progress = progress.unwrap_or_default();
        // After the download the image is unpacked, and the progress of that is not known.
        if progress != self.last_progress || self.is_here() {
            (self.last_progress, self.last_progress_at) = (progress, now);
        }
    }

    fn is_here(&self) -> bool {
        self.last_progress.layers > 0 && self.last_progress.layers_done == self.last_progress.layers
    }

    /// Checks both timeouts.
    fn check_timeouts(&self, wanted: &ImageRequest, now: Instant) -> Result<()> {
        if now - self.begun >= wanted.timeout {
            return Err(total_timeout(wanted.timeout));
        }
        if now - self.last_progress_at >= wanted.activity_timeout {
            let limit = wanted.activity_timeout;
            return Err(Error::deadline(format!(
                "it did not get on for pull_activity_timeout, {limit:?}"
            )));
        }
        Ok(())
    }

    /// The progress message that is due, if any.
    fn progress_message(&mut self, now: Instant) -> Option<String> {
        if now - self.last_event_at < EVENT_INTERVAL {
            return None;
        }
        self.last_event_at = now;
        let PullProgress {
            layers,
            layers_done,
            bytes,
            bytes_done,
        } = self.last_progress;
        let mib = |bytes: u64| bytes >> 20;
        let mut text = format!(
            "Image pull progress: Pulled {layers_done}/{layers} layers ({}/{} MiB)",
            mib(bytes_done),
            mib(bytes)
        );
        let elapsed = (now - self.begun).as_secs();
        // Extrapolated from the speed so far.
        if let Some(rest) = bytes
            .saturating_sub(bytes_done)
            .saturating_mul(elapsed)
            .checked_div(bytes_done)
        {
            text.push_str(&format!(" - est {rest}s remaining"));
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests;
