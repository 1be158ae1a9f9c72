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
use switchyard_linux::beginning;
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::mounts::{Device, KnownMounts, Walk};
use crate::protocol::{LogFileSystem, MAX_MOUNT_POINT};
use crate::scratch::Scratch;
use crate::write_timer::WriteTimer;

/// The most threads. Further file systems share them, once each has containers.
const MOST: usize = 16;

/// A call that takes longer counts as hanging for those that wait for its thread.
pub(crate) const STALLED: Duration = Duration::from_secs(2);

/// The threads of one logkeeper. Dropping it ends them; a thread that hangs ends when its call returns, or
/// with the process.
#[derive(Debug, Default)]
pub(crate) struct FsThreads {
    threads: Mutex<BTreeMap<Device, Arc<FsThread>>>,
    mounts: KnownMounts,
    /// The stalls of threads that have ended.
    past_stalls: AtomicU64,
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
    /// The timer of the batch in `scratch`, which is locked for as long as a write takes.
    timer: Arc<WriteTimer>,
    busy: Busy,
}

/// Since when a call to a file system has not returned.
#[derive(Debug)]
struct Busy {
    base: Instant,
    /// Milliseconds since `base`, plus one; 0 while there is no such call.
    since: AtomicU64,
    /// The value of `since` of the call that was last counted as a stall; 0 if none was.
    counted: AtomicU64,
    /// Number of calls that have been blocked for at least [`STALLED`].
    stalls: AtomicU64,
}

/// The stalls of all threads.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct StallReport {
    /// Number of threads that have been blocked in a call for at least [`STALLED`].
    pub(crate) threads: u64,
    /// Duration of the longest of these calls so far; zero if there is none.
    pub(crate) longest: Duration,
    /// Number of calls that were blocked that long, including those that still are. It never falls.
    pub(crate) total: u64,
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
        let mounts = self.mounts.current().await?;
        let mut walk = Walk::to(file);
        loop {
            let (device, point) = mounts.of(walk.at());
            let fs_thread = self.thread(device, point)?;
            passing(&fs_thread);
            let mounts = Arc::clone(&mounts);
            let thread = Arc::clone(&fs_thread);
            // Each part of the path is looked up on the thread of its own file system: only that may hang.
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

    /// The stalls of all threads, past and present.
    pub(crate) fn stalls(&self) -> StallReport {
        let total = self.past_stalls.load(Ordering::Relaxed);
        let mut report = StallReport {
            total,
            ..StallReport::default()
        };
        for fs_thread in self.threads.lock().values() {
            if let Some((waited, _)) = fs_thread.stalled() {
                report.threads += 1;
                report.longest = report.longest.max(waited);
            }
            report.total += fs_thread.busy.stalls.load(Ordering::Relaxed);
        }
        report
    }

    /// The file systems with logs and what they did, without their containers. Those of one mount point are one: a file system
    /// that hangs is still known when another one is mounted in its place.
    pub(crate) fn file_systems(&self) -> Vec<LogFileSystem> {
        let mut all: Vec<LogFileSystem> = Vec::new();
        for fs_thread in self.threads.lock().values() {
            let point = fs_thread.mount_point();
            let stall_age_ms = fs_thread.stalled().map_or(0, |(waited, _)| {
                u64::try_from(waited.as_millis()).unwrap_or(u64::MAX)
            });
            let writes = fs_thread.timer.times();
            match all.iter_mut().find(|known| known.mount_point == point) {
                Some(known) => {
                    known.stall_age_ms = known.stall_age_ms.max(stall_age_ms);
                    known.writes.add(&writes);
                }
                None => all.push(LogFileSystem {
                    mount_point: point.to_owned(),
                    stall_age_ms,
                    writes,
                    ..LogFileSystem::default()
                }),
            }
        }
        all
    }

    fn thread(&self, device: &str, point: &Path) -> io::Result<Arc<FsThread>> {
        let mut fs_threads = self.threads.lock();
        if let Some(fs_thread) = fs_threads.get(device) {
            return Ok(Arc::clone(fs_thread));
        }
        if fs_threads.len() >= MOST {
            // The table alone refers to the thread of a file system that has no containers any more.
            fs_threads.retain(|_, idle| {
                let is_used = Arc::strong_count(idle) > 1;
                if !is_used {
                    self.past_stalls
                        .fetch_add(idle.busy.stalls.load(Ordering::Relaxed), Ordering::Relaxed);
                    idle.stop.send_replace(true);
                }
                is_used
            });
        }
        if fs_threads.len() >= MOST {
            let mut hasher = DefaultHasher::new();
            device.hash(&mut hasher);
            let place = usize::try_from(hasher.finish() % MOST as u64).unwrap_or(0);
            let shared = fs_threads
                .values()
                .nth(place)
                .ok_or(io::ErrorKind::NotFound)?;
            return Ok(Arc::clone(shared));
        }
        let fs_thread = FsThread::start(point.display().to_string())?;
        fs_threads.insert(device.to_owned(), Arc::clone(&fs_thread));
        Ok(fs_thread)
    }
}

