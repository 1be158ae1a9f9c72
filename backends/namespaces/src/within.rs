//! Runs functions on threads of their own, inside other network and mount namespaces.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use crate::error::Error;
use crate::namespace_file::is_namespace_file;
use crate::ns::Ns;

/// Runs `work` on a throw-away thread and waits for it.
///
/// The thread starts in the caller's namespaces; changes of its namespaces end with it.
pub(crate) fn on_own_thread<T: Send>(
    doing: &'static str,
    work: impl FnOnce() -> T + Send,
) -> Result<T, Error> {
    thread::scope(|scope| {
        thread::Builder::new()
            .name("namespace".to_owned())
            .spawn_scoped(scope, work)
            .map_err(|source| Error::Thread { doing, source })?
            .join()
            .map_err(|_| Error::ThreadLost { doing })
    })
}

/// Runs `work` on a thread with a mount namespace of its own, and returns what it returned.
///
/// Its mounts are visible only to it and the programs that it starts, and end when `work` returns or this
/// process ends. Blocks the caller until `work` returns.
///
/// # Errors
/// [`Error::Namespace`], [`Error::Mount`], [`Error::Thread`]; [`Error::ThreadLost`] if `work` panicked.
pub fn with_own_mounts<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    on_own_thread("work in a mount namespace of its own", move || {
        unshare(CloneFlags::CLONE_NEWNS).map_err(Error::namespace("make a mount namespace"))?;
        // The mounts of a new namespace are peers of the old ones, and would propagate changes there.
        let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&Path>, "/", None::<&Path>, flags, None::<&Path>).map_err(Error::mount(
            "stop the propagation of the mounts below",
            "/",
        ))?;
        Ok(work())
    })?
}

/// Runs `work` inside the network namespace that `netns` names, and returns what it returned.
///
/// `work` runs on a thread of its own; sockets it opens stay in that namespace wherever they are used later.
/// It blocks the caller until `work` returns.
///
/// # Errors
/// [`Error::NotNamespace`] if `netns` is not a namespace file, [`Error::File`] if it cannot be opened,
/// [`Error::Namespace`] if it cannot be entered, [`Error::ThreadLost`] if `work` panicked.
pub fn run_in_netns<T: Send>(netns: &Path, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let doing = "work in a network namespace";
    let file = File::open(netns).map_err(Error::file("open the namespace", netns))?;
    if !is_namespace_file(netns)? {
        return Err(Error::NotNamespace {
            path: netns.to_owned(),
        });
    }
    on_own_thread(doing, move || {
        setns(&file, Ns::Net.flag()).map_err(Error::namespace("enter the network namespace"))?;
        Ok(work())
    })?
}

/// Runs `work` inside each of these network namespaces, one after the other on one thread, and returns what
/// it returned, in order.
///
/// As [`run_in_netns`], but for many: a thread for each would cost more than most work does.
///
/// # Errors
/// For each namespace those of [`run_in_netns`]; for all [`Error::Thread`] if no thread can be started,
/// [`Error::ThreadLost`] if `work` panicked.
pub fn run_in_each_netns<T: Send>(
    all: &[PathBuf],
    work: impl Fn() -> T + Send,
) -> Result<Vec<Result<T, Error>>, Error> {
    on_own_thread("work in network namespaces", move || {
        let within = |netns: &PathBuf| {
            let file = File::open(netns).map_err(Error::file("open the namespace", netns))?;
            if !is_namespace_file(netns)? {
                return Err(Error::NotNamespace {
                    path: netns.clone(),
                });
            }
            setns(&file, Ns::Net.flag())
                .map_err(Error::namespace("enter the network namespace"))?;
            Ok(work())
        };
        all.iter().map(within).collect()
    })
}
