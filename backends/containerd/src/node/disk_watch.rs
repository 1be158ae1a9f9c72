//! Watches for disks that are full, read-only or failing, and for trees on them that were set aside and that an operator
//! has removed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use switchyard_core::backend::WatchedDisk;
use switchyard_core::blocking_pool::{BlockingPool, LIMIT};
use switchyard_core::threads;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::base::disks::{DiskState, check, look, write_and_look};
use crate::base::trees::Trees;
use crate::client::contact::Contact;
use crate::image::reported_root;
use crate::node::Node;

/// The interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The interval between two checks that write to disks; each check does while something is wrong with one.
const WRITE_INTERVAL: Duration = Duration::from_secs(10);

/// The data on the disks, in the order in which they are looked at.
const DATA: [&str; 3] = ["state", "run", "containerd"];

/// The parameters of a check of the disks.
#[derive(Debug, Clone)]
struct DiskLooker {
    /// containerd's root, if it is known. That of an external containerd may be where this daemon does not
    /// see it, and is not written to.
    root: Option<PathBuf>,
    /// True if the others are written to.
    writes: bool,
}

impl DiskLooker {
    fn look(&self, dir: &Path) -> io::Result<Option<DiskState>> {
        let is_root = self.root.as_deref() == Some(dir);
        let state = if self.writes && !is_root {
            write_and_look(dir)
        } else {
            look(dir)
        };
        match state {
            Err(fault) if fault.kind() == io::ErrorKind::NotFound && is_root => Ok(None),
            state => state.map(Some),
        }
    }
}

impl Node {
    /// Checks the disks of the state and run directories, and of containerd's root as soon as containerd has
    /// reported it, periodically until `stop`. Those of its own directories it also writes to.
    pub(crate) async fn watch_disks(self: Arc<Self>, trees: Arc<Trees>, stop: CancellationToken) {
        let pool = BlockingPool::new(threads::DISK_POOL, LIMIT);
        let settings = self.context.settings();
        let mut dirs = vec![settings.state.clone(), settings.run.clone()];
        let mut root = None;
        let mut next_write = Instant::now();
        loop {
            if root.is_none() && matches!(self.health.current(), Contact::Up { .. }) {
                // What is not answered soon is asked again.
                if let Ok(Ok(reported)) = timeout(CHECK_INTERVAL, reported_root(&self.client)).await
                {
                    dirs.extend(reported.clone());
                    if let Some(reported) = reported.clone() {
                        self.disks.set_content(reported);
                    }
                    root = Some(reported);
                }
            }
            let writes = self.disks.have_fault() || Instant::now() >= next_write;
            if writes {
                next_write = Instant::now() + WRITE_INTERVAL;
            }
            let looker = DiskLooker {
                root: root.clone().flatten(),
                writes,
            };
            let trees = Arc::clone(&trees);
            let forget = move || {
                trees.forget_removed();
                Ok(())
            };
            let checked = async {
                let (checked, spaces) = check(&pool, &dirs, move |dir| looker.look(dir)).await;
                self.disks.update(checked);
                let spaces = DATA.into_iter().zip(spaces);
                let spaces =
                    spaces.filter_map(|(of, space)| Some(WatchedDisk { of, space: space? }));
                self.disks.set_spaces(spaces.collect());
                // They are on the same disks, which may hang.
                if let Err(error) = pool
                    .run("trees that were set aside".to_owned(), forget)
                    .await
                {
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
