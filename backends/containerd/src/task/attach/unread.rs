//! FIFOs made by clients that are full and have no reader.
//!
//! A task that writes to such a FIFO blocks for ever, for example after the log collector of the Nomad agent
//! has died. So the content of the FIFO is discarded until it has a reader again: a running task matters more
//! than output that nobody reads. If a reader is only slow, nothing is discarded.
//!
//! Who reads a FIFO is shown only by the descriptors of all processes. One search of them serves all FIFOs that are
//! full, however many those are, and searches have a [`Pace`]. A FIFO whose content is discarded is not searched for
//! again: the kernel reports when somebody opens it (inotify), and discarding ends then. Only where it cannot be
//! watched is it part of the next searches.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{O_ACCMODE, O_WRONLY};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use rustix::fs::{Mode, OFlags};
use switchyard_core::threads::bulk;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::Attachments;
use crate::base::fs::blocking;
use crate::base::pace::Pace;
use crate::record::OutputRecord;
use crate::task::fifos;

/// The pause between two checks of which FIFOs are full.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);
/// In how many checks in a row a FIFO must be full before its readers are searched for.
const FULL_CHECKS: u32 = 2;
/// The pause between two looks at which FIFOs have been opened: for so long a new reader may miss output.
const OPEN_INTERVAL: Duration = Duration::from_secs(1);
/// A FIFO with less free space than this has no room for an atomic write (`PIPE_BUF`).
const MIN_SPACE: usize = 4096;
/// The name of shim processes, which have both ends of each FIFO open and read from none.
const SHIM: &str = "containerd-shim";

/// The device and inode of a FIFO, which identify it under any path.
type FileId = (u64, u64);

/// The FIFOs of running tasks that are full, or whose content is discarded.
#[derive(Debug, Default)]
struct UnreadFifos {
    /// In how many checks in a row a FIFO was full.
    full: HashMap<PathBuf, u32>,
    /// Those whose content is discarded.
    drained: HashMap<PathBuf, Drain>,
    /// Reports who opens one of them. There is none while there are no FIFOs to watch, or if the node's limit is
    /// reached.
    opens: Option<Arc<Inotify>>,
    /// The watches of FIFOs that were opened while something else was waited for. The FIFO of one may be part of the search
    /// that runs.
    opened: HashSet<i32>,
    pace: Pace,
}

/// Discards the content of a FIFO until it is dropped.
#[derive(Debug)]
struct Drain {
    discarding: AbortOnDropHandle<()>,
    /// `None` if the FIFO cannot be watched.
    watch: Option<WatchDescriptor>,
}

/// A FIFO that is kept open while its readers are searched for. It is opened before it is watched, so that this is not
/// reported.
#[derive(Debug)]
struct HeldFifo {
    path: PathBuf,
    file: File,
    watch: Option<WatchDescriptor>,
}

impl Attachments {
    /// Searches for FIFOs that are full and have no reader, until `stop`.
    pub(crate) async fn watch_unread(self: Arc<Self>, stop: CancellationToken) {
        let mut fifos = UnreadFifos::default();
        let mut checked = Instant::now();
        loop {
            let interval = if fifos.drained.is_empty() {
                CHECK_INTERVAL
            } else {
                OPEN_INTERVAL
            };
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                () = stop.cancelled() => return,
            }
            fifos.end_opened();
            if checked.elapsed() < CHECK_INTERVAL {
                continue;
            }
            checked = Instant::now();
            let look = async {
                fifos.check(self.external_fifos()).await;
                fifos.search(&self.tracker).await;
            };
            if stop.run_until_cancelled(look).await.is_none() {
                return;
            }
        }
    }

    /// The FIFOs made by clients that running tasks write to.
    fn external_fifos(&self) -> BTreeSet<PathBuf> {
        let tasks: Vec<_> = self.table.lock().values().cloned().collect();
        let fifos = tasks.iter().filter(|entry| entry.runs()).flat_map(|entry| {
            match &entry.record().output {
                OutputRecord::Fifos { stdout, stderr } => vec![stdout.clone(), stderr.clone()],
                OutputRecord::Discard | OutputRecord::Live | OutputRecord::Log(_) => Vec::new(),
            }
        });
        fifos.collect()
    }
}

