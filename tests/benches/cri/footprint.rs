//! The objects of a pod on the node, and how many of them are left.
//!
//! The difference between a scan before the pod and one after it is what belongs to the pod, whoever created
//! it: nothing is assumed about how a side names things. To check that everything is gone takes some system
//! calls for each object that still exists and, when none does, one or two calls to containerd for each id.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use switchyard_tests::host::{cgroups, mounts, processes};
use switchyard_tests::root::PrivateRoot;

use crate::bridges::BRIDGES;
use crate::failure::Failure;
use crate::side::Side;

/// Directory in which the shims let runc keep its state, as `<namespace>/<id>`.
pub(crate) const RUNC: &str = "/run/containerd/runc";
/// Directory in which libcni keeps results.
const CNI_RESULTS: &str = "/var/lib/cni/results";
/// Directories whose content belongs to no pod: files of images, and root file systems of containers.
const OPAQUE: [&str; 8] = [
    "snapshots",
    "rootfs",
    "shm",
    "blobs",
    "io.containerd.metadata.v1.bolt",
    "certs.d",
    "timed-ours",
    "timed-theirs",
];

/// Looks at everything below a private root, and at the ports of all bridges that pods may be on.
#[derive(Debug)]
pub(crate) struct NodeScanner {
    root: PathBuf,
    logs: PathBuf,
    bridges: Vec<PathBuf>,
    cgroup: String,
}

/// The objects of the node at one moment.
#[derive(Debug)]
pub(crate) struct NodeObjects {
    /// Files, directories, control groups and interfaces.
    paths: BTreeSet<PathBuf>,
    mounts: BTreeSet<PathBuf>,
    /// Process ids with start times.
    processes: BTreeSet<(i32, u64)>,
}

/// The objects that belong to one pod and are not known to be gone.
#[derive(Debug)]
pub(crate) struct Footprint {
    paths: Vec<PathBuf>,
    mounts: Vec<PathBuf>,
    processes: Vec<(i32, u64)>,
    containers: Vec<String>,
    snapshots: Vec<String>,
}

// === impl NodeScanner ===

impl NodeScanner {
    /// Scans the objects below this root.
    pub(crate) fn new(root: &PrivateRoot) -> Self {
        let names = BRIDGES.into_iter().chain([root.network().bridge()]);
        let ports = |bridge: &str| Path::new("/sys/class/net").join(bridge).join("brif");
        Self {
            root: root.path().to_owned(),
            logs: root.log_dir(),
            bridges: names.map(ports).collect(),
            cgroup: root.cgroup_name(),
        }
    }

    /// Looks now.
    pub(crate) fn scan(&self) -> NodeObjects {
        let mut paths = BTreeSet::new();
        self.walk(&self.root, &mut paths);
        let bridges = self.bridges.iter().map(PathBuf::as_path);
        for dir in bridges.chain([Path::new(CNI_RESULTS)]) {
            paths.extend(children(dir));
        }
        let groups = cgroups::trees_named(&self.cgroup);
        let mut processes: BTreeSet<_> = cgroups::members(&self.cgroup)
            .into_iter()
            .filter_map(processes::find)
            .map(|process| (process.pid, process.started))
            .collect();
        // Shims stay outside of the pods' control groups; their command line names containerd's socket.
        let root = self.root.to_string_lossy();
        let shims = processes::all().into_iter().filter(|process| {
            process.command.contains("containerd-shim") && process.command.contains(root.as_ref())
        });
        processes.extend(shims.map(|process| (process.pid, process.started)));
        // The parent of all cgroups belongs to no single pod, and stays.
        paths.extend(
            groups
                .into_iter()
                .filter(|group| !group.ends_with(&self.cgroup))
                .collect::<Vec<_>>(),
        );
        let mounts = mounts::below(&self.root)
            .into_iter()
            .map(|mount| mount.point)
            .collect();
        NodeObjects {
            paths,
            mounts,
            processes,
        }
    }

