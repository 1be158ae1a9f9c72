//! The threads that do file I/O for containers: one for each file system that has logs.
//!
//! A call to a file system that hangs does not return, and blocks its thread. Containers on other file
//! systems must not share that thread; containers on the same one would hang as well. So the number of
//! threads is that of file systems, however many containers hang, and a container that hangs costs only the
//! content of its FIFOs.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::container::lock;
use crate::journal::Scratch;
use crate::mounts::{Device, Mounts, Walk};

/// The most threads. Further file systems share them.
const MOST: usize = 16;

/// A call that takes longer counts as hanging for those that wait for its thread.
pub(crate) const STALLED: Duration = Duration::from_secs(2);

/// The threads of one logkeeper. Dropping it ends them; a thread that hangs ends when its call returns, or
/// with the process.
#[derive(Debug, Default)]
pub(crate) struct FsThreads {
    threads: Mutex<BTreeMap<Device, Arc<FsThread>>>,
}

/// One thread, and what its containers share.
#[derive(Debug)]
pub(crate) struct FsThread {
    /// The mount point of its file system.
    name: String,
    handle: Handle,
    stop: watch::Sender<bool>,
    /// Locked for the duration of one batch, and never across an await.
    pub(crate) scratch: Mutex<Scratch>,
    busy: Busy,
}

/// Since when a call to a file system has not returned.
#[derive(Debug)]
struct Busy {
    base: Instant,
    /// Milliseconds since `base`, plus one; 0 while there is no such call.
    since: AtomicU64,
}

/// Marks a call to a file system, from its beginning until it is dropped.
#[derive(Debug)]
pub(crate) struct Call<'a>(&'a Busy);

// === impl FsThreads ===

impl FsThreads {
    /// The thread for the file system that contains a file, or that will contain it. `passing` is called with
    /// each thread that is waited for. Cancel-safe.
    ///
    /// # Errors
    /// The mounts cannot be read, a thread cannot be started, or the logkeeper is shutting down.
    pub(crate) async fn of(
        &self,
        file: &Path,
        passing: impl Fn(&Arc<FsThread>),
    ) -> io::Result<Arc<FsThread>> {
        let mounts = Arc::new(Mounts::read()?);
        let mut walk = Walk::to(file);
        loop {
            let (device, point) = mounts.of(walk.at());
            let fs_thread = self.thread(device, point)?;
            passing(&fs_thread);
            let mounts = Arc::clone(&mounts);
            let thread = Arc::clone(&fs_thread);
            let looked = fs_thread.spawn(async move {
                let _call = thread.call();
                let ends = walk.advance(&mounts);
                (walk, ends)
            });
            let (walked, ends) = looked.await.map_err(io::Error::other)?;
            if ends {
                return Ok(fs_thread);
            }
            walk = walked;
        }
    }

    /// How many threads have been blocked in a call for at least [`STALLED`].
    pub(crate) fn stalled(&self) -> u64 {
        lock(&self.threads).values().filter(|fs_thread| fs_thread.stalled().is_some()).count() as u64
    }

    fn thread(&self, device: &str, point: &Path) -> io::Result<Arc<FsThread>> {
        let mut fs_threads = lock(&self.threads);
        if let Some(fs_thread) = fs_threads.get(device) {
            return Ok(Arc::clone(fs_thread));
        }
        if fs_threads.len() >= MOST {
            let mut hasher = DefaultHasher::new();
            device.hash(&mut hasher);
            let place = usize::try_from(hasher.finish() % MOST as u64).unwrap_or(0);
            let shared = fs_threads.values().nth(place).ok_or(io::ErrorKind::NotFound)?;
            return Ok(Arc::clone(shared));
        }
        let fs_thread = FsThread::start(point.display().to_string())?;
        fs_threads.insert(device.to_owned(), Arc::clone(&fs_thread));
        Ok(fs_thread)
    }
}

impl Drop for FsThreads {
    fn drop(&mut self) {
        for fs_thread in lock(&self.threads).values() {
            fs_thread.stop.send_replace(true);
        }
    }
}

// === impl FsThread ===

impl FsThread {
    fn start(name: String) -> io::Result<Arc<Self>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, mut stopped) = watch::channel(false);
        let fs_thread = Arc::new(Self {
            name,
            handle: runtime.handle().clone(),
            stop,
            scratch: Mutex::new(Scratch::new()),
            busy: Busy { base: Instant::now(), since: AtomicU64::new(0) },
        });
        std::thread::Builder::new().name("logs".into()).spawn(move || {
            // An error means that the sender was dropped, which ends the thread too.
            drop(runtime.block_on(stopped.wait_for(|stopped| *stopped)));
        })?;
        Ok(fs_thread)
    }

    /// Runs a task on the thread.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.handle.spawn(task)
    }

    /// The runtime handle of the thread, for a `JoinSet`.
    pub(crate) const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Marks the beginning of a call that blocks if the file system hangs.
    pub(crate) fn call(&self) -> Call<'_> {
        let since = self.busy.now();
        self.busy.since.store(since + 1, Ordering::Relaxed);
        Call(&self.busy)
    }

    /// How long the current call has been blocked, if for at least [`STALLED`], and the mount point of the
    /// file system.
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
    async fn each_file_system_has_one_thread() {
        let fs_threads = FsThreads::default();
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a/0.log", "b/0.log"].map(|name| dir.path().join(name));
        let a = fs_threads.of(&a, |_| {}).await.unwrap();
        let b = fs_threads.of(&b, |_| {}).await.unwrap();
        let proc = fs_threads.of(Path::new("/proc/self/0.log"), |_| {}).await.unwrap();
        assert!(Arc::ptr_eq(&a, &b));
        assert!(!Arc::ptr_eq(&a, &proc));
        assert_eq!(fs_threads.stalled(), 0);
    }

    #[tokio::test]
    async fn fs_threads_are_limited() {
        let fs_threads = FsThreads::default();
        for number in 0..100 {
            fs_threads.thread(&format!("0:{number}"), Path::new("/")).unwrap();
        }
        assert_eq!(lock(&fs_threads.threads).len(), MOST);
    }
}
