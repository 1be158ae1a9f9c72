//! The questions to the host before the spec of a task is built.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use switchyard_core::Result;
use switchyard_core::spec::{DeviceNode, IoWeight, Propagation, TaskSpec, Throttle};

use crate::gathered::{Gathered, Recorder};
use crate::host_fs::HostFs;
use crate::input::{Host, SandboxFacts};
use crate::resolved::ResolvedMount;
use crate::{cdi, network, seccomp, text};

/// The input of the questions for one task.
#[derive(Debug, Clone, Copy)]
pub struct Questions<'a> {
    /// The task.
    pub task: &'a TaskSpec,
    /// The mounts that it requests.
    pub mounts: &'a [ResolvedMount],
    /// The facts of its sandbox.
    pub sandbox: &'a SandboxFacts,
    /// The abilities of the node.
    pub host: &'a Host,
    /// The directories of CDI specs; a later directory takes precedence.
    pub cdi_dirs: &'a [PathBuf],
}

impl Gathered {
    /// Asks the host all that a task needs, but for the device nodes that the files of its CDI devices name. Blocks on the
    /// file systems of the host, and fails in nothing: the build fails with what was found.
    #[must_use]
    pub fn of_task(asked: &Questions<'_>, fs: &dyn HostFs) -> Self {
        let Questions {
            task,
            mounts,
            sandbox,
            host,
            cdi_dirs,
        } = *asked;
        let recorder = Recorder::new(fs);
        let followed = mounts
            .iter()
            .filter(|mount| mount.requested.propagation != Propagation::Private);
        let sources: BTreeSet<PathBuf> = followed.map(|mount| mount.source.host_path()).collect();
        recorder.record_propagations(sources.into_iter().collect());
        // Answers are recorded with their errors, which the build reports if it needs them.
        if task.security.privileged {
            drop(recorder.all_devices());
        }
        let devices = task
            .devices
            .iter()
            .map(|DeviceNode { host_path, .. }| host_path);
        let throttled = task.throttles.iter().map(|Throttle { device, .. }| device);
        let weighted = task
            .io_weights
            .iter()
            .filter_map(|IoWeight { device, .. }| device.as_ref());
        for path in devices.chain(throttled).chain(weighted) {
            if let Ok(path) = text::absolute("devices", path) {
                drop(recorder.node(Path::new(&path)));
            }
        }
        drop(network::priorities(task, sandbox, host, &recorder));
        if let Some(path) = seccomp::profile_file(&task.security, host) {
            drop(recorder.read(path, seccomp::MAX_PROFILE_BYTES));
        }
        let found = recorder.into_found();
        if task.cdi_devices.is_empty() {
            return found;
        }
        let files = Recorder::new(fs);
        cdi::read_all(cdi_dirs, &files);
        found.with_cdi_files(files.into_found())
    }

    /// Resolves the CDI devices of the task, once: of the files of all devices only the edits of these are kept. Returns
    /// the paths of the device nodes that they name and that have not been looked at. Pure.
    ///
    /// # Errors
    /// `InvalidArgument`, naming `cdi_devices`, for a malformed name, and for a device that is in no file or in two files
    /// of one directory; `Unimplemented` for a device with network devices.
    pub fn resolve_cdi(&mut self, names: &[String], cdi_dirs: &[PathBuf]) -> Result<Vec<PathBuf>> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let edits = cdi::resolve(names, cdi_dirs, &self.take_cdi_files())?;
        let paths: BTreeSet<PathBuf> = cdi::host_nodes(&edits).map(PathBuf::from).collect();
        self.set_cdi_edits(edits);
        Ok(paths
            .into_iter()
            .filter(|path| !self.knows_node(path))
            .collect())
    }
}
