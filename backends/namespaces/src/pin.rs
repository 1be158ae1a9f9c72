//! Namespaces that outlive the thread that created them, because a bind mount keeps each alive.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::sethostname;
use switchyard_linux::files::if_present;

use switchyard_crash_points::{CrashPoint, reach};

use crate::error::Error;
use crate::files;
use crate::helper::Holder;
use crate::link::loopback_up;
use crate::mounts;
use crate::namespace_file::is_namespace_file;
use crate::ns::Ns;
use crate::sysctl::Checked;
use crate::within::on_own_thread;

/// The namespaces that a sandbox owns, and their setup before a process enters them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinSpec {
    /// A network namespace of its own, with the loopback device up.
    pub net: bool,
    /// An IPC namespace of its own.
    pub ipc: bool,
    /// A UTS namespace of its own.
    pub uts: bool,
    /// A user namespace of its own, which owns the others.
    pub users: Option<Users>,
    /// The host name to set inside; needs `uts`.
    pub hostname: Option<String>,
    /// Sysctls to set inside, with dots or slashes. The caller adds defaults.
    pub sysctls: BTreeMap<String, String>,
}

/// The id maps of a user namespace: ranges of the first id inside, the first id on the host, and the length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// User ids.
    pub uids: Vec<[u32; 3]>,
    /// Group ids.
    pub gids: Vec<[u32; 3]>,
}

/// The pinned namespaces of one sandbox, below one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    dir: PathBuf,
    pinned: Vec<Ns>,
}

impl PinSpec {
    /// Returns whether a namespace of this kind is wanted.
    #[must_use]
    pub fn owns(&self, ns: Ns) -> bool {
        match ns {
            Ns::User => self.users.is_some(),
            Ns::Net => self.net,
            Ns::Ipc => self.ipc,
            Ns::Uts => self.uts,
        }
    }

    fn namespaces(&self) -> Vec<Ns> {
        Ns::ALL.into_iter().filter(|ns| self.owns(*ns)).collect()
    }

    /// Checks host name and sysctls against the wanted namespaces, without touching anything, so that a
    /// frontend can refuse a request early.
    ///
    /// # Errors
    /// [`Error::SysctlName`], [`Error::SysctlHost`], [`Error::SysctlShared`] or [`Error::Invalid`].
    pub fn check(&self) -> Result<(), Error> {
        self.checked_sysctls().map(drop)
    }

    fn checked_sysctls(&self) -> Result<Vec<Checked>, Error> {
        if let Some(hostname) = &self.hostname {
            files::check_hostname(hostname)?;
            if !self.uts {
                return Err(Error::Invalid {
                    what: "host name",
                    value: hostname.clone(),
                    why: "cannot be set, because the sandbox shares the UTS namespace of the host",
                });
            }
        }
        self.sysctls
            .iter()
            .map(|(name, value)| Checked::new(name, value, |ns| self.owns(ns)))
            .collect()
    }
}

impl Pins {
    /// Creates the wanted namespaces, sets them up and pins them as `dir/user`, `dir/net`, `dir/ipc` and
    /// `dir/uts`.
    ///
    /// `dir` is created if it is missing (mode 0700). The call succeeds completely or leaves nothing. It is
    /// not idempotent: existing pins may be in use, so they are an error; after a kill half-way call
    /// [`Pins::remove`] first.
    ///
    /// # Errors
    /// [`Error::AlreadyPinned`]; the errors of [`PinSpec::check`]; [`Error::SysctlWrite`] if the kernel
    /// refuses a value; [`Error::Namespace`], [`Error::Mount`], [`Error::File`], [`Error::Thread`];
    /// [`Error::Undo`] if the failed creation could not be undone.
    pub fn create(dir: &Path, want: &PinSpec) -> Result<Self, Error> {
        let sysctls = want.checked_sysctls()?;
        let made_dir = make_dir(dir)?;
        let mut placed = Vec::new();
        let made = create_mount_files(dir, want, &mut placed)
            .inspect(|()| reach(CrashPoint::PinsPlaced))
            // The thread stays in the new namespaces, so it must not be one that does other work.
            .and_then(|()| {
                on_own_thread("make namespaces", || set_up_and_pin(dir, want, &sysctls))?
            });
        match made {
            Ok(()) => Ok(Self {
                dir: dir.to_owned(),
                pinned: placed,
            }),
            Err(failed) => Err(match undo(dir, &placed, made_dir) {
                Ok(()) => failed,
                Err(undo) => Error::Undo {
                    failed: Box::new(failed),
                    undo: Box::new(undo),
                },
            }),
        }
    }

    /// Finds the pins that an earlier process created.
    ///
    /// # Errors
    /// [`Error::NotPinned`] if there are none, [`Error::NotNamespace`] if one is only a plain file: then its
    /// creation was interrupted, and [`Pins::remove`] removes it.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let mut held = Vec::new();
        for ns in Ns::ALL {
            let path = dir.join(ns.file_name());
            if is_namespace_file(&path)? {
                held.push(ns);
            } else if path.symlink_metadata().is_ok() {
                return Err(Error::NotNamespace { path });
            }
        }
        if held.is_empty() {
            return Err(Error::NotPinned {
                dir: dir.to_owned(),
            });
        }
        Ok(Self {
            dir: dir.to_owned(),
            pinned: held,
        })
    }

    /// The directory of the pins.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file that pins the namespace of this kind, if the sandbox owns one. Processes and runtimes join it
    /// by this path.
    #[must_use]
    pub fn path(&self, ns: Ns) -> Option<PathBuf> {
        self.pinned
            .contains(&ns)
            .then(|| self.dir.join(ns.file_name()))
    }

    /// All pinned namespaces with their files.
    #[must_use]
    pub fn paths(&self) -> BTreeMap<Ns, PathBuf> {
        self.pinned
            .iter()
            .map(|ns| (*ns, self.dir.join(ns.file_name())))
            .collect()
    }

    /// Removes the pins in `dir`, and `dir` itself if nothing else is in it.
    ///
    /// Idempotent: missing pins are fine, also a set that was created only in part. A namespace ends when its
    /// last process exits. After a failure the other pins are tried too.
    ///
    /// # Errors
    /// The first of [`Error::Mount`], [`Error::StillMounted`], [`Error::File`].
    pub fn remove(dir: &Path) -> Result<(), Error> {
        undo(dir, &Ns::ALL, true)
    }
}