impl Drop for FsThreads {
    fn drop(&mut self) {
        for fs_thread in self.threads.lock().values() {
            fs_thread.stop.send_replace(true);
        }
    }
}

// === impl FsThread ===

impl FsThread {
    fn start(name: String) -> io::Result<Arc<Self>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, mut stopped) = watch::channel(false);
        let scratch = Scratch::new();
        let fs_thread = Arc::new(Self {
            name,
            handle: runtime.handle().clone(),
            stop,
            timer: scratch.batch.timer(),
            scratch: Mutex::new(scratch),
            busy: Busy::new(),
        });
        std::thread::Builder::new()
            .name("logs".into())
            .spawn(move || {
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

    /// The mount point of the file system, as far as it is reported.
    pub(crate) fn mount_point(&self) -> &str {
        beginning(&self.name, MAX_MOUNT_POINT)
    }

    /// Marks the beginning of a call that blocks if the file system hangs.
    pub(crate) fn call(&self) -> Call<'_> {
        let since = self.busy.now();
        self.busy.since.store(since + 1, Ordering::Relaxed);
        Call(&self.busy)
    }

    /// Time for which the current call has been blocked, if for at least [`STALLED`], and the mount point of
    /// the file system.
    pub(crate) fn stalled(&self) -> Option<(Duration, &str)> {
        Some((self.busy.stalled()?, self.name.as_str()))
    }
}

// === impl Busy ===

impl Busy {
    fn new() -> Self {
        Self {
            base: Instant::now(),
            since: AtomicU64::new(0),
            counted: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
        }
    }

    /// Time for which the current call has been blocked, if for at least [`STALLED`]. Counts each such call
    /// once, at the first look.
    fn stalled(&self) -> Option<Duration> {
        let since = self.since.load(Ordering::Relaxed);
        let waited = Duration::from_millis(self.now().saturating_sub(since.checked_sub(1)?));
        if waited < STALLED {
            return None;
        }
        if self.counted.swap(since, Ordering::Relaxed) != since {
            self.stalls.fetch_add(1, Ordering::Relaxed);
        }
        Some(waited)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.base.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        // A stall that ends before anyone has asked is one too.
        let _ = self.0.stalled();
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
        let proc = fs_threads
            .of(Path::new("/proc/self/0.log"), |_| {})
            .await
            .unwrap();
        assert!(Arc::ptr_eq(&a, &b));
        assert!(!Arc::ptr_eq(&a, &proc));
        assert_eq!(fs_threads.stalls(), StallReport::default());
    }

    #[test]
    fn file_systems_of_one_mount_point_are_reported_as_one() {
        let fs_threads = FsThreads::default();
        let [former, present, other] = [("0:51", "/logs"), ("0:52", "/logs"), ("8:1", "/")]
            .map(|(device, point)| fs_threads.thread(device, Path::new(point)).unwrap());
        former.timer.add(Duration::from_secs(3));
        present.timer.add(Duration::ZERO);
        other.timer.add(Duration::ZERO);
        let reported = fs_threads.file_systems();
        let counts: Vec<_> = reported
            .iter()
            .map(|known| (known.mount_point.as_str(), known.writes.count))
            .collect();
        assert_eq!(counts, [("/logs", 2), ("/", 1)]);
        let buckets = &reported[0].writes.buckets;
        let ends = (buckets[0].count, buckets[buckets.len() - 1].count);
        assert_eq!(ends, (1, 2));
    }

    #[test]
    fn a_stall_is_counted_once_whether_it_is_seen_or_ends_first() {
        let busy = Busy {
            base: Instant::now() - STALLED * 10,
            ..Busy::new()
        };
        let begin = |ago: Duration| {
            let since = (busy.base.elapsed() - ago).as_millis();
            busy.since
                .store(u64::try_from(since).unwrap() + 1, Ordering::Relaxed);
        };
        let stalls = || busy.stalls.load(Ordering::Relaxed);
        assert_eq!(busy.stalled(), None);
        drop(Call(&busy));
        begin(STALLED / 2);
        drop(Call(&busy));
        assert_eq!((busy.stalled(), stalls()), (None, 0));
        begin(STALLED * 2);
        assert!(busy.stalled() >= Some(STALLED * 2) && busy.stalled().is_some());
        drop(Call(&busy));
        assert_eq!((busy.stalled(), stalls()), (None, 1));
        begin(STALLED * 3);
        drop(Call(&busy));
        assert_eq!((busy.stalled(), stalls()), (None, 2));
    }

    #[tokio::test]
    async fn fs_threads_are_limited() {
        let fs_threads = FsThreads::default();
        let thread = |number: usize| {
            let point = format!("/{number}");
            fs_threads
                .thread(&format!("0:{number}"), Path::new(&point))
                .unwrap()
        };
        let used: Vec<_> = (0..100).map(thread).collect();
        assert_eq!(fs_threads.threads.lock().len(), MOST);
        drop(used);
        // A file system that comes later than many others that are gone has a thread of its own.
        assert_eq!(thread(100).name, "/100");
        assert!(fs_threads.threads.lock().len() <= MOST);
    }
}
