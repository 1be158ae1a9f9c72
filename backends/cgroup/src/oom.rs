//! Out-of-memory kills of a cgroup, also of one that is gone by the time anybody asks.
//!
//! An open file of a removed cgroup cannot be read any more (`ENODEV`, on v1 and v2 alike), so holding it is not
//! enough. On v1 the kernel counts into an eventfd, which outlives the cgroup; it adds one when the cgroup goes. On v2
//! the file can be polled for `POLLPRI`: whoever does so and calls [`OomWatch::kills`] keeps the last count. But the
//! kernel holds such news back for up to 10 ms after other news, and systemd removes a scope about as soon after its
//! last process. So whoever sees the main process end reads once more at once ([`OomWatch::end`]). Should even that come
//! too late, the group above is looked at, which counts the kills below it and stays ([`Above`]): a kill that came there
//! since our own file was last read, and in no group beside ours, was ours.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, Result};
use crate::hierarchy::CgroupMode;
use crate::parent_group::{KillOrigin, ParentGroup};
use crate::parse::flat_keyed;
use crate::reader::is_gone;

/// More than the files ever hold.
const MAX_BYTES: usize = 4096;

/// How long the kernel may take to tell that a cgroup went, in ms; it is some milliseconds.
const LAST_SIGNAL_WAIT_MS: u16 = 100;

/// What is known of the out-of-memory kills in a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kills {
    /// So many processes were killed, as far as is known; never less than was said before.
    pub counted: u64,
    /// The cgroup went before its counter could be read a last time, and there was a kill in it or in one that went as well.
    pub doubtful: bool,
}

/// Watches one cgroup for out-of-memory kills.
#[derive(Debug)]
pub struct OomWatch {
    path: PathBuf,
    file: File,
    /// On v1, what the kernel signals to; `None` where it would not take it.
    signals: Option<EventFd>,
    /// On v2, the group above; the root group counts nothing.
    parent: Option<ParentGroup>,
    signalled: u64,
    awaited_removal: bool,
    /// It was read after its main process had ended: nothing that counts comes any more.
    ended: bool,
    last: u64,
}

impl OomWatch {
    /// Starts to watch by the `memory.oom_control` (v1) or `memory.events` (v2) of a cgroup; `None` if it is gone.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be opened or read.
    pub(crate) fn open(path: &Path, mode: CgroupMode) -> Result<Option<Self>> {
        let failed = |source| Error::File { path: path.to_owned(), source };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let (signals, above) = match mode {
            CgroupMode::V1 => (subscribe(path, &file).map_err(failed)?, None),
            CgroupMode::V2 => (None, ParentGroup::of(path)),
        };
        let path = path.to_owned();
        let signalled = 0;
        let settled = false;
        let ended = false;
        let last = 0;
        let mut watch =
            Self { path, file, signals, parent: above, signalled, awaited_removal: settled, ended, last };
        watch.kills()?;
        Ok(Some(watch))
    }

    /// The kills so far.
    ///
    /// Of a cgroup that is gone it is what was read last, and on v1 at least one if it ran out of memory since. There the
    /// first call after a cgroup went may block for a tenth of a second.
    ///
    /// # Errors
    /// [`Error::File`] if the kernel refuses the file for another reason than that the cgroup is gone.
    pub fn kills(&mut self) -> Result<Kills> {
        // Before our own, so that a kill that comes in between is counted there and not missed here.
        let above = self.parent.as_ref().and_then(ParentGroup::read_counts);
        let mut doubtful = false;
        match count(&self.file) {
            Ok(count) => {
                self.last = self.last.max(count);
                if let (Some(group), Some(now)) = (&mut self.parent, above) {
                    group.set_baseline(now);
                }
            }
            Err(error) if is_gone(&error) => {
                self.drain()?;
                self.await_removal_signal()?;
                // One signal says that the cgroup went, any other that it ran out of memory.
                if self.signalled > 1 {
                    self.last = self.last.max(1);
                }
                if let (false, Some(group), Some(now)) = (self.ended, &self.parent, above) {
                    match group.kill_origin(&now) {
                        KillOrigin::Others => {}
                        KillOrigin::Own => self.last = self.last.max(1),
                        KillOrigin::Unknown => doubtful = true,
                    }
                }
            }
            Err(source) => return Err(Error::File { path: self.path.clone(), source }),
        }
        Ok(Kills { counted: self.last, doubtful })
    }

