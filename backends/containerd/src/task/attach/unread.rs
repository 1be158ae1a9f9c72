//! FIFOs made by clients that are full and have no reader.
//!
//! A task that writes to such a FIFO blocks for ever, for example after the log collector of the Nomad agent
//! has died. So the content of the FIFO is discarded until it has a reader again: a running task matters more
//! than output that nobody reads. If a reader is only slow, nothing is discarded.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{O_ACCMODE, O_WRONLY};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;

use super::Attachments;
use crate::base::fs::blocking;
use crate::record::OutputRecord;
use crate::task::fifos;

/// The pause between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);
/// In how many checks in a row a FIFO must be full before its readers are searched for.
const FULL_CHECKS: u32 = 2;
/// Time for which content is discarded before readers are searched for again.
const DRAIN_PERIOD: Duration = Duration::from_secs(1);
/// A FIFO with less free space than this has no room for an atomic write (`PIPE_BUF`).
const MIN_SPACE: usize = 4096;
/// The name of shim processes, which have both ends of each FIFO open and read from none.
const SHIM: &str = "containerd-shim";

/// The device and inode of a FIFO, which identify it under any path.
type FileId = (u64, u64);

impl Attachments {
    /// Searches for FIFOs that are full and have no reader, until `stop`.
    pub(crate) async fn watch_unread(self: Arc<Self>, stop: CancellationToken) {
        let mut full: HashMap<PathBuf, u32> = HashMap::new();
        loop {
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = stop.cancelled() => return,
            }
            let paths = self.external_fifos();
            if paths.is_empty() {
                full.clear();
                continue;
            }
            let checked =
                blocking(move || Ok(paths.into_iter().filter(|path| is_full(path)).collect()))
                    .await;
            let now: BTreeSet<PathBuf> = checked.unwrap_or_default();
            full.retain(|path, _| now.contains(path));
            for path in now {
                *full.entry(path).or_default() += 1;
            }
            let long: Vec<PathBuf> = full
                .iter()
                .filter(|(_, checks)| **checks >= FULL_CHECKS)
                .map(|(path, _)| path.clone())
                .collect();
            // Counted from zero again, so that a FIFO with a slow reader is not searched for at every check.
            full.retain(|path, _| !long.contains(path));
            if !long.is_empty() {
                let unread = blocking(move || Ok(without_readers(long)))
                    .await
                    .unwrap_or_default();
                for path in unread {
                    tracing::warn!(fifo = %path.display(), "the output FIFO of a task is full and has no reader: its content is discarded until it has one");
                    self.tracker
                        .spawn(stop.clone().run_until_cancelled_owned(drain_unread(path)));
                }
            }
        }
    }

    /// The FIFOs made by clients that running tasks write to.
    fn external_fifos(&self) -> Vec<PathBuf> {
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
fn without_readers(paths: Vec<PathBuf>) -> Vec<PathBuf> {
    let wanted: HashMap<FileId, PathBuf> = paths
        .into_iter()
        .filter_map(|path| Some((identity(&path)?, path)))
        .collect();
    let mut read = BTreeSet::new();
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
        read.extend(
            fifos_read_by(&dir)
                .into_iter()
                .filter(|fifo| wanted.contains_key(fifo)),
        );
    }
    let nobody =
        |(fifo, path): (FileId, PathBuf)| (sees_shims && !read.contains(&fifo)).then_some(path);
    wanted.into_iter().filter_map(nobody).collect()
}

/// The files with a path that a process has open for reading.
fn fifos_read_by(process: &Path) -> Vec<FileId> {
    let open = std::fs::read_dir(process.join("fd"))
        .into_iter()
        .flatten()
        .flatten();
    // Sockets and anonymous pipes have links such as `pipe:[1]`, which lead to no path.
    let named =
        open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target.is_absolute()));
    let readable = named.filter(|fd| {
        let text = std::fs::read_to_string(process.join("fdinfo").join(fd.file_name()))
            .unwrap_or_default();
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        // The kernel prints the flags in octal.
        let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & O_ACCMODE != O_WRONLY)
    });
    readable.filter_map(|fd| identity(&fd.path())).collect()
}

/// Discards what is written to a FIFO until it has a reader, or no writer.
async fn drain_unread(path: PathBuf) {
    loop {
        let held: Option<File> = fifos::open_readers(std::slice::from_ref(&path))
            .ok()
            .and_then(|held| held.into_iter().next());
        let Some(mut fifo) = held.and_then(|fifo| pipe::Receiver::from_file(fifo).ok()) else {
            return;
        };
        let mut buffer = vec![0; 64 << 10];
        let end = tokio::time::sleep(DRAIN_PERIOD);
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => break,
                read = fifo.read(&mut buffer) => if !matches!(read, Ok(1..)) { return },
            }
        }
        drop(fifo);
        let again = path.clone();
        if !blocking(move || Ok(!without_readers(vec![again]).is_empty()))
            .await
            .unwrap_or(false)
        {
            tracing::info!(fifo = %path.display(), "the output FIFO of a task has a reader again, or is gone");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn a_fifo_is_full_when_it_takes_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        let held = fifos::open_readers(std::slice::from_ref(&path)).unwrap();
        let mut writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        assert!(!is_full(&path));
        let size = fcntl(&held[0], FcntlArg::F_GETPIPE_SZ).unwrap();
        writer
            .write_all(&vec![0; usize::try_from(size).unwrap()])
            .unwrap();
        assert!(is_full(&path));
        assert!(!is_full(Path::new("/dev/null")) && !is_full(Path::new("/no/such")));
    }

    #[test]
    fn who_reads_a_file_is_seen_and_who_writes_to_it_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "").unwrap();
        let of_child = |file: File| {
            let mut child = Command::new("sleep")
                .arg("100")
                .stdin(file)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let found = fifos_read_by(Path::new(&format!("/proc/{}", child.id())));
            child.kill().unwrap();
            child.wait().unwrap();
            found.contains(&identity(&path).unwrap())
        };
        assert!(of_child(File::open(&path).unwrap()));
        assert!(!of_child(
            std::fs::OpenOptions::new().write(true).open(&path).unwrap()
        ));
    }
}
