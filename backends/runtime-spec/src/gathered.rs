//! What the spec of a task asks of the host, found out before it is built: a build itself does no I/O, and what blocks on
//! the host does nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use switchyard_core::Result;
use switchyard_core::spec::{DeviceNode, IoWeight, MissingSource, Propagation, TaskSpec, Throttle};

use crate::input::{DeviceInfo, Host, HostFs, HostNode, HostPropagation, SandboxFacts};
use crate::resolved::ResolvedMount;
use crate::{cdi, network, seccomp, text};

/// The answers of a host, by what it was asked. What it was not asked has none.
#[derive(Debug, Clone, Default)]
pub struct Gathered {
    propagations: BTreeMap<PathBuf, Answer<HostPropagation>>,
    nodes: BTreeMap<PathBuf, Answer<HostNode>>,
    all_devices: Option<Answer<Vec<(PathBuf, DeviceInfo)>>>,
    files: BTreeMap<PathBuf, Answer<Vec<u8>>>,
    lists: BTreeMap<PathBuf, Answer<Vec<PathBuf>>>,
}

/// An answer that can be given again: of an error, its kind and text.
type Answer<T> = std::result::Result<T, (io::ErrorKind, String)>;

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

/// Keeps the answers of a host for those who ask it in turn.
struct Recorder<'a> {
    fs: &'a dyn HostFs,
    found: Mutex<Gathered>,
}

// === impl Gathered ===

impl Gathered {
    /// Asks the host all that a task needs, but for the device nodes that the files of its CDI devices name. Blocks on the
    /// file systems of the host, and fails in nothing: the build fails with what was found.
    #[must_use]
    pub fn of_task(asked: &Questions<'_>, fs: &dyn HostFs) -> Self {
        let Questions { task, mounts, sandbox, host, cdi_dirs } = *asked;
        let recorder = Recorder { fs, found: Mutex::default() };
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
        recorder.found.into_inner()
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
        Ok(paths.into_iter().filter(|path| !self.nodes.contains_key(path)).collect())
    }

    /// Asks the host for these device nodes as well. Blocks.
    #[must_use]
    pub fn with_nodes(mut self, paths: Vec<PathBuf>, fs: &dyn HostFs) -> Self {
        for path in paths {
            let answer = kept(&fs.node(&path));
            self.nodes.insert(path, answer);
        }
        self
    }
}

impl HostFs for Gathered {
    /// The sources of mounts are found before.
    fn source(&self, path: &Path, _: MissingSource) -> io::Result<PathBuf> {
        Err(not_asked(path))
    }

    fn propagation(&self, path: &Path) -> io::Result<HostPropagation> {
        given(self.propagations.get(path), path)
    }

    fn node(&self, path: &Path) -> io::Result<HostNode> {
        given(self.nodes.get(path), path)
    }

    fn all_devices(&self) -> io::Result<Vec<(PathBuf, DeviceInfo)>> {
        given(self.all_devices.as_ref(), Path::new("/dev"))
    }

    fn read(&self, path: &Path, _: u64) -> io::Result<Vec<u8>> {
        given(self.files.get(path), path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        given(self.lists.get(dir), dir)
    }
}

// === impl Recorder ===

impl Recorder<'_> {
    fn record_propagations(&self, paths: Vec<PathBuf>) {
        let answers = self.fs.propagations(&paths);
        let answers = answers.iter().map(kept);
        self.found.lock().propagations.extend(paths.into_iter().zip(answers));
    }
}

impl HostFs for Recorder<'_> {
    fn source(&self, path: &Path, missing: MissingSource) -> io::Result<PathBuf> {
        self.fs.source(path, missing)
    }

    fn propagation(&self, path: &Path) -> io::Result<HostPropagation> {
        let answer = self.fs.propagation(path);
        self.found.lock().propagations.insert(path.to_owned(), kept(&answer));
        answer
    }

    fn node(&self, path: &Path) -> io::Result<HostNode> {
        let answer = self.fs.node(path);
        self.found.lock().nodes.insert(path.to_owned(), kept(&answer));
        answer
    }

    fn all_devices(&self) -> io::Result<Vec<(PathBuf, DeviceInfo)>> {
        let answer = self.fs.all_devices();
        self.found.lock().all_devices = Some(kept(&answer));
        answer
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let answer = self.fs.read(path, limit);
        self.found.lock().files.insert(path.to_owned(), kept(&answer));
        answer
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let answer = self.fs.list(dir);
        self.found.lock().lists.insert(dir.to_owned(), kept(&answer));
        answer
    }
}

fn kept<T: Clone>(answer: &io::Result<T>) -> Answer<T> {
    match answer {
        Ok(found) => Ok(found.clone()),
        Err(error) => Err((error.kind(), error.to_string())),
    }
}

fn given<T: Clone>(answer: Option<&Answer<T>>, path: &Path) -> io::Result<T> {
    match answer {
        Some(Ok(found)) => Ok(found.clone()),
        Some(Err((kind, text))) => Err(io::Error::new(*kind, text.clone())),
        None => Err(not_asked(path)),
    }
}

fn not_asked(path: &Path) -> io::Error {
    io::Error::other(format!("the host was not asked for {}", path.display()))
}