// === impl UnreadFifos ===

impl UnreadFifos {
    /// Counts which of these FIFOs are full. Of others, nothing is kept.
    async fn check(&mut self, mut paths: BTreeSet<PathBuf>) {
        let is_over =
            |path: &PathBuf, drain: &Drain| !paths.contains(path) || drain.discarding.is_finished();
        let over: Vec<PathBuf> = self
            .drained
            .iter()
            .filter(|(path, drain)| is_over(path, drain))
            .map(|(path, _)| path.clone())
            .collect();
        for path in over {
            self.stop_discarding(&path);
        }
        paths.retain(|path| !self.drained.contains_key(path));
        if self.drained.is_empty() {
            self.opens = None;
        }
        if paths.is_empty() {
            self.full.clear();
            return;
        }
        let checked = blocking(move || {
            paths.retain(|path| is_full(path));
            Ok(paths)
        });
        let now = self.meanwhile(checked).await.unwrap_or_default();
        self.full.retain(|path, _| now.contains(path));
        for path in now {
            *self.full.entry(path).or_default() += 1;
        }
    }

    /// The FIFOs whose readers are to be searched for: those that have been full for long, and those whose content is
    /// discarded and that cannot be watched. Pure.
    fn due(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let long = self
            .full
            .iter()
            .filter(|(_, checks)| **checks >= FULL_CHECKS);
        let unwatched = self
            .drained
            .iter()
            .filter(|(_, drain)| drain.watch.is_none());
        (
            long.map(|(path, _)| path.clone()).collect(),
            unwatched.map(|(path, _)| path.clone()).collect(),
        )
    }

    /// Searches for the readers of the FIFOs for which that is due, once for all of them, if the pace allows it. Begins to
    /// discard the content of those that have none, and ends it for those that have one.
    async fn search(&mut self, tracker: &TaskTracker) {
        let (long, unwatched) = self.due();
        let is_due = !(long.is_empty() && unwatched.is_empty());
        if !is_due || !self.pace.wait(Instant::now()).is_zero() {
            return;
        }
        // Counted from zero again, so that a FIFO with a slow reader is not searched for at every check.
        self.full.retain(|path, _| !long.contains(path));
        if self.opens.is_none() {
            self.opens = open_inotify();
        }
        let opens = self.opens.clone();
        let again = unwatched.clone();
        let searched = bulk(move || {
            let held = hold(long, opens.as_deref());
            let began = Instant::now();
            let paths = held.iter().map(|fifo| fifo.path.clone()).chain(again);
            let unread = without_readers(paths);
            Ok((held, unread, began.elapsed()))
        });
        let Ok((held, unread, took)) = self.meanwhile(searched).await else {
            return;
        };
        self.pace.ran(took, Instant::now());
        for path in unwatched.iter().filter(|path| !unread.contains(*path)) {
            self.end(path);
        }
        for fifo in held {
            if unread.contains(&fifo.path) {
                self.drain(fifo, tracker);
            } else if let Some(watch) = fifo.watch {
                self.forget(watch);
            }
        }
        // Somebody may have opened one after the descriptors of that process were searched.
        self.end_opened();
    }

