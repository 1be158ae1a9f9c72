//! Finds what an instance left behind in the kernel, in the file system and in containerd.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use containerd_client::services::v1::snapshots::Kind;
use tonic::Status;

use crate::host::processes::{self, Process};
use crate::host::{cgroups, mounts, runtimes};
use crate::root::PrivateRoot;
use crate::{network, prereq};
use store::Store;

mod store;

/// The namespace that every frontend works in, unless a test configures another.
pub const NAMESPACE: &str = "k8s.io";

/// Everything that was found below a root at one moment: one readable line each, sorted.
///
/// Reported are the objects of pods and of operations in progress. Not reported is what is expected to stay:
/// the daemon, containerd and the logkeeper, images with their content and committed snapshots, and the
/// bridge. Content and snapshots that belong to no image are found by [`orphaned_content`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeakScan {
    /// The findings.
    pub findings: Vec<String>,
}

impl LeakScan {
    /// Scans the node. Cgroups are found by the name that [`PrivateRoot::cgroup_name`] gives.
    #[must_use]
    pub fn of(root: &PrivateRoot) -> Self {
        Self::of_with_ids(root, &[])
    }

    /// As [`LeakScan::of`], and also finds cgroups named after these ids wherever they are: for pods that
    /// were given no cgroup parent below the root's.
    #[must_use]
    pub fn of_with_ids(root: &PrivateRoot, ids: &[&str]) -> Self {
        let mut findings = Vec::new();
        let disks = root.disks();
        for mount in mounts::below(root.path()) {
            if disks.contains(&mount.point) {
                continue;
            }
            let what = if mount.kind == "nsfs" {
                "pinned namespace"
            } else {
                "mount"
            };
            findings.push(format!("{what} {} ({})", mount.point.display(), mount.kind));
        }
        findings.extend(network::in_use(&[root.network(), root.bridge()]));
        for shim in processes::belonging_to_if(root.path(), is_shim) {
            findings.push(format!("shim {}: {}", shim.pid, shim.command));
        }
        let own = root.cgroup_name();
        let groups = cgroups::trees_named(&own);
        for pid in cgroups::members_of(&groups) {
            findings.push(format!("process {pid} in a control group of the root"));
        }
        for group in groups {
            // The parent itself belongs to no pod: a kubelet creates and keeps it. A Nomad agent keeps it
            // too, and below it the cgroup `share` of the tasks that share their processors.
            let name = group.file_name().unwrap_or_default().to_string_lossy();
            let name = name.strip_suffix(".slice").unwrap_or(&name);
            if name != own && name != "share" {
                findings.push(format!("control group {}", group.display()));
            }
        }
        for id in ids {
            findings.extend(
                cgroups::named(id)
                    .iter()
                    .map(|group| format!("control group {}", group.display())),
            );
        }
        for dir in runtimes::state_dirs_of(root.path()) {
            findings.push(format!("runtime state {}", dir.display()));
        }
        collect_leaked_files(root.path(), &mut findings);
        if let Some(socket) = root.containerd_socket() {
            findings.extend(in_containerd(&socket, NAMESPACE));
        }
        findings.sort();
        findings.dedup();
        Self { findings }
    }

    /// Returns whether nothing was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Fails the test when something was found.
    ///
    /// # Panics
    /// When something was found; the message lists it.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(
            self.findings.is_empty(),
            "left behind:\n  {}",
            self.findings.join("\n  ")
        );
    }

    /// The findings of this scan that `before` does not have.
    #[must_use]
    pub fn new_since(&self, before: &Self) -> Vec<String> {
        self.findings
            .iter()
            .filter(|finding| !before.findings.contains(finding))
            .cloned()
            .collect()
    }
}

fn is_shim(process: &Process) -> bool {
    process
        .command
        .split(' ')
        .next()
        .is_some_and(|name| name.contains("containerd-shim"))
}

