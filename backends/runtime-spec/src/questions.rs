//! What the host is asked before the spec of a task is built.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use switchyard_core::Result;
use switchyard_core::spec::{DeviceNode, IoWeight, Propagation, TaskSpec, Throttle};

use crate::gathered::{Gathered, Recorder};
use crate::input::{Host, HostFs, SandboxFacts};
use crate::resolved::ResolvedMount;
use crate::{cdi, network, seccomp, text};

/// Of which task the host is asked.
#[derive(Debug, Clone, Copy)]
pub struct Questions<'a> {
    /// The task.
    pub task: &'a TaskSpec,
    /// The mounts that it requests.
    pub mounts: &'a [ResolvedMount],
    /// What its sandbox provides.
    pub sandbox: &'a SandboxFacts,
    /// What the node can do.
    pub host: &'a Host,
    /// The directories of CDI specs.
    pub cdi_dirs: &'a [PathBuf],
}

impl Gathered {
    /// Asks the host all that a task needs, but for the device nodes that the files of its CDI devices name. Blocks on the
    /// file systems of the host, and fails in nothing: the build fails with what was found.
    #[must_use]
    pub fn of_task(asked: &Questions<'_>, fs: &dyn HostFs) -> Self {
        let Questions { task, mounts, sandbox, host, cdi_dirs } = *asked;
        let recorder = Recorder::new(fs);
        let followed = mounts.iter().filter(|mount| mount.requested.propagation != Propagation::Private);
        let sources: BTreeSet<PathBuf> = followed.map(|mount| mount.source.host_path()).collect();
        recorder.record_propagations(sources.into_iter().collect());
        if task.security.privileged {
            drop(recorder.all_devices());
        }
        let devices = task.devices.iter().map(|DeviceNode { host_path, .. }| host_path);
        let throttled = task.throttles.iter().map(|Throttle { device, .. }| device);
        let weighted = task.io_weights.iter().filter_map(|IoWeight { device, .. }| device.as_ref());
        for path in devices.chain(throttled).chain(weighted) {
            if let Ok(path) = text::absolute("devices", path) {
                drop(recorder.node(Path::new(&path)));
            }
        }
        drop(network::priorities(task, sandbox, host, &recorder));
        if let Some(path) = seccomp::profile_file(&task.security, host) {
            drop(recorder.read(path, seccomp::MAX_PROFILE_BYTES));
        }
        if !task.cdi_devices.is_empty() {
            cdi::read_all(cdi_dirs, &recorder);
        }
        recorder.into_found()
    }

    /// The paths of the device nodes that the files of CDI devices name, and that have not been looked at. Pure.
    ///
    /// # Errors
    /// Those of the build for these devices.
    pub fn cdi_nodes(&self, names: &[String], cdi_dirs: &[PathBuf]) -> Result<Vec<PathBuf>> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let edits = cdi::resolve(names, cdi_dirs, self)?;
        let paths: BTreeSet<PathBuf> = cdi::host_nodes(&edits).map(PathBuf::from).collect();
        Ok(paths.into_iter().filter(|path| !self.knows_node(path)).collect())
    }
}