    /// Waits for work that may take long, and stops to discard the content of FIFOs that are opened meanwhile.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            if let Ok(done) = timeout(OPEN_INTERVAL, work.as_mut()).await {
                return done;
            }
            self.note_opened();
        }
    }

    /// Begins to discard the content of a FIFO.
    fn drain(&mut self, fifo: HeldFifo, tracker: &TaskTracker) {
        let HeldFifo { path, file, watch } = fifo;
        let Ok(receiver) = pipe::Receiver::from_file(file) else {
            if let Some(watch) = watch {
                self.forget(watch);
            }
            return;
        };
        tracing::warn!(fifo = %path.display(), "the output FIFO of a task is full and has no reader: its content is discarded until it has one");
        let discarding = AbortOnDropHandle::new(tracker.spawn(discard(receiver)));
        self.drained.insert(path, Drain { discarding, watch });
    }

    /// Stops to discard the content of FIFOs that somebody has opened since the last look. If that was no reader, they
    /// will be full again.
    fn end_opened(&mut self) {
        self.note_opened();
        self.opened.clear();
    }

    /// The same, but remembers who was opened: the FIFO of one may be discarded only after the search that runs.
    fn note_opened(&mut self) {
        let Some(opens) = &self.opens else {
            return;
        };
        while let Ok(events) = opens.read_events() {
            if events.is_empty() {
                break;
            }
            let watches = events.into_iter().map(|event| event.wd.as_raw());
            self.opened.extend(watches);
        }
        // The kernel has dropped events, and reports that with this number.
        let all = self.opened.contains(&-1);
        let is_opened = |drain: &Drain| {
            drain
                .watch
                .is_some_and(|watch| all || self.opened.contains(&watch.as_raw()))
        };
        let ended: Vec<PathBuf> = self
            .drained
            .iter()
            .filter(|(_, drain)| is_opened(drain))
            .map(|(path, _)| path.clone())
            .collect();
        for path in ended {
            self.end(&path);
        }
    }

    /// Stops to discard the content of a FIFO that has a reader, or is gone.
    fn end(&mut self, path: &Path) {
        self.stop_discarding(path);
        tracing::info!(fifo = %path.display(), "the output FIFO of a task has a reader again, or is gone");
    }

    fn stop_discarding(&mut self, path: &Path) {
        if let Some(watch) = self.drained.remove(path).and_then(|drain| drain.watch) {
            self.forget(watch);
        }
    }

    fn forget(&self, watch: WatchDescriptor) {
        if let Some(opens) = &self.opens {
            // It fails if the FIFO was removed, and its watch with it.
            let _ = opens.rm_watch(watch);
        }
    }
}

fn open_inotify() -> Option<Arc<Inotify>> {
    let opened = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK);
    let failed = |fault: &nix::Error| {
        tracing::debug!(error = %fault, "cannot watch for new readers of output FIFOs: they are searched for again");
    };
    opened.inspect_err(failed).ok().map(Arc::new)
}

/// Opens and watches FIFOs; those that cannot be opened are left out. Blocks.
fn hold(paths: Vec<PathBuf>, opens: Option<&Inotify>) -> Vec<HeldFifo> {
    let held = paths.into_iter().filter_map(|path| {
        let mut opened = fifos::open_readers(std::slice::from_ref(&path)).ok()?;
        let file = opened.pop()?;
        let flags = AddWatchFlags::IN_OPEN | AddWatchFlags::IN_DONT_FOLLOW;
        let watch = opens.and_then(|opens| opens.add_watch(&path, flags).ok());
        Some(HeldFifo { path, file, watch })
    });
    held.collect()
}

/// Returns whether a FIFO has no room for an atomic write. `false` if the path is no FIFO or does not exist.
fn is_full(path: &Path) -> bool {
    let Ok(held) = fifos::open_readers(&[path.to_path_buf()]) else {
        return false;
    };
    held.first().is_some_and(|fifo| {
        let waits = rustix::io::ioctl_fionread(fifo)
            .ok()
            .and_then(|bytes| usize::try_from(bytes).ok());
        let size = fcntl(fifo, FcntlArg::F_GETPIPE_SZ)
            .ok()
            .and_then(|bytes| usize::try_from(bytes).ok());
        waits
            .zip(size)
            .is_some_and(|(waits, size)| waits.saturating_add(MIN_SPACE) > size)
    })
}

