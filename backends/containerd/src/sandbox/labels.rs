//! The SELinux label of the files that tasks get from their sandbox.

use switchyard_core::Result;
use switchyard_core::spec::Security;
use switchyard_namespaces::Ns;
use switchyard_runtime_spec::{Host, labels};

use super::SandboxEntry;
use crate::base::fs::blocking;
use crate::base::selinux::set_label;

impl SandboxEntry {
    /// Labels the files of the sandbox, once they are made; does nothing where SELinux is off. Those that a kill leaves
    /// without are made again, or removed.
    ///
    /// # Errors
    /// `InvalidArgument` for a part that is not valid in a label; those of [`set_label`].
    pub(super) async fn label_files(&self, host: &Host) -> Result<()> {
        let of_sandbox = self.facts().selinux;
        let made = labels::selinux(&Security::default(), of_sandbox.as_ref(), host)?;
        let Some(made) = made else {
            return Ok(());
        };
        let dirs = &self.dirs;
        let own_shm = self.record.owns(Ns::Ipc).then(|| dirs.shm());
        let files = [dirs.hosts(), dirs.hostname(), dirs.resolv_conf()];
        blocking(move || {
            files
                .into_iter()
                .chain(own_shm)
                .try_for_each(|path| set_label(&path, &made.mount))
        })
        .await
    }
}
