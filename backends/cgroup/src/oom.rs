//! OOM kills of a cgroup, also of one that is removed before they are queried.
//!
//! An open file of a removed cgroup cannot be read any more (`ENODEV`, on v1 and v2 alike), so keeping it
//! open is not enough. On v1 the kernel counts into an eventfd, which outlives the cgroup; it adds one when
//! the cgroup is removed. On v2 the file can be polled for `POLLPRI`: a caller that does so and calls
//! [`OomWatch::kills`] keeps the last count. But the kernel delays a notification for up to 10 ms after the
//! previous one, and systemd removes a scope about as soon after its last process. So a caller that sees the
//! main process exit reads once more at once ([`OomWatch::kills_at_exit`]). If even that is too late, the
//! parent is read, which counts the kills in its descendants and remains ([`ParentGroup`]): a kill that it
//! counted since the watched group's own file was last read, and that no sibling counted, was in the watched
//! group.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, Result};
use crate::files::is_gone;
use crate::hierarchy::CgroupMode;
use crate::kill_count::count;
use crate::parent_group::{KillOrigin, ParentGroup};

/// Time for the kernel to signal that a cgroup was removed, in ms; it takes some milliseconds.
const LAST_SIGNAL_WAIT_MS: u16 = 100;

/// The known OOM kills in a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kills {
    /// The number of processes that are known to have been killed; never less than an earlier value.
    pub counted: u64,
    /// The cgroup was removed before its counter could be read a last time, and there may have been a kill in
    /// it: there was one in it or in a sibling whose counter cannot be read, or that of the parent cannot be
    /// read.
    pub doubtful: bool,
}

/// Watches one cgroup for OOM kills.
#[derive(Debug)]
pub struct OomWatch {
    path: PathBuf,
    file: File,
    /// On v1, the eventfd that the kernel signals; `None` if it could not be registered.
    signals: Option<EventFd>,
    /// On v2, the parent, unless that is the root, which counts nothing.
    parent: Option<ParentGroup>,
    signalled: u64,
    awaited_removal: bool,
    /// The count was read after the main process had exited: later kills do not matter.
    ended: bool,
    last: u64,
}

impl OomWatch {
    /// Starts to watch the `memory.oom_control` (v1) or `memory.events` (v2) of a cgroup; `None` if it does
    /// not exist.
    ///
    /// # Errors
    /// [`Error::File`] if the file, or that of the parent, cannot be opened or read.
    pub(crate) fn open(path: &Path, mode: CgroupMode) -> Result<Option<Self>> {
        let failed = |source| Error::File {
            path: path.to_owned(),
            source,
        };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let (signals, parent) = match mode {
            CgroupMode::V1 => (subscribe(path, &file).map_err(failed)?, None),
            CgroupMode::V2 => (None, ParentGroup::of(path)?),
        };
        let path = path.to_owned();
        let mut watch = Self {
            path,
            file,
            signals,
            parent,
            signalled: 0,
            awaited_removal: false,
            ended: false,
            last: 0,
        };
        // Takes the baseline of the counts.
        watch.kills()?;
        Ok(Some(watch))
    }

    /// The kills so far.
    ///
    /// For a removed cgroup this is the count that was read last, on v1 at least one if it ran out of memory
    /// since. On v1 the first call after the removal may block for a tenth of a second.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read for another reason than that the cgroup was removed.
    pub fn kills(&mut self) -> Result<Kills> {
        // Read before the group's own file, so that a kill between the two reads is counted again rather than
        // missed.
        let parent_counts = self.parent.as_ref().and_then(ParentGroup::read_counts);
        let mut doubtful = false;
        match count(&self.file) {
            Ok(count) => {
                self.last = self.last.max(count);
                if let (Some(group), Some(now)) = (&mut self.parent, parent_counts) {
                    group.set_baseline(now);
                }
            }
            Err(error) if is_gone(&error) => {
                self.drain()?;
                self.await_removal_signal()?;
                // One signal is for the removal of the cgroup, any other for running out of memory.
                if self.signalled > 1 {
                    self.last = self.last.max(1);
                }
                if let (false, Some(group)) = (self.ended, &self.parent) {
                    match group.kill_origin(parent_counts.as_ref()) {
                        KillOrigin::Others => {}
                        KillOrigin::Own => self.last = self.last.max(1),
                        KillOrigin::Unknown => doubtful = true,
                    }
                }
            }
            Err(source) => {
                return Err(Error::File {
                    path: self.path.clone(),
                    source,
                });
            }
        }
        Ok(Kills {
            counted: self.last,
            doubtful,
        })
    }