fn identity(path: &Path) -> Option<FileId> {
    std::fs::metadata(path)
        .ok()
        .map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Those of these FIFOs that no process has open for reading, except shims and this daemon. Empty if no shim
/// is visible, as in a process namespace of our own, because the readers are then not visible either. Blocks
/// while all processes are scanned.
fn without_readers(paths: impl Iterator<Item = PathBuf>) -> HashSet<PathBuf> {
    let mut unread: HashMap<FileId, Vec<PathBuf>> = HashMap::new();
    let mut inodes = Some(HashSet::new());
    for path in paths {
        let Some(fifo) = identity(&path) else {
            continue;
        };
        inodes = inodes.zip(shown_inode(&path)).map(|(mut inodes, inode)| {
            inodes.insert(inode);
            inodes
        });
        unread.entry(fifo).or_default().push(path);
    }
    let mut sees_shims = false;
    let own = std::process::id();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids.filter(|pid| *pid != own) {
        let dir = PathBuf::from(format!("/proc/{pid}"));
        if std::fs::read_to_string(dir.join("comm")).is_ok_and(|name| name.trim_end() == SHIM) {
            sees_shims = true;
            continue;
        }
        for fifo in files_read_by(&dir, inodes.as_ref()) {
            unread.remove(&fifo);
        }
        if unread.is_empty() {
            break;
        }
    }
    if sees_shims {
        unread.into_values().flatten().collect()
    } else {
        HashSet::new()
    }
}

/// The files with a path that a process has open for reading, of those with these inodes if they are known. Files of
/// others are not accessed, as their file systems may hang.
fn files_read_by(process: &Path, inodes: Option<&HashSet<u64>>) -> Vec<FileId> {
    let open = std::fs::read_dir(process.join("fd"))
        .into_iter()
        .flatten()
        .flatten();
    // Sockets and anonymous pipes have links such as `pipe:[1]`, which lead to no path.
    let named =
        open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target.is_absolute()));
    let readable = named.filter(|fd| {
        let text = std::fs::read_to_string(process.join("fdinfo").join(fd.file_name()));
        is_read(&text.unwrap_or_default(), inodes)
    });
    readable.filter_map(|fd| identity(&fd.path())).collect()
}

/// Returns whether a descriptor is open for reading and may be of a file with one of these inodes, by the text of its
/// `/proc/<pid>/fdinfo/<fd>`. Pure.
fn is_read(fdinfo: &str, inodes: Option<&HashSet<u64>>) -> bool {
    // The kernel prints the flags in octal.
    let flags = field(fdinfo, "flags:").and_then(|flags| i32::from_str_radix(flags, 8).ok());
    flags.is_some_and(|flags| flags & O_ACCMODE != O_WRONLY)
        && inodes
            .zip(inode_in(fdinfo))
            .is_none_or(|(inodes, inode)| inodes.contains(&inode))
}

/// The inode of a file as descriptors of it show it, which on some file systems is not that of its metadata. `None` before
/// Linux 5.14.
fn shown_inode(path: &Path) -> Option<u64> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // This opens nothing that inotify reports.
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let shown = format!("/proc/thread-self/fdinfo/{}", file.as_raw_fd());
    inode_in(&std::fs::read_to_string(shown).ok()?)
}

fn inode_in(fdinfo: &str) -> Option<u64> {
    field(fdinfo, "ino:")?.parse().ok()
}

/// The value after a name in a file of `fdinfo`.
fn field<'t>(fdinfo: &'t str, name: &str) -> Option<&'t str> {
    let value = fdinfo.lines().find_map(|line| line.strip_prefix(name));
    value.map(str::trim)
}

/// Discards what is written to a FIFO, until it has no writer.
async fn discard(mut fifo: pipe::Receiver) {
    let mut buffer = vec![0; 64 << 10];
    while matches!(fifo.read(&mut buffer).await, Ok(1..)) {}
}

#[cfg(test)]
mod tests;