/// Creates `dir` if needed; `true` if it was missing.
fn make_dir(dir: &Path) -> Result<bool, Error> {
    use std::os::unix::fs::DirBuilderExt;
    let missing = !dir.exists();
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(Error::file("make the directory", dir))?;
    Ok(missing)
}

/// Creates the empty files that the namespaces are mounted on, and adds each to `placed`.
fn create_mount_files(dir: &Path, want: &PinSpec, placed: &mut Vec<Ns>) -> Result<(), Error> {
    for ns in want.namespaces() {
        let path = dir.join(ns.file_name());
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o400)
            .open(&path)
        {
            Ok(_) => placed.push(ns),
            Err(source) if source.kind() == ErrorKind::AlreadyExists => {
                return Err(Error::AlreadyPinned { path });
            }
            Err(source) => return Err(Error::file("make the file", path)(source)),
        }
    }
    Ok(())
}

/// The part that runs on the throw-away thread, which stays in the host's mount namespace, so that the mounts
/// outlive it.
fn set_up_and_pin(dir: &Path, want: &PinSpec, sysctls: &[Checked]) -> Result<(), Error> {
    let namespaces = want.namespaces();
    // The process that holds the new namespaces; once they are pinned it is not needed any more.
    let holder = match &want.users {
        Some(users) => Some(enter_new(users, &namespaces)?),
        None => {
            let flags = namespaces
                .iter()
                .fold(CloneFlags::empty(), |flags, ns| flags | ns.flag());
            if !flags.is_empty() {
                unshare(flags).map_err(Error::namespace("make new namespaces"))?;
            }
            None
        }
    };
    if let Some(hostname) = &want.hostname {
        sethostname(hostname).map_err(Error::namespace("set the host name"))?;
    }
    if want.net {
        loopback_up()?;
    }
    for sysctl in sysctls {
        sysctl.apply()?;
    }
    for ns in namespaces {
        let target = dir.join(ns.file_name());
        // /proc/self would be the main thread of the process, which is in the host's namespaces.
        let source = match (&holder, ns) {
            (Some(holder), Ns::User) => Path::new(&holder.namespaces()).join(ns.file_name()),
            (Some(_) | None, Ns::User | Ns::Net | Ns::Ipc | Ns::Uts) => {
                Path::new("/proc/thread-self/ns").join(ns.file_name())
            }
        };
        mount(
            Some(&source),
            &target,
            None::<&Path>,
            MsFlags::MS_BIND,
            None::<&Path>,
        )
        .map_err(Error::mount("pin a namespace on", target))?;
        reach(CrashPoint::PinMounted);
    }
    Ok(())
}

/// Has the helper create a user namespace, and the other namespaces owned by it, and enters those others. The
/// calling thread stays in its own user namespace, in which it has privileges over all of them.
fn enter_new(users: &Users, namespaces: &[Ns]) -> Result<Holder, Error> {
    let inner = || namespaces.iter().filter(|ns| **ns != Ns::User);
    let letters: String = inner()
        .map(|ns| match ns {
            Ns::Net => 'n',
            Ns::Ipc => 'i',
            Ns::User | Ns::Uts => 't',
        })
        .collect();
    let lines = |map: &[[u32; 3]]| {
        map.iter()
            .map(|[inside, host, length]| format!("{inside} {host} {length}\n"))
            .collect::<String>()
    };
    let holder = Holder::make(&letters, &lines(&users.uids), &lines(&users.gids))?;
    for ns in inner() {
        let path = Path::new(&holder.namespaces()).join(ns.file_name());
        let file = fs::File::open(&path).map_err(Error::file("open the namespace", path))?;
        setns(file, ns.flag()).map_err(Error::namespace("enter a new namespace"))?;
    }
    Ok(holder)
}

/// Unmounts and unlinks these pins, then removes the directory if requested and empty. Continues after a
/// failure.
fn undo(dir: &Path, pins: &[Ns], with_dir: bool) -> Result<(), Error> {
    let mut first = Ok(());
    for ns in pins {
        first = first.and(unpin(&dir.join(ns.file_name())));
        reach(CrashPoint::PinReleased);
    }
    if with_dir {
        first = first.and(match fs::remove_dir(dir) {
            Ok(()) => Ok(()),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
                Ok(())
            }
            Err(e) => Err(Error::file("remove the directory", dir)(e)),
        });
    }
    first
}

fn unpin(path: &Path) -> Result<(), Error> {
    mounts::detach(path)?;
    if_present(fs::remove_file(path))
        .map(drop)
        .map_err(Error::file("remove", path))
}

#[cfg(test)]
mod tests;
