//! Threads that do the work on containers' files: one for each file system that has logs.
//!
//! A call to a file system that hangs does not return, and its thread with it. What shares no file system with it must not share that
//! thread either; what does share it would hang as well. So the number of threads is that of file systems, however many containers
//! hang, and all that a container costs meanwhile is what waits in its FIFOs.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::container::lock;
use crate::journal::Scratch;
use crate::mounts::{Device, Mounts, Walk};

/// How many threads there are at most; beyond, file systems share them.
const MOST: usize = 16;

/// A call that takes longer counts as hanging, for those who wait behind it.
pub(crate) const STALLED: Duration = Duration::from_secs(2);

/// The threads of one keeper. Dropped, it ends them; one that hangs ends when its call returns, or with the process.
#[derive(Debug, Default)]
pub(crate) struct FsThreads {
    threads: Mutex<BTreeMap<Device, Arc<FsThread>>>,
}

/// One thread, and what its containers share.
#[derive(Debug)]
pub(crate) struct FsThread {
    /// Where the file system is mounted that it is named after.
    name: String,
    handle: Handle,
    stop: watch::Sender<bool>,
    /// Locked for the length of one batch and never over an await.
    pub(crate) scratch: Mutex<Scratch>,
    busy: Busy,
}

/// Since when a call to a file system has not returned.
#[derive(Debug)]
struct Busy {
    base: Instant,
    /// Milliseconds since `base`, and one; 0 while there is no such call.
    since: AtomicU64,
}

/// A call to a file system, from its beginning to its end.
#[derive(Debug)]
pub(crate) struct Call<'a>(&'a Busy);

// === impl Lanes ===

impl FsThreads {
    /// The thread for the file system that a file is on, or will be made on. `passing` is told which thread is waited for. Cancel-safe.
    ///
    /// # Errors
    /// The mounts cannot be read, a thread cannot be started, or the keeper goes down.
    pub(crate) async fn of(
        &self,
        file: &Path,
        passing: impl Fn(&Arc<FsThread>),
    ) -> io::Result<Arc<FsThread>> {
        let mounts = Arc::new(Mounts::read()?);
        let mut walk = Walk::to(file);
        loop {
            let (device, point) = mounts.of(walk.at());
            let lane = self.thread(device, point)?;
            passing(&lane);
            let mounts = Arc::clone(&mounts);
            let thread = Arc::clone(&lane);
            let looked = lane.spawn(async move {
                let _call = thread.call();
                let ends = walk.advance(&mounts);
                (walk, ends)
            });
            let (walked, ends) = looked.await.map_err(io::Error::other)?;
            if ends {
                return Ok(lane);
            }
            walk = walked;
        }
    }

    /// How many threads have not come back from a file system for [`STALLED`].
    pub(crate) fn stalled(&self) -> u64 {
        lock(&self.threads).values().filter(|lane| lane.stalled().is_some()).count() as u64
    }

    fn thread(&self, device: &str, point: &Path) -> io::Result<Arc<FsThread>> {
        let mut lanes = lock(&self.threads);
        if let Some(lane) = lanes.get(device) {
            return Ok(Arc::clone(lane));
        }
        if lanes.len() >= MOST {
            let mut hasher = DefaultHasher::new();
            device.hash(&mut hasher);
            let place = usize::try_from(hasher.finish() % MOST as u64).unwrap_or(0);
            let shared = lanes.values().nth(place).ok_or(io::ErrorKind::NotFound)?;
            return Ok(Arc::clone(shared));
        }
        let lane = FsThread::start(point.display().to_string())?;
        lanes.insert(device.to_owned(), Arc::clone(&lane));
        Ok(lane)
    }
}

impl Drop for FsThreads {
    fn drop(&mut self) {
        for lane in lock(&self.threads).values() {
            lane.stop.send_replace(true);
        }
    }
}

// === impl Lane ===

impl FsThread {
    fn start(name: String) -> io::Result<Arc<Self>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, mut stopped) = watch::channel(false);
        let lane = Arc::new(Self {
            name,
            handle: runtime.handle().clone(),
            stop,
            scratch: Mutex::new(Scratch::new()),
            busy: Busy { base: Instant::now(), since: AtomicU64::new(0) },
        });
        std::thread::Builder::new().name("logs".into()).spawn(move || {
            // The sender may go first, which says the same.
            drop(runtime.block_on(stopped.wait_for(|stopped| *stopped)));
        })?;
        Ok(lane)
    }

    /// Runs a task on the thread.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.handle.spawn(task)
    }

    /// The thread, for a set of tasks.
    pub(crate) const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Notes the beginning of a call that a file system may not let return.
    pub(crate) fn call(&self) -> Call<'_> {
        let since = self.busy.now();
        self.busy.since.store(since + 1, Ordering::Relaxed);
        Call(&self.busy)
    }

    /// For how long a call has not returned, if that is long; and what it is that hangs.
    pub(crate) fn stalled(&self) -> Option<(Duration, &str)> {
        let since = self.busy.since.load(Ordering::Relaxed).checked_sub(1)?;
        let waited = Duration::from_millis(self.busy.now().saturating_sub(since));
        (waited >= STALLED).then_some((waited, self.name.as_str()))
    }
}

// === impl Busy ===

impl Busy {
    fn now(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.since.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn file_systems_have_threads_of_their_own_and_files_of_one_share_it() {
        let lanes = FsThreads::default();
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a/0.log", "b/0.log"].map(|name| dir.path().join(name));
        let a = lanes.of(&a, |_| {}).await.unwrap();
        let b = lanes.of(&b, |_| {}).await.unwrap();
        let proc = lanes.of(Path::new("/proc/self/0.log"), |_| {}).await.unwrap();
        assert!(Arc::ptr_eq(&a, &b));
        assert!(!Arc::ptr_eq(&a, &proc));
        assert_eq!(lanes.stalled(), 0);
    }

    #[tokio::test]
    async fn there_are_never_more_threads_than_allowed() {
        let lanes = FsThreads::default();
        for number in 0..100 {
            lanes.thread(&format!("0:{number}"), Path::new("/")).unwrap();
        }
        assert_eq!(lock(&lanes.threads).len(), MOST);
    }
}
