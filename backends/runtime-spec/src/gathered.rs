//! The facts of the host on which the spec of a task depends, gathered before it is built: the build itself
//! does no I/O, and the part that blocks on the host does nothing else.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use switchyard_core::spec::MissingSource;

use crate::cdi::Edits;
use crate::host_fs::{DeviceInfo, HostFs, HostNode, HostPropagation};

/// The answers of a host, by what it was asked. What it was not asked has none.
#[derive(Debug, Clone, Default)]
pub struct Gathered {
    propagations: BTreeMap<PathBuf, Answer<HostPropagation>>,
    nodes: BTreeMap<PathBuf, Answer<HostNode>>,
    all_devices: Option<Answer<Vec<(PathBuf, DeviceInfo)>>>,
    files: BTreeMap<PathBuf, Answer<Vec<u8>>>,
    lists: BTreeMap<PathBuf, Answer<Vec<PathBuf>>>,
    /// The files of all CDI devices, until those of the task have been resolved.
    cdi_files: Option<Box<Self>>,
    /// The edits of the CDI devices of the task, once they have been resolved.
    cdi_edits: Option<Edits>,
}

/// An answer that can be given again: of an error, its kind and text.
type Answer<T> = Result<T, (io::ErrorKind, String)>;

/// Keeps the answers of a host for those who ask it in turn.
pub(crate) struct Recorder<'a> {
    fs: &'a dyn HostFs,
    found: Mutex<Gathered>,
}

// === impl Gathered ===

impl Gathered {
    /// Returns whether the host was asked for this device node.
    pub(crate) fn knows_node(&self, path: &Path) -> bool {
        self.nodes.contains_key(path)
    }

    /// Has what was read of the files of CDI devices.
    pub(crate) fn with_cdi_files(self, files: Self) -> Self {
        Self {
            cdi_files: Some(Box::new(files)),
            ..self
        }
    }

    /// Hands over what was read of the files of CDI devices.
    pub(crate) fn take_cdi_files(&mut self) -> Self {
        self.cdi_files
            .take()
            .map_or_else(Self::default, |files| *files)
    }

    pub(crate) fn set_cdi_edits(&mut self, edits: Edits) {
        self.cdi_edits = Some(edits);
    }

    /// The edits of the CDI devices of the task; `None` if they have not been resolved.
    pub(crate) const fn cdi_edits(&self) -> Option<&Edits> {
        self.cdi_edits.as_ref()
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

impl<'a> Recorder<'a> {
    pub(crate) fn new(fs: &'a dyn HostFs) -> Self {
        Self {
            fs,
            found: Mutex::default(),
        }
    }

    /// The gathered answers.
    pub(crate) fn into_found(self) -> Gathered {
        self.found.into_inner()
    }

    pub(crate) fn record_propagations(&self, paths: Vec<PathBuf>) {
        let answers = self.fs.propagations(&paths);
        let answers = answers.iter().map(kept);
        self.found
            .lock()
            .propagations
            .extend(paths.into_iter().zip(answers));
    }
}

impl HostFs for Recorder<'_> {
    fn source(&self, path: &Path, missing: MissingSource) -> io::Result<PathBuf> {
        self.fs.source(path, missing)
    }

    fn propagation(&self, path: &Path) -> io::Result<HostPropagation> {
        let answer = self.fs.propagation(path);
        self.found
            .lock()
            .propagations
            .insert(path.to_owned(), kept(&answer));
        answer
    }

    fn node(&self, path: &Path) -> io::Result<HostNode> {
        let answer = self.fs.node(path);
        self.found
            .lock()
            .nodes
            .insert(path.to_owned(), kept(&answer));
        answer
    }

    fn all_devices(&self) -> io::Result<Vec<(PathBuf, DeviceInfo)>> {
        let answer = self.fs.all_devices();
        self.found.lock().all_devices = Some(kept(&answer));
        answer
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let answer = self.fs.read(path, limit);
        self.found
            .lock()
            .files
            .insert(path.to_owned(), kept(&answer));
        answer
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let answer = self.fs.list(dir);
        self.found
            .lock()
            .lists
            .insert(dir.to_owned(), kept(&answer));
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
