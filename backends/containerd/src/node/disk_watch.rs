//! Watches for disks that are full, read-only or failing, and for trees on them that were set aside and that an operator
//! has removed.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use switchyard_core::blocking_pool::{BlockingPool, LIMIT};
use switchyard_core::threads;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::base::disks::{check, look};
use crate::base::trees::Trees;
use crate::client::contact::Contact;
use crate::image::reported_root;
use crate::node::Node;

/// The interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

impl Node {
    /// Checks the disks of the state and run directories, and of containerd's root as soon as containerd has told where that is,
    /// periodically until `stop`.
    pub(crate) async fn watch_disks(self: Arc<Self>, trees: Arc<Trees>, stop: CancellationToken) {
        let pool = BlockingPool::new(threads::DISK_POOL, LIMIT);
        let settings = self.context.settings();
        let mut dirs = vec![settings.state.clone(), settings.run.clone()];
        let mut root = None;
        loop {
            if root.is_none() && matches!(self.health.current(), Contact::Up { .. }) {
                // What is not answered soon is asked again.
                if let Ok(Ok(reported)) = timeout(CHECK_INTERVAL, reported_root(&self.client)).await {
                    dirs.extend(reported.clone());
                    root = Some(reported);
                }
            }
            // An external containerd may have its root where this daemon does not see it.
            let may_be_absent = root.clone().flatten();
            let look = move |dir: &Path| match look(dir) {
                Err(fault)
                    if fault.kind() == io::ErrorKind::NotFound && may_be_absent.as_deref() == Some(dir) =>
                {
                    Ok(None)
                }
                state => state.map(Some),
            };
            let trees = Arc::clone(&trees);
            let forget = move || {
                trees.forget_removed();
                Ok(())
            };
            let checked = async {
                self.disks.update(check(&pool, &dirs, look).await);
                // They are on the same disks, which may hang.
                if let Err(error) = pool.run("trees that were set aside".to_owned(), forget).await {
                    tracing::debug!(
                        error = error.report(),
                        "the trees that were set aside cannot be looked at"
                    );
                }
                tokio::time::sleep(CHECK_INTERVAL).await;
            };
            tokio::select! {
                () = checked => {}
                () = stop.cancelled() => return,
            }
        }
    }
}