/// Lists the objects that containerd holds for pods and for operations in progress; a line with the error if
/// it does not answer.
#[must_use]
pub fn in_containerd(socket: &Path, namespace: &str) -> Vec<String> {
    findings_or_error(store::ask(socket, namespace, async |store: Store| {
        let mut findings = Vec::new();
        for (what, names) in [
            ("container", store.containers().await?),
            ("task", store.tasks().await?),
            ("lease", store.leases().await?),
            ("sandbox record", store.sandboxes().await?),
            ("ingest", store.ingests().await?),
        ] {
            findings.extend(names.into_iter().map(|name| format!("{what} {name}")));
        }
        for snapshot in store.snapshots().await? {
            // Committed snapshots belong to images.
            if snapshot.kind() != Kind::Committed {
                let words = [
                    snapshot.name.as_str(),
                    &snapshot.parent,
                    &format!("{:?}", snapshot.kind()),
                ];
                let words = words
                    .into_iter()
                    .filter(|word| !word.is_empty())
                    .collect::<Vec<_>>();
                findings.push(format!("snapshot {}", words.join(" ")));
            }
        }
        Ok(findings)
    }))
}

fn findings_or_error(answer: Result<Vec<String>, Status>) -> Vec<String> {
    answer.unwrap_or_else(|status| vec![format!("unknown: containerd cannot be asked: {status}")])
}

/// The lines that `ctr` prints; if it fails, a line with the error, which callers report as a finding.
///
/// # Panics
/// When `ctr` is not installed.
#[must_use]
pub fn ctr(socket: &Path, namespace: &str, words: &[&str]) -> Vec<String> {
    let output = Command::new(prereq::require("timeout", "coreutils"))
        .arg("60")
        .arg(prereq::require("ctr", "containerd"))
        .args(["--connect-timeout", "10s", "-a"])
        .arg(socket)
        .args(["-n", namespace])
        .args(words)
        .output()
        .expect("timeout was found, so it starts");
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return vec![
            "header".to_owned(),
            format!("unknown: ctr {} failed: {}", words.join(" "), error.trim()),
        ];
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .filter(|line| !line.is_empty())
        .collect()
}

/// The images, blobs and committed snapshots of a containerd: what stays when nothing runs, and must not
/// grow. A line with the error if it cannot be asked.
#[must_use]
pub fn stored(socket: &Path, namespace: &str) -> Vec<String> {
    findings_or_error(store::ask(socket, namespace, all_stored))
}

async fn all_stored(store: Store) -> Result<Vec<String>, Status> {
    let snapshots = store.snapshots().await?.into_iter();
    let committed = snapshots.filter(|snapshot| snapshot.kind() == Kind::Committed);
    let mut found = Vec::new();
    for (what, names) in [
        ("image", store.images().await?),
        ("blob", store.blobs().await?),
        (
            "snapshot",
            committed.map(|snapshot| snapshot.name).collect(),
        ),
    ] {
        found.extend(names.into_iter().map(|name| format!("{what} {name}")));
    }
    found.sort();
    Ok(found)
}

/// The names of the snapshots that have this label.
///
/// # Panics
/// When containerd cannot be asked.
#[must_use]
pub fn labelled_snapshots(socket: &Path, namespace: &str, label: &str) -> Vec<String> {
    let snapshots = store::ask(socket, namespace, async |store: Store| {
        store.snapshots().await
    });
    let mut snapshots = snapshots.expect("containerd can be asked");
    snapshots.retain(|snapshot| snapshot.labels.contains_key(label));
    snapshots
        .into_iter()
        .map(|snapshot| snapshot.name)
        .collect()
}

/// Deletes the object of a container, whose task runs on.
///
/// # Panics
/// When containerd refuses it.
pub fn lose_container(socket: &Path, namespace: &str, id: &str) {
    let lost = store::ask(socket, namespace, async |store: Store| {
        store.delete_container(id).await
    });
    lost.expect("containerd deletes it");
}