    /// As [`OomWatch::kills`], when the main process has ended: if the counter can still be read, its count is for good and
    /// nothing that happens beside the cgroup later is taken for its own.
    ///
    /// # Errors
    /// Those of [`OomWatch::kills`].
    pub fn kills_at_exit(&mut self) -> Result<Kills> {
        let kills = self.kills()?;
        // Whoever can read it now could do so before.
        self.ended |= count(&self.file).is_ok();
        Ok(kills)
    }

    /// One signal may mean either thing, as the kernel tells a little later that the cgroup went: waits for a second.
    fn await_removal_signal(&mut self) -> Result<()> {
        let Some(signals) = self.signals.as_ref().filter(|_| self.signalled == 1 && !self.awaited_removal)
        else {
            return Ok(());
        };
        match poll(&mut [PollFd::new(signals.as_fd(), PollFlags::POLLIN)], LAST_SIGNAL_WAIT_MS) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(Error::File { path: self.path.clone(), source: error.into() }),
        }
        self.awaited_removal = true;
        self.drain()
    }

    fn drain(&mut self) -> Result<()> {
        let Some(signals) = &self.signals else { return Ok(()) };
        match signals.read() {
            Ok(count) => self.signalled = self.signalled.saturating_add(count),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(error) => return Err(Error::File { path: self.path.clone(), source: error.into() }),
        }
        Ok(())
    }
}

impl OomWatch {
    /// What has to be polled for `POLLPRI` so that no kill is missed, with a call of [`OomWatch::kills`] each time: the file of
    /// the group, and that of the group above where there is one. Nothing on v1, where the kernel counts by itself.
    ///
    /// # Errors
    /// What the kernel says to a copy of a descriptor.
    pub fn polled(&self) -> io::Result<Option<(OwnedFd, Option<OwnedFd>)>> {
        if self.signals.is_some() {
            return Ok(None);
        }
        let above =
            self.parent.as_ref().map(|above| above.file().as_fd().try_clone_to_owned()).transpose()?;
        Ok(Some((self.file.as_fd().try_clone_to_owned()?, above)))
    }
}

impl AsFd for OomWatch {
    /// What to poll: for reading on v1 (an eventfd), for `POLLPRI` on v2.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_ref().map_or_else(|| self.file.as_fd(), AsFd::as_fd)
    }
}

/// An eventfd that the kernel signals when the cgroup runs out of memory.
fn subscribe(path: &Path, file: &File) -> io::Result<Option<EventFd>> {
    let signals = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let line = format!("{} {}", signals.as_fd().as_raw_fd(), file.as_raw_fd());
    match fs::OpenOptions::new().write(true).open(path.with_file_name("cgroup.event_control")) {
        Ok(control) => match control.write_at(line.as_bytes(), 0) {
            Ok(_) => Ok(Some(signals)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        },
        Err(error) if is_gone(&error) || error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number of kills in an open file. Reading it from its start is also what makes polling wait for the next news.
pub(crate) fn count(file: &File) -> io::Result<u64> {
    let mut bytes = [0; MAX_BYTES];
    let length = file.read_at(&mut bytes, 0)?;
    Ok(kills(&String::from_utf8_lossy(&bytes[..length])))
}

/// The number of kills in the text of either file. A kill of a whole group counts at least once.
pub(crate) fn kills(text: &str) -> u64 {
    let counts = flat_keyed(text);
    let count = |key: &str| counts.get(key).copied().unwrap_or(0);
    count("oom_kill").max(count("oom_group_kill"))
}
