//! Scans of all processes for those of our shims: one for all who wait for it, at a [`Pace`].
//!
//! ```text
//! asked ──┐ asked ──┐     asked ──┐
//!         ├─────────┴─ scan ──────┼─ pause ── scan
//! ```
//!
//! The result is for everybody who has asked before the scan began, so that it shows what was there when they asked. A scan
//! takes the longer the more processes the node has, whoever they belong to.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use switchyard_core::Result;
use switchyard_linux::process::{self, ProcessId, Stat};
use tokio::sync::{Mutex, watch};

use crate::base::fs::blocking;
use crate::base::pace::Pace;
use crate::shims::processes::{RootProcess, is_shim_of, read_root_process, scan_processes};

/// The shims of a containerd and namespace, their helpers, and the children of both.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ShimScan {
    /// All of them.
    pub(crate) all: Vec<Stat>,
    /// Those whose command line is believed.
    pub(crate) root_processes: Vec<RootProcess>,
}

/// The children of a containerd and of its shims.
pub(crate) type ChildrenLook = (ProcessId, Arc<ShimScan>);

/// Scans that share their results. `T` is the result.
#[derive(Debug)]
pub(crate) struct SharedScans<T> {
    turn: Arc<Mutex<Pace>>,
    latest: Arc<watch::Sender<LatestScan<T>>>,
}

/// The result of the last scan, and when it began.
type LatestScan<T> = Option<(Instant, Arc<T>)>;

// === impl SharedScans ===

impl<T> Default for SharedScans<T> {
    fn default() -> Self {
        Self {
            turn: Arc::default(),
            latest: Arc::new(watch::Sender::new(None)),
        }
    }
}

impl<T: Send + Sync + 'static> SharedScans<T> {
    /// The result of a scan that begins after this call: of the next one of somebody else, or of this one. Cancel-safe; a
    /// scan that has begun runs to its end, and others wait for that.
    pub(crate) async fn next(&self, scan: impl FnOnce() -> T + Send + 'static) -> Result<Arc<T>> {
        let asked = Instant::now();
        let mut turn = Arc::clone(&self.turn).lock_owned().await;
        let latest = self.latest.borrow().clone();
        if let Some((began, found)) = latest
            && began >= asked
        {
            return Ok(found);
        }
        let pause = turn.wait(Instant::now());
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let latest = Arc::clone(&self.latest);
        blocking(move || {
            let began = Instant::now();
            let found = Arc::new(scan());
            turn.ran(began.elapsed(), Instant::now());
            latest.send_replace(Some((began, Arc::clone(&found))));
            Ok(found)
        })
        .await
    }

    /// The result of the last scan, also while another one runs; `None` before the first.
    pub(crate) fn latest(&self) -> Option<Arc<T>> {
        let latest = self.latest.borrow();
        latest.as_ref().map(|(_, found)| Arc::clone(found))
    }
}

// === impl ShimScan ===

impl ShimScan {
    /// Scans all processes. Blocks, for reads of `/proc`.
    pub(crate) fn take(address: &Path, namespace: &str) -> Self {
        let (all, root_processes) = scan_processes();
        Self {
            all,
            root_processes,
        }
        .of_shims(address, namespace)
    }

    /// The shims and helpers of this scan, and the children of these and of containerd, as they are now, without a scan of
    /// the other processes. `None` if the kernel does not list children, or containerd is gone: new helpers are then not
    /// among its children. Blocks, for reads of `/proc`.
    pub(crate) fn again(
        &self,
        containerd: ProcessId,
        address: &Path,
        namespace: &str,
    ) -> Option<Self> {
        if !process::lists_children() || !containerd.is_alive() {
            return None;
        }
        let known: Vec<RootProcess> = self
            .root_processes
            .iter()
            .filter(|root| is_shim_of(root, address, namespace))
            .filter_map(|root| read_root_process(root.process))
            .collect();
        let parents = known.iter().map(|root| root.process.pid);
        let children: HashSet<i32> = parents
            .chain([containerd.pid])
            .flat_map(process::children)
            .collect();
        let pids: HashSet<i32> = known
            .iter()
            .map(|root| root.process.pid)
            .chain(children)
            .collect();
        let all: Vec<Stat> = pids.into_iter().filter_map(Stat::of).collect();
        let root_processes = all
            .iter()
            .filter_map(|stat| read_root_process(stat.id))
            .collect();
        let found = Self {
            all,
            root_processes,
        };
        Some(found.of_shims(address, namespace))
    }

    /// Leaves out all processes but the shims and helpers of this containerd and namespace, and their children. Pure.
    fn of_shims(mut self, address: &Path, namespace: &str) -> Self {
        let shims: HashSet<i32> = self
            .root_processes
            .iter()
            .filter(|root| is_shim_of(root, address, namespace))
            .map(|root| root.process.pid)
            .collect();
        self.all
            .retain(|stat| shims.contains(&stat.id.pid) || shims.contains(&stat.parent));
        let kept: HashSet<ProcessId> = self.all.iter().map(|stat| stat.id).collect();
        self.root_processes
            .retain(|root| kept.contains(&root.process));
        self.all.shrink_to_fit();
        self.root_processes.shrink_to_fit();
        self
    }
}

#[cfg(test)]
mod tests;
