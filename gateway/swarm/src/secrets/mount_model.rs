//! A model of the mounts for secrets, which needs no root: what is hidden below a mount is not modelled.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

/// Mounts that are only counted.
#[derive(Debug, Default)]
pub(crate) struct MountModel {
    /// Number of mounts on the directory.
    pub(crate) mounted: Mutex<usize>,
    /// The test that waits until the next mount has begun, and the release that this mount waits for.
    held: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

/// A mount that takes until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldMount {
    begun: Receiver<()>,
    _release: Sender<()>,
}

// === impl MountModel ===

impl MountModel {
    /// The files below a directory, with mounts that are only counted.
    pub(crate) fn files(dir: PathBuf) -> (SecretFiles, Arc<Self>) {
        let model = Arc::<Self>::default();
        (SecretFiles::over(dir, Arc::clone(&model) as _), model)
    }

    /// Holds the next mount.
    pub(crate) fn hold(&self) -> HeldMount {
        let (told, begun) = channel();
        let (release, released) = channel();
        *self.held.lock() = Some((told, released));
        HeldMount {
            begun,
            _release: release,
        }
    }
}

impl TmpfsMounter for MountModel {
    fn is_mounted(&self, _: &Path) -> Result<bool> {
        Ok(*self.mounted.lock() > 0)
    }

    fn mount(&self, _: &Path) -> Result<()> {
        let held = self.held.lock().take();
        if let Some((begun, released)) = held {
            begun.send(()).expect("a test waits for it");
            // It ends with its sender.
            let _ = released.recv();
        }
        *self.mounted.lock() += 1;
        Ok(())
    }

    fn unmount(&self, _: &Path) -> Result<()> {
        *self.mounted.lock() -= 1;
        Ok(())
    }
}

// === impl HeldMount ===

impl HeldMount {
    /// Waits until it is begun.
    pub(crate) fn begun(&self) {
        self.begun.recv().expect("the mount reports it");
    }
}
