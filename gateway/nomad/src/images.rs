//! Images of tasks: had before a task is made, and let go when no task needs them any more.
//!
//! Who needs an image is not counted but looked up: the tasks there are. What is due to be let go is lost with the daemon, and found
//! again from the images that Nomad holds when an agent comes back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::gateway::Scope;
use switchyard_core::id::Owner;
use switchyard_core::image::{ImageId, PullProgress, PullRequest};
use switchyard_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use crate::auth;
use crate::events::TaskEventSender;
use crate::paths::open_below;
use crate::plan::ImageRequest;
use crate::plugin_config::AuthConfig;

mod gc;

pub(crate) use gc::ImageGc;

/// Between two looks at a pull.
const POLL: Duration = Duration::from_secs(1);

/// Between two events about one pull.
const EVENT_INTERVAL: Duration = Duration::from_secs(2 * 60);

/// Gets images.
#[derive(Debug, Clone)]
pub(crate) struct Images {
    scope: Scope,
    image_gc: Arc<ImageGc>,
    pool: Arc<BlockingPool>,
}

/// What was last seen of a pull, to tell whether it gets on.
#[derive(Debug, Clone, Copy)]
struct PullMonitor {
    begun: Instant,
    last_progress: PullProgress,
    last_progress_at: Instant,
    last_event_at: Instant,
}

impl Images {
    pub(crate) fn new(scope: Scope, image_gc: Arc<ImageGc>, pool: Arc<BlockingPool>) -> Self {
        Self { scope, image_gc, pool }
    }

    /// Sees to it that the node has an image that Nomad may use, and gives its id; archives are in a directory
    /// of `whose` allocation. It will not be let go for now. Cancel-safe: a
    /// pull that nobody else waits for stops.
    ///
    /// # Errors
    /// Those of [`Scope::pull_image`]; `DeadlineExceeded` if it takes longer than it may, in all or without getting on.
    pub(crate) async fn get(
        &self,
        wish: &ImageRequest,
        (whose, dir): (String, &Path),
        handler: &str,
        config: &AuthConfig,
        teller: &TaskEventSender,
    ) -> Result<ImageId> {
        if let Some(path) = &wish.load {
            let id = self.load(wish, path, (whose, dir), handler).await?;
            self.image_gc.cancel(&id);
            return Ok(id);
        }
        if !wish.always
            && let Some(image) = self.scope.image(&wish.reference).await?
        {
            self.image_gc.cancel(&image.id);
            return Ok(image.id);
        }
        let credentials = auth::credentials(wish, config, &self.pool).await?;
        teller.send("Downloading image", &[("image", &wish.reference)]);
        let reference = wish.reference.clone();
        let handler = handler.to_owned();
        let request = PullRequest { reference, credentials, handler, owner: Owner::Nomad };
        let id = self.pull(&request, wish, teller).await.map_err(|error| reworded(error, &wish.reference))?;
        self.image_gc.cancel(&id);
        Ok(id)
    }

    /// Takes the image out of an archive that the agent has put into the directory of the task.
    async fn load(
        &self,
        wish: &ImageRequest,
        path: &str,
        (whose, dir): (String, &Path),
        handler: &str,
    ) -> Result<ImageId> {
        let root = dir.to_owned();
        let shown = path;
        let path = PathBuf::from(path);
        let open = move || {
            open_below(&root, &path).map_err(|fault| {
                let why = format!("{} cannot be read in the task's local directory", path.display());
                Error::invalid("load", why).with_source(fault)
            })
        };
        let archive = self.pool.run(whose, open).await?;
        let loading = self.scope.load_image(archive, wish.reference.clone(), handler.to_owned());
        let loaded = tokio::time::timeout(wish.timeout, loading).await.unwrap_or_else(|_| {
            Err(Error::deadline(format!("it did not end within image_pull_timeout, {:?}", wish.timeout)))
        });
        loaded.map_err(|error| error.context(format!("load {shown}")))
    }

    async fn pull(
        &self,
        request: &PullRequest,
        wish: &ImageRequest,
        teller: &TaskEventSender,
    ) -> Result<ImageId> {
        let pull = self.scope.pull_image(request);
        tokio::pin!(pull);
        let mut watch = PullMonitor::new(Instant::now());
        loop {
            tokio::select! {
                biased;
                pulled = &mut pull => return pulled,
                () = tokio::time::sleep(POLL) => {
                    let now = Instant::now();
                    watch.update(self.scope.pull_progress(request), now);
                    watch.check_timeouts(wish, now)?;
                    if let Some(text) = watch.progress_message(now) {
                        teller.send(text, &[("image", &wish.reference)]);
                    }
                }
            }
        }
    }
}

/// Words that operators of Nomad know.
fn reworded(error: Error, reference: &str) -> Error {
    if error.kind() == ErrorKind::NotFound {
        error.context(format!("Error: image {reference} not found"))
    } else {
        error.context(format!("Failed to pull `{reference}`"))
    }
}

// === impl Watch ===

impl PullMonitor {
    fn new(now: Instant) -> Self {
        Self { begun: now, last_progress: PullProgress::default(), last_progress_at: now, last_event_at: now }
    }

    /// Notes how far the pull is.
    fn update(&mut self, progress: Option<PullProgress>, now: Instant) {
        let progress = progress.unwrap_or_default();
        // When all is here it is unpacked, and how that gets on is not known.
        if progress != self.last_progress || self.is_here() {
            (self.last_progress, self.last_progress_at) = (progress, now);
        }
    }

    fn is_here(&self) -> bool {
        self.last_progress.layers > 0 && self.last_progress.layers_done == self.last_progress.layers
    }

    /// Whether it may go on.
    fn check_timeouts(&self, wish: &ImageRequest, now: Instant) -> Result<()> {
        if now - self.begun >= wish.timeout {
            let limit = wish.timeout;
            return Err(Error::deadline(format!("it did not end within image_pull_timeout, {limit:?}")));
        }
        if now - self.last_progress_at >= wish.activity_timeout {
            let limit = wish.activity_timeout;
            return Err(Error::deadline(format!("it did not get on for pull_activity_timeout, {limit:?}")));
        }
        Ok(())
    }

    /// What there is to tell people, from time to time.
    fn progress_message(&mut self, now: Instant) -> Option<String> {
        if now - self.last_event_at < EVENT_INTERVAL {
            return None;
        }
        self.last_event_at = now;
        let PullProgress { layers, layers_done, bytes, bytes_done } = self.last_progress;
        let mib = |bytes: u64| bytes >> 20;
        let mut text = format!(
            "Image pull progress: Pulled {layers_done}/{layers} layers ({}/{} MiB)",
            mib(bytes_done),
            mib(bytes)
        );
        let elapsed = (now - self.begun).as_secs();
        // At the speed so far.
        if let Some(rest) = bytes.saturating_sub(bytes_done).saturating_mul(elapsed).checked_div(bytes_done) {
            text.push_str(&format!(" - est {rest}s remaining"));
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests;
