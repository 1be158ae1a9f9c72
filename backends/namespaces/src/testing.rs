//! Shared by the tests: a thread with a mount namespace of its own.

use std::path::Path;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Runs `test` with a temporary directory on a thread with its own mount, network, UTS and IPC namespaces.
///
/// Threads that `test` starts inherit the namespaces, and all mounts end with the last of the threads, also
/// after a panic.
pub(crate) fn in_private_mounts(test: impl FnOnce(&Path) + Send) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().canonicalize().unwrap();
    let outcome = thread::scope(|scope| {
        scope
            .spawn(|| {
                unshare(
                    CloneFlags::CLONE_NEWNS
                        | CloneFlags::CLONE_NEWNET
                        | CloneFlags::CLONE_NEWUTS
                        | CloneFlags::CLONE_NEWIPC,
                )
                .expect("these tests make namespaces and so must run as root");
                mount(
                    None::<&Path>,
                    "/",
                    None::<&Path>,
                    MsFlags::MS_REC | MsFlags::MS_PRIVATE,
                    None::<&Path>,
                )
                .unwrap();
                test(&dir);
            })
            .join()
    });
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}