    /// The number of processes that were known to have been killed when the count was read last. Reads nothing.
    #[must_use]
    pub const fn counted(&self) -> u64 {
        self.last
    }

    /// As [`OomWatch::kills`], after the main process has exited: if the counter can still be read, its count
    /// is final, and later kills in siblings are not attributed to this cgroup.
    ///
    /// # Errors
    /// Those of [`OomWatch::kills`].
    pub fn kills_at_exit(&mut self) -> Result<Kills> {
        let kills = self.kills()?;
        // If the counter can be read now, it could be read by the call above too.
        self.ended |= count(&self.file).is_ok();
        Ok(kills)
    }

    /// A single signal may be for a kill or for the removal, which the kernel signals a little later: waits
    /// for a second signal.
    fn await_removal_signal(&mut self) -> Result<()> {
        let Some(signals) = self
            .signals
            .as_ref()
            .filter(|_| self.signalled == 1 && !self.awaited_removal)
        else {
            return Ok(());
        };
        match poll(
            &mut [PollFd::new(signals.as_fd(), PollFlags::POLLIN)],
            LAST_SIGNAL_WAIT_MS,
        ) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => {
                return Err(Error::File {
                    path: self.path.clone(),
                    source: error.into(),
                });
            }
        }
        self.awaited_removal = true;
        self.drain()
    }

    /// Counts the signals since the last call.
    fn drain(&mut self) -> Result<()> {
        let Some(signals) = &self.signals else {
            return Ok(());
        };
        match signals.read() {
            Ok(count) => self.signalled = self.signalled.saturating_add(count),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(error) => {
                return Err(Error::File {
                    path: self.path.clone(),
                    source: error.into(),
                });
            }
        }
        Ok(())
    }
}

impl OomWatch {
    /// The files to poll for `POLLPRI` so that no kill is missed, with a call of [`OomWatch::kills`] at each
    /// event: that of the group, and that of its parent unless this is the root. `None` on v1, where the
    /// kernel counts into the eventfd.
    ///
    /// # Errors
    /// If a descriptor cannot be duplicated.
    pub fn polled(&self) -> io::Result<Option<(OwnedFd, Option<OwnedFd>)>> {
        if self.signals.is_some() {
            return Ok(None);
        }
        let parent = self
            .parent
            .as_ref()
            .map(|parent| parent.file().as_fd().try_clone_to_owned())
            .transpose()?;
        Ok(Some((self.file.as_fd().try_clone_to_owned()?, parent)))
    }
}

impl AsFd for OomWatch {
    /// The descriptor to poll: for reading on v1 (an eventfd), for `POLLPRI` on v2.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals
            .as_ref()
            .map_or_else(|| self.file.as_fd(), AsFd::as_fd)
    }
}

/// An eventfd that the kernel signals when the cgroup runs out of memory; `None` if the cgroup is removed, or
/// the kernel refuses it.
fn subscribe(path: &Path, file: &File) -> io::Result<Option<EventFd>> {
    let signals = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let line = format!("{} {}", signals.as_fd().as_raw_fd(), file.as_raw_fd());
    match fs::OpenOptions::new()
        .write(true)
        .open(path.with_file_name("cgroup.event_control"))
    {
        Ok(control) => match control.write_at(line.as_bytes(), 0) {
            Ok(_) => Ok(Some(signals)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        },
        Err(error) if is_gone(&error) || error.kind() == io::ErrorKind::PermissionDenied => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
