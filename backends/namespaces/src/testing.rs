//! What the tests share: a thread whose mounts vanish with it.

use std::path::Path;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Runs `test` with a temporary directory on a thread with its own mount, network, UTS and IPC namespaces.
///
/// Threads it starts inherit them, and everything mounted ends with the last of them, also after a panic.
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