    fn walk(&self, dir: &Path, paths: &mut BTreeSet<PathBuf>) {
        for path in children(dir) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let opaque = OPAQUE.contains(&name.as_ref()) || path == self.logs;
            if !opaque && path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
                self.walk(&path, paths);
            }
            paths.insert(path);
        }
    }
}

// === impl Footprint ===

impl Footprint {
    /// Collects the objects that are new since `before`, and containerd's records for these ids.
    pub(crate) async fn new(
        look: &NodeScanner,
        before: &NodeObjects,
        side: &mut Side,
        ids: &[&str],
    ) -> Result<Self, Failure> {
        let now = look.scan();
        let mut paths: Vec<_> = now.paths.difference(&before.paths).cloned().collect();
        // Another network's pods may come and go meanwhile.
        paths.retain(|path| {
            !path.starts_with(CNI_RESULTS)
                || ids.iter().any(|id| path.to_string_lossy().contains(id))
        });
        // Some files are created with the first pod, and stay.
        paths.retain(|path| !stays(path));
        // A shim writes the address of its socket into its bundle.
        let sockets: Vec<_> = paths
            .iter()
            .filter(|path| path.ends_with("address"))
            .filter_map(|path| fs::read_to_string(path).ok())
            .filter_map(|address| address.trim().strip_prefix("unix://").map(PathBuf::from))
            .collect();
        paths.extend(sockets);
        paths.extend(
            ids.iter()
                .map(|id| Path::new(RUNC).join(side.namespace).join(id)),
        );

        let mut snapshots = Vec::new();
        for id in ids {
            snapshots.extend(side.snapshot_of(id).await?.filter(|key| !key.is_empty()));
        }
        let processes: Vec<_> = now
            .processes
            .difference(&before.processes)
            .copied()
            .collect();
        if processes.len() < 2 {
            return Err(format!(
                "{}: a pod that runs has a shim and a process, not {processes:?}",
                side.name
            )
            .into());
        }
        Ok(Self {
            paths,
            mounts: now.mounts.difference(&before.mounts).cloned().collect(),
            processes,
            containers: ids.iter().map(|id| (*id).to_owned()).collect(),
            snapshots,
        })
    }

    /// Leaves directories out: the first pod makes some that stay for all.
    pub(crate) fn forget_directories(&mut self) {
        self.paths.retain(|path| !path.is_dir());
    }

    /// A description of what remains of the pod; empty when nothing does.
    pub(crate) async fn remaining(&mut self, side: &mut Side) -> Result<Option<String>, Failure> {
        // Removed objects do not reappear, so they are not checked again.
        self.processes.retain(|&(pid, started)| {
            processes::find(pid)
                .is_some_and(|process| process.started == started && !process.zombie)
        });
        if !self.processes.is_empty() {
            return Ok(Some(format!("the processes {:?}", self.processes)));
        }
        if !self.mounts.is_empty() {
            let mounted = mounts::all();
            self.mounts
                .retain(|point| mounted.iter().any(|mount| mount.point == *point));
            if !self.mounts.is_empty() {
                return Ok(Some(format!("the mounts {:?}", self.mounts)));
            }
        }
        self.paths.retain(|path| path.symlink_metadata().is_ok());
        if !self.paths.is_empty() {
            return Ok(Some(format!("the files {:?}", self.paths)));
        }
        while let Some(id) = self.containers.last() {
            if side.snapshot_of(id).await?.is_some() {
                return Ok(Some(format!("the container object {id}")));
            }
            self.containers.pop();
        }
        while let Some(key) = self.snapshots.last() {
            if side.has_snapshot(key).await? {
                return Ok(Some(format!("the snapshot {key}")));
            }
            self.snapshots.pop();
        }
        Ok(None)
    }
}

/// Files that the first pod makes and that are there for all.
fn stays(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ipam = path.components().any(|part| part.as_os_str() == "ipam");
    ipam && (path.is_dir() || name == "lock" || name.starts_with("last_reserved_ip"))
}

fn children(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}