/// Makes a second container object like this one, with a snapshot and without a task, as a creation leaves it whose last answer was
/// lost; returns its id.
///
/// # Panics
/// When containerd refuses it.
#[must_use]
pub fn copy_container(socket: &Path, namespace: &str, id: &str) -> String {
    let copy: String = id.chars().rev().collect();
    let made = store::ask(socket, namespace, async |store: Store| {
        store.copy_container(id, &copy).await
    });
    made.expect("containerd makes it");
    copy
}

/// Returns the value of an extension of a container object.
///
/// # Panics
/// When containerd refuses it, or the object has no such extension.
#[must_use]
pub fn extension(socket: &Path, namespace: &str, (id, key): (&str, &str)) -> Vec<u8> {
    let found = store::ask(socket, namespace, async |store: Store| {
        store.extension(id, key).await
    });
    found.expect("containerd has it")
}

/// Changes the type of an extension of a container object, as if a later version had written it, and returns the
/// former one.
///
/// # Panics
/// When containerd refuses it, or the object has no such extension.
#[must_use]
pub fn set_extension_type(
    socket: &Path,
    namespace: &str,
    (id, key): (&str, &str),
    type_url: &str,
) -> String {
    let changed = store::ask(socket, namespace, async |store: Store| {
        store.set_extension_type(id, key, type_url).await
    });
    changed.expect("containerd changes it")
}

/// Removes every image, lets containerd collect its garbage, and returns what is still stored: content and
/// snapshots that belong to no image. Only containerd is asked, not the daemon.
#[must_use]
pub fn orphaned_content(socket: &Path, namespace: &str) -> Vec<String> {
    findings_or_error(store::ask(socket, namespace, async |store: Store| {
        store.remove_images().await?;
        all_stored(store).await
    }))
}

/// The files of objects and of operations in progress in the directories of a daemon: mounts, files named
/// after an id, and temporary files that were never renamed.
#[must_use]
pub fn leaked_files(dir: &Path) -> Vec<String> {
    let mounts = mounts::below(dir).into_iter();
    let mut findings: Vec<_> = mounts
        .map(|mount| format!("mount {} ({})", mount.point.display(), mount.kind))
        .collect();
    collect_leaked_files(dir, &mut findings);
    findings
}

/// Directories and files named after an id, FIFOs, and temporary files that were never renamed: bundles, io
/// directories, files of sandboxes and logs, unfinished downloads, named volumes. File systems of tests are left out: they
/// may hang.
fn collect_leaked_files(dir: &Path, findings: &mut Vec<String>) {
    let of_tests = mounts::below(dir)
        .into_iter()
        .filter(|mount| mount.kind == "fuse");
    let of_tests: Vec<PathBuf> = of_tests.map(|mount| mount.point).collect();
    // Not by recursion: another test may have a tree of thousands of levels just now.
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            // The entry was removed meanwhile.
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            let name = entry.file_name().to_string_lossy().into_owned();
            let parent = dir.file_name().unwrap_or_default().to_string_lossy();
            if kind.is_fifo() {
                findings.push(format!("named pipe {}", path.display()));
            } else if kind.is_dir() {
                if is_id(&name) {
                    findings.push(format!("directory {}", path.display()));
                } else if name == "volumes" {
                    findings.extend(volumes(&path));
                } else if name != "snapshots" && !of_tests.contains(&path) {
                    // `snapshots` holds the files of images.
                    dirs.push(path);
                }
            } else if matches!(parent.as_ref(), "ns" | "netns" | "namespaces") {
                findings.push(format!("pin file {}", path.display()));
            } else if name.split_once('.').is_some_and(|(id, _)| is_id(id)) {
                findings.push(format!("file {}", path.display()));
            } else if name.ends_with(".new") {
                findings.push(format!("file that was never named {}", path.display()));
            }
        }
    }
}

/// Named volumes, and unpublished ones, below the common directory: by owner and name.
fn volumes(dir: &Path) -> Vec<String> {
    let owners = fs::read_dir(dir).into_iter().flatten().flatten();
    let named = owners.flat_map(|owner| fs::read_dir(owner.path()).into_iter().flatten().flatten());
    named
        .map(|volume| format!("volume {}", volume.path().display()))
        .collect()
}

fn is_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}
